"""Changes of a dict: for a loop, and for `asyncio`."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from dicts import begin, outcome, shm

import oneread
from oneread import SharedDict
from oneread.aio import DictChange

__all__ = ["shm"]


def test_a_loop_hears_what_happens(shm: Path) -> None:
    with SharedDict("loop") as shared:
        shared["a"] = 1
        changes = shared.changes(start="keys")
        assert next(changes) == DictChange("key", "a", 1)
        assert next(changes).kind == "joined"
        shared["b"] = [2]
        shared["b"] = [3]
        del shared["b"]
        assert next(changes) == DictChange("came", "b", [2])
        assert next(changes) == DictChange("replaced", "b", [3])
        left = next(changes)
        assert (left.kind, left.key, left.value) == ("left", "b", None) and left.cause


def test_what_memoize_keeps_is_not_told(shm: Path) -> None:
    with SharedDict("hidden") as shared:
        changes = shared.changes()

        @shared.memoize(name="f")
        def f(n: int) -> int:
            return n

        assert f(1) == 1
        shared["a"] = 1
        assert next(changes) == DictChange("came", "a", 1)


def test_a_coroutine_hears_what_other_processes_do(shm: Path) -> None:
    program = """
        from oneread import SharedDict
        shared = SharedDict("async", create=False)
        for n in range(2000):
            shared[n] = str(n)
    """

    async def follow(shared: SharedDict) -> list[object]:
        heard = []
        async with shared.changes_async() as changes:
            async for change in changes:
                assert change.kind == "came" and change.value == str(change.key)
                heard.append(change.key)
                if change.key == 1999:
                    break
        return heard

    async def main() -> None:
        with SharedDict("async") as shared:
            followers = [asyncio.create_task(follow(shared)) for _ in range(3)]
            # They have begun when they wait for a descriptor.
            await asyncio.sleep(0.2)
            other = begin(program)
            threads = threading.active_count()
            heard = await asyncio.wait_for(asyncio.gather(*followers), 60)
            assert heard == [list(range(2000))] * 3
            assert threading.active_count() <= threads
            outcome(other)

    asyncio.run(main())


def test_a_clients_changes_are_bytes(shm: Path) -> None:
    async def main() -> None:
        with SharedDict("raw", codec="raw") as shared:
            async with oneread.changes_async(shared.client, prefix=b"a", values=True) as changes:
                shared["b"] = b"1"
                shared["a"] = b"2"
                change = await asyncio.wait_for(anext(changes), 30)
                assert (change.kind, change.key, change.value) == ("came", b"a", b"2")

    asyncio.run(main())


def test_who_is_cancelled_leaves_nothing_behind(shm: Path) -> None:
    async def main() -> None:
        with SharedDict("cancelled") as shared:
            changes = shared.changes_async()
            waiting = asyncio.create_task(changes.__anext__())
            await asyncio.sleep(0.1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            shared["a"] = 1
            # What it has not given is not lost.
            assert await asyncio.wait_for(changes.__anext__(), 30) == DictChange("came", "a", 1)
            waiting = asyncio.create_task(changes.__anext__())
            await asyncio.sleep(0.1)
            changes.close()
            with pytest.raises(StopAsyncIteration):
                await asyncio.wait_for(waiting, 30)
            with pytest.raises(StopAsyncIteration):
                await changes.__anext__()

    asyncio.run(main())


def test_each_change_goes_to_one_of_several_coroutines(shm: Path) -> None:
    async def main() -> None:
        with SharedDict("several") as shared:
            feed = shared.changes()
            changes, others = feed.asynchronous(), feed.asynchronous()
            waiting = [asyncio.create_task(anext(one)) for one in (changes, changes, others, others)]
            # They have begun when they wait for a descriptor.
            await asyncio.sleep(0.1)
            heard: set[object] = set()
            for n in range(4):
                shared[n] = n
                done, left = await asyncio.wait(waiting, timeout=60, return_when=asyncio.FIRST_COMPLETED)
                assert len(done) == 1, "one hears of it"
                heard |= {task.result().key for task in done}
                waiting = list(left)
            assert heard == {0, 1, 2, 3}
            feed.close()

    asyncio.run(main())


def test_who_waits_hears_that_the_feed_is_closed(shm: Path) -> None:
    async def main() -> None:
        with SharedDict("closes") as shared:
            feed = shared.changes()
            waiting = [asyncio.create_task(anext(feed.asynchronous())) for _ in range(2)]
            await asyncio.sleep(0.1)
            feed.close()
            for task in waiting:
                with pytest.raises(oneread.Closed):
                    await asyncio.wait_for(task, 60)
            changes = shared.changes_async()
            tasks = [asyncio.create_task(anext(changes)) for _ in range(2)]
            await asyncio.sleep(0.1)
            # Another thread may close it.
            await asyncio.to_thread(changes.close)
            for task in tasks:
                with pytest.raises(StopAsyncIteration):
                    await asyncio.wait_for(task, 60)

    asyncio.run(main())


def test_a_thread_that_waits_for_long_gives_way(shm: Path) -> None:
    with SharedDict("gives-way") as shared:
        feed = shared.client.changes(values=True)
        heard: list[oneread.Change] = []
        waiting = threading.Thread(target=lambda: heard.append(next(feed)))
        waiting.start()
        # Before or in its wait, which nothing but this ends.
        for _ in range(3):
            assert feed.position[2] == 1
            assert feed.poll(0.01) is None
        shared["a"] = 1
        waiting.join(60)
        assert [change.kind for change in heard] == ["came"]
        # A thread that waits when the feed is closed.
        raised: list[BaseException] = []

        def follow() -> None:
            try:
                next(feed)
            except oneread.Closed as closed:
                raised.append(closed)

        waiting = threading.Thread(target=follow)
        waiting.start()
        assert feed.poll(0.01) is None
        feed.close()
        waiting.join(60)
        assert len(raised) == 1
