"""A web application whose workers share one cache.

    gunicorn --workers 4 --chdir examples gunicorn_cache:app

Each worker process opens the dict when the first request comes, after gunicorn has made the process. `/NAME` tells
who computed the page of that name, and who answers: one worker computes, and all of them answer.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import oneread


@oneread.memoize("gunicorn-cache", ttl=60)
def page(name: str) -> dict[str, Any]:
    time.sleep(0.05)  # a query, a template
    return {"name": name, "computed_by": os.getpid()}


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    body = json.dumps({**page(environ["PATH_INFO"]), "answered_by": os.getpid()}).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
