"""What happens in a :class:`SharedDict`, a table or a cluster: for a loop, and for `asyncio`, over a descriptor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, overload

from oneread import _keys
from oneread._keys import Key
from oneread._native import Changes, Client, ClusterChanges, ClusterClient
from oneread._types import Change, ClusterChange

Told = TypeVar("Told")


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

    def __init__(
        self, feed: Changes, entry: Callable[[bytes, bytes | None], tuple[Key, Any]]
    ) -> None:
        """``entry``: the key and the value that the table has so."""
        self._feed, self._entry = feed, entry

    def resync(self) -> None:
        """From now on all keys that are there come, and then what becomes of them."""
        self._feed.resync()

    def close(self) -> None:
        self._feed.close()

    def told(self, change: Change) -> DictChange | None:
        """The change; ``None`` for what is no entry of the dict."""
        if change.kind in ("joined", "gap"):
            return DictChange(change.kind, cause=change.cause)
        if change.key is None or _keys.is_hidden(change.key):
            return None
        key, value = self._entry(change.key, change.value)
        return DictChange(change.kind, key, value, change.cause)

    def __iter__(self) -> DictChanges:
        return self

    def __next__(self) -> DictChange:
        while True:
            told = self.told(next(self._feed))
            if told is not None:
                return told

    def poll(self, timeout: float = 0.0) -> DictChange | None:
        """The next change; ``None`` if there is none within so many seconds, or one that is no entry of the dict."""
        change = self._feed.poll(timeout)
        return None if change is None else self.told(change)

    def asynchronous(self) -> AsyncChanges[DictChange]:
        """These changes, for ``async for``."""
        return AsyncChanges(self._feed, self.told)

    def __enter__(self) -> DictChanges:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncChanges(Generic[Told]):
    """What happens in a table or a cluster, for ``async for``. Of several coroutines, each change goes to one.

    For each feed one thread of the library asks, without the interpreter; the loop waits for a descriptor. A coroutine
    that is cancelled loses no change.
    """

    def __init__(self, feed: Changes | ClusterChanges, told: Callable[[Any], Told | None]) -> None:
        """``told``: what is told of a change; ``None``: nothing."""
        self._feed, self._tell = feed, told
        self._is_open = True
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def position(self) -> Any:
        """Where another feed goes on that is to hear what this one has not given: its ``start``."""
        return self._feed.position

    def resync(self, *shard: int) -> None:
        """From now on all keys that are there come, and what becomes of them. Of a cluster also those of one shard."""
        self._feed.resync(*shard)

    def close(self) -> None:
        """Ends it, also for who waits."""
        self._is_open = False
        for waiting in list(self._waiting):
            # Another thread may run that loop, and a loop may have ended.
            with suppress(RuntimeError):
                waiting.get_loop().call_soon_threadsafe(_wake, waiting)
        self._feed.close()

    def __aiter__(self) -> AsyncChanges[Told]:
        return self

    async def __anext__(self) -> Told:
        while self._is_open:
            change = self._feed.poll()
            if change is None:
                await self._wait()
            elif (told := self._tell(change)) is not None:
                return told
        raise StopAsyncIteration

    async def _wait(self) -> None:
        """Returns when there may be something to poll, or this is closed."""
        loop = asyncio.get_running_loop()
        # A loop tells one coroutine of a descriptor: so each that waits has one of its own.
        fd = os.dup(self._feed.fileno())
        waiting = loop.create_future()
        self._waiting.add(waiting)
        loop.add_reader(fd, _wake, waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)
            loop.remove_reader(fd)
            os.close(fd)

    async def __aenter__(self) -> AsyncChanges[Told]:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


@overload
def changes_async(
    client: Client,
    *,
    start: Literal["now", "keys"] | tuple[int, int, int] | None = None,
    prefix: bytes | None = None,
    values: bool = False,
) -> AsyncChanges[Change]: ...
@overload
def changes_async(
    client: ClusterClient,
    *,
    start: Literal["now", "keys"] | bytes | None = None,
    prefix: bytes | None = None,
    values: bool = False,
) -> AsyncChanges[ClusterChange]: ...
def changes_async(
    client: Client | ClusterClient, *, start: Any = None, prefix: bytes | None = None, values: bool = False
) -> AsyncChanges[Any]:
    """As ``client.changes(...)``, for ``async for``. The call itself waits for the server, or for nodes."""
    return AsyncChanges(client.changes(start=start, prefix=prefix, values=values), lambda change: change)
