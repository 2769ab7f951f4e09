"""Follows a dict without a thread: what comes, is replaced and leaves arrives at a coroutine.

A consumer that keeps something by keys (here: a set of those that are there) begins with all of them, and begins
again where it was told of a gap.
"""

from __future__ import annotations

import asyncio
import os

import oneread


async def follow(shared: oneread.SharedDict) -> set[oneread.Key]:
    """The keys that are there when the work is done."""
    there: set[oneread.Key] = set()
    changes = shared.changes_async(start="keys")
    async for change in changes:
        if change.kind == "left":
            there.discard(change.key)
        elif change.kind == "gap":
            there.clear()
            changes.resync()
        elif change.key is not None:
            there.add(change.key)
        if change.key == "done":
            break
    return there


async def work(shared: oneread.SharedDict) -> None:
    for n in range(100):
        shared[f"session:{n}"] = {"user": n}
        await asyncio.sleep(0)
    for n in range(0, 100, 2):
        del shared[f"session:{n}"]
        await asyncio.sleep(0)
    shared["done"] = True


async def main() -> set[oneread.Key]:
    with oneread.SharedDict(f"feed-example-{os.getpid()}") as shared:
        async with asyncio.TaskGroup() as tasks:
            followed = tasks.create_task(follow(shared))
            tasks.create_task(work(shared))
        return followed.result()


if __name__ == "__main__":
    print(f"{len(asyncio.run(main()))} keys are there")
