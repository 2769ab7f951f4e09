"""What happens in a :class:`SharedDict`, a table or a cluster: for a loop, and for `asyncio`, over a descriptor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar, overload

from oneread import _keys
from oneread._keys import Key
from oneread._native import Changes, Client, ClusterChanges, ClusterClient
from oneread._types import Change, ClusterChange

Told = TypeVar("Told")
Ask: TypeAlias = Callable[..., Any]


def _call(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)


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

    def __init__(self, feed: Changes, loads: Callable[[bytes], Any], ask: Ask) -> None:
        """``ask``: calls, and starts a server where none is there."""
        self._feed, self._loads, self._ask = feed, loads, ask

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
        value = None if change.value is None else self._loads(change.value)
        return DictChange(change.kind, _keys.decode(change.key), value, change.cause)

    def __iter__(self) -> DictChanges:
        return self

    def __next__(self) -> DictChange:
        while True:
            told = self.told(self._ask(next, self._feed))
            if told is not None:
                return told

    def poll(self, timeout: float = 0.0) -> DictChange | None:
        """The next change; ``None`` if there is none within so many seconds, or one that is no entry of the dict."""
        change: Change | None = self._ask(self._feed.poll, timeout)
        return None if change is None else self.told(change)

    def asynchronous(self) -> AsyncChanges[DictChange]:
        """The same for ``async for``."""
        return AsyncChanges(self._feed, self.told, self._ask)

    def __enter__(self) -> DictChanges:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncChanges(Generic[Told]):
    """What happens in a table or a cluster, for ``async for``. One coroutine at a time waits for it.

    For each feed one thread of the library asks, without the interpreter; the loop waits for a descriptor. A coroutine
    that is cancelled loses no change.
    """

    def __init__(
        self, feed: Changes | ClusterChanges, told: Callable[[Any], Told | None], ask: Ask = _call
    ) -> None:
        """``told``: what is told of a change; ``None``: nothing."""
        self._feed, self._tell, self._ask = feed, told, ask
        self._is_open = True
        self._waiting: asyncio.Future[None] | None = None

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
        if self._waiting is not None:
            # The descriptor is not closed while the loop waits for it.
            self._waiting.get_loop().remove_reader(self._feed.fileno())
            self._wake()
        self._feed.close()

    def __aiter__(self) -> AsyncChanges[Told]:
        return self

    async def __anext__(self) -> Told:
        while self._is_open:
            change = self._ask(self._feed.poll)
            if change is None:
                await self._wait()
            elif (told := self._tell(change)) is not None:
                return told
        raise StopAsyncIteration

    async def _wait(self) -> None:
        """Returns when there is something to poll, or this is closed."""
        loop, fd = asyncio.get_running_loop(), self._feed.fileno()
        self._waiting = loop.create_future()
        loop.add_reader(fd, self._wake)
        try:
            await self._waiting
        finally:
            self._waiting = None
            if self._is_open:
                loop.remove_reader(fd)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def __aenter__(self) -> AsyncChanges[Told]:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


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
