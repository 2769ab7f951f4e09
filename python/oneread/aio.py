"""What happens in a :class:`SharedDict`: for a loop, and for `asyncio`, over a descriptor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oneread import _keys
from oneread._keys import Key

if TYPE_CHECKING:
    from oneread._native import Changes


@dataclass(frozen=True, slots=True)
class DictChange:
    """What happened.

    ``kind``: ``"key"``: the key is there, as the walk over all of them shows it; ``"joined"``: all were shown;
    ``"came"``, ``"replaced"``, ``"left"``: a key did; ``"gap"``: changes are missing, and ``resync`` tells what is
    there. ``value``: that of the change, or a later one; ``None`` if the key has gone meanwhile. ``cause``: why a key
    left (``"removed"``, ``"expired"``, ``"evicted"``), or changes are missing.
    """

    kind: str
    key: Key | None = None
    value: Any = None
    cause: str | None = None


class DictChanges:
    """Iterates over what happens in a dict. Each step waits for it."""

    def __init__(self, feed: Changes, loads: Callable[[bytes], Any]) -> None:
        self._feed, self._loads = feed, loads

    def resync(self) -> None:
        """From now on all keys that are there come, and then what becomes of them."""
        self._feed.resync()

    def close(self) -> None:
        self._feed.close()

    def _told(self, change: Any) -> DictChange | None:
        """The change; ``None`` for what is no entry of the dict."""
        if change.kind in ("joined", "gap"):
            return DictChange(change.kind, cause=change.cause)
        if change.key is None or _keys.is_hidden(change.key):
            return None
        value = None if change.value is None else self._loads(change.value)
        return DictChange(change.kind, _keys.decode(change.key), value, change.cause)

    def __iter__(self) -> DictChanges:
        return self

    def __next__(self) -> DictChange:
        while True:
            told = self._told(next(self._feed))
            if told is not None:
                return told

    def poll(self, timeout: float = 0.0) -> DictChange | None:
        """The next change; ``None`` if there is none within so many seconds, or one that is no entry of the dict."""
        change = self._feed.poll(timeout)
        return None if change is None else self._told(change)

    def __enter__(self) -> DictChanges:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncChanges:
    """The same for ``async for``. One coroutine at a time waits for it.

    For each feed one thread of the library asks the server, without the interpreter; the loop waits for a
    descriptor. A coroutine that is cancelled loses no change.
    """

    def __init__(self, changes: DictChanges) -> None:
        self._changes = changes
        self._is_open = True

    def resync(self) -> None:
        """From now on all keys that are there come, and then what becomes of them."""
        self._changes.resync()

    def close(self) -> None:
        """Ends it: also for who waits."""
        self._is_open = False
        self._changes.close()

    def __aiter__(self) -> AsyncChanges:
        return self

    async def __anext__(self) -> DictChange:
        while self._is_open:
            change = self._changes._feed.poll()
            if change is None:
                await readable(self._changes._feed.fileno())
            elif (told := self._changes._told(change)) is not None:
                return told
        raise StopAsyncIteration

    async def __aenter__(self) -> AsyncChanges:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


async def readable(fd: int) -> None:
    """Returns when there is something to read."""
    loop = asyncio.get_running_loop()
    is_so = loop.create_future()

    def tell() -> None:
        if not is_so.done():
            is_so.set_result(None)

    loop.add_reader(fd, tell)
    try:
        await is_so
    finally:
        loop.remove_reader(fd)
