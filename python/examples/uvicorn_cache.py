"""A web application for asyncio (ASGI) whose workers share one cache.

    uvicorn --workers 4 --app-dir examples uvicorn_cache:app

As `gunicorn_cache.py`. While one request waits for a page that is being computed, the worker's loop serves others.
`/hits` tells how often pages were asked for, of all workers: a get reads memory, so a coroutine calls it as it is.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import oneread


@cache
def counts() -> oneread.SharedDict:
    """The dict of counters, opened by the first request of each worker."""
    return oneread.SharedDict("uvicorn-counts", codec="raw")


@oneread.memoize("uvicorn-cache", ttl=60)
async def page(name: str) -> dict[str, Any]:
    await asyncio.sleep(0.05)  # a query, a template
    return {"name": name, "computed_by": os.getpid()}


async def app(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Awaitable[None]]) -> None:
    if scope["type"] != "http":  # as "lifespan", which a server then does without
        raise NotImplementedError(scope["type"])
    if scope["path"] == "/hits":
        answer = {"hits": int.from_bytes(counts().client.get(b"hits", b""), "little")}
    else:
        # A change waits for the server: microseconds, or longer if the machine is busy. So it does that in a thread.
        await asyncio.to_thread(counts().client.add, b"hits", 1, initial=0)
        answer = {**await page(scope["path"]), "answered_by": os.getpid()}
    body = json.dumps(answer).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
