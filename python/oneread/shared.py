"""A dict that all processes of this user share: :class:`SharedDict`."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from typing import Any, Literal, TypeAlias, overload

from oneread import _codecs, _keys, _place
from oneread._errors import Disconnected, OnereadError
from oneread._keys import Key
from oneread._native import Client
from oneread.aio import AsyncChanges, DictChange, DictChanges
from oneread.memo import Decorator, Memo, memoized

log = logging.getLogger("oneread")

Lives: TypeAlias = Literal["until last", "for ever"] | float

# Those that are open, for `oneread.metrics`.
OPEN: weakref.WeakValueDictionary[int, SharedDict] = weakref.WeakValueDictionary()

UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
MISSING: Any = object()
# What a dict is made as of which nothing else is asked.
MADE = {"memory": 1 << 30, "codec": "pickle", "evict": None, "lives": "until last", "key_max": None, "value_max": None}


def byte_count(size: int | str) -> int:
    """``64 << 20``, or ``"64MiB"``."""
    if isinstance(size, int):
        return size
    digits = size.rstrip("BbGgIiKkMmTt ")
    unit = size[len(digits) :].strip().upper()
    if unit not in UNITS or not digits.isdigit():
        raise ValueError(f"no size: {size!r}; say it in bytes, or as in '64MiB', '8GiB'")
    return int(digits) * UNITS[unit]


class SharedDict(MutableMapping[Key, Any]):
    """A dict that all processes of this user on this host share, by its name.

    The first that opens it starts a server process. All read its memory by themselves, in a microsecond or two, and
    ask the server for changes. A value that was got is a copy: a change of it is seen when it is put again.

    ``memory``: the most that it may take, in bytes or as in ``"8GiB"``; it begins with some MiB. Default: 1 GiB.
    ``ttl``: seconds after which an entry ends that this object puts, unless the call says otherwise.
    ``codec``: ``"pickle"``, ``"msgpack"``, ``"raw"`` (values are bytes), or a pair of functions (dumps, loads).
    ``evict``: what happens where it is full. ``None``: a put of another key raises :class:`Full`. ``"s3-fifo"``,
    ``"sieve"``, ``"clock"``: an entry leaves that was not read lately.
    ``lives``: ``"until last"``: as long as a process has it open. A number: and so many seconds more.
    ``"for ever"``: until ``oneread stop``, or until the machine stops.
    ``key_max``, ``value_max``: the longest key and value in bytes, as they are stored.
    ``create=False``: it must be there.

    What is given must be as it was made (:class:`Incompatible` otherwise), but for ``ttl``. What is not is as it was
    made.

    **Pickle runs code.** Whoever may put into the dict can run anything in every process that gets from it. That is
    this user, and nobody else unless you share the folder. Take ``"msgpack"`` or ``"raw"`` if that is too much.

    Any thread may use it, and a child made by `fork`. It can be pickled: whoever unpickles it opens it by name.
    """

    def __init__(
        self,
        name: str,
        *,
        create: bool = True,
        memory: int | str | None = None,
        ttl: float | None = None,
        codec: _codecs.Codec | None = None,
        evict: str | None = None,
        lives: Lives | None = None,
        key_max: int | None = None,
        value_max: int | str | None = None,
        start_within: float = 30.0,
    ) -> None:
        if not (lives is None or lives in ("until last", "for ever") or isinstance(lives, (int, float)) and lives >= 0):
            raise ValueError(f"lives={lives!r}: it is 'until last', 'for ever', or a number of seconds")
        asked: dict[str, Any] = {
            "memory": None if memory is None else byte_count(memory),
            "codec": None if codec is None else _codecs.codec_of(codec)[0],
            "evict": evict,
            "lives": "until last" if lives == 0 else lives,
            "key_max": key_max,
            "value_max": None if value_max is None else byte_count(value_max),
        }
        self._asked = {what: how for what, how in asked.items() if how is not None}
        self._ttl = ttl
        self._own_codec = codec if isinstance(codec, tuple) else None
        self._place = _place.Place(name)
        self._start_within = start_within
        self._lock = threading.Lock()
        self._fd, about = _place.open_place(self._place, create, self._asked, MADE, start_within)
        try:
            self._name_codec, self.dumps, self.loads = _codecs.codec_of(self._codec(about["codec"]))
            self._client = Client(self._place.address)
        except BaseException:
            os.close(self._fd)
            raise
        self._closing = weakref.finalize(self, os.close, self._fd)
        self._bind()
        self._memo: Memo | None = None
        OPEN[id(self)] = self

    def _codec(self, name: str) -> _codecs.Codec:
        if name != "own":
            return name
        if self._own_codec is None:
            raise OnereadError(
                f"the shared dict {self.name!r} has a codec of its maker's; give it as codec=(dumps, loads)"
            )
        return self._own_codec

    def _bind(self) -> None:
        # A lookup less for each call.
        self._get, self._put = self._client.get, self._client.put

    def __reduce__(self) -> tuple[Any, ...]:
        options = {**self._asked, "ttl": self._ttl, "start_within": self._start_within}
        if self._own_codec is not None:
            options["codec"] = self._own_codec
        return _opened, (self.name, options)

    # What it is.

    @property
    def name(self) -> str:
        return self._place.name

    @property
    def address(self) -> str:
        """Where its server is: for a :class:`Client`, and for the ``oneread`` command (``--at``)."""
        return self._place.address

    @property
    def client(self) -> Client:
        """The client that it is made of, for keys and values as bytes (:meth:`raw_key`)."""
        return self._client

    @staticmethod
    def raw_key(key: Key) -> bytes:
        """The bytes that the table has for a key."""
        return _keys.encode(key)

    def stats(self) -> dict[str, Any]:
        """The counts of its client, and of :meth:`memoize` in this process."""
        return {**self._client.stats(), "memoize": {} if self._memo is None else self._memo.counts.copy()}

    def __repr__(self) -> str:
        return f"SharedDict({self.name!r})"

    # Its end.

    def close(self) -> None:
        """Lets go of it. As the last one, with ``lives="until last"``, ends it, and with it all entries."""
        with self._lock:
            if self._memo is not None:
                self._memo.close()
            self._client.close()
            self._closing()
            OPEN.pop(id(self), None)

    def __enter__(self) -> SharedDict:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _mend(self, error: Disconnected) -> None:
        """Its server is gone: killed, or told to stop. Starts another, which takes over the table."""
        with self._lock:
            if not self._closing.alive:
                raise error
            log.warning("the server of the shared dict %r is gone: %s", self.name, error)
            fd, _ = _place.open_place(self._place, True, self._asked, MADE, self._start_within)
            os.close(fd)

    # One entry.

    def __getitem__(self, key: Key) -> Any:
        raw = key.encode() if type(key) is str and key else _keys.encode(key)
        try:
            value = self._get(raw)
        except Disconnected as error:
            value = self._mend_and_get(error, raw)
        if value is None:
            raise KeyError(key)
        return self.loads(value)

    def get(self, key: Key, default: Any = None) -> Any:
        raw = key.encode() if type(key) is str and key else _keys.encode(key)
        try:
            value = self._get(raw)
        except Disconnected as error:
            value = self._mend_and_get(error, raw)
        return default if value is None else self.loads(value)

    def get_raw(self, raw: bytes) -> bytes | None:
        try:
            return self._get(raw)
        except Disconnected as error:
            return self._mend_and_get(error, raw)

    def _mend_and_get(self, error: Disconnected, raw: bytes) -> bytes | None:
        self._mend(error)
        return self._get(raw)

    def __contains__(self, key: object) -> bool:
        raw = _keys.encode(key)  # type: ignore[arg-type]
        try:
            return raw in self._client
        except Disconnected as error:
            self._mend(error)
            return raw in self._client

    def put(self, key: Key, value: Any, *, ttl: float | None = None) -> None:
        """Puts an entry that ends after ``ttl`` seconds; without it, after those of the dict, if it has any."""
        self.put_raw(_keys.encode(key), self.dumps(value), self._ttl if ttl is None else ttl)

    def put_raw(self, raw: bytes, value: Any, ttl: float | None) -> None:
        try:
            self._put(raw, value, ttl=ttl)
        except Disconnected as error:
            # Twice is as good as once.
            self._mend(error)
            self._put(raw, value, ttl=ttl)

    def __setitem__(self, key: Key, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Key) -> None:
        if not self._client.remove(_keys.encode(key)):
            raise KeyError(key)

    def setdefault(self, key: Key, default: Any = None) -> Any:
        """The value that is there; else puts this one. Of several processes, one puts."""
        raw, made = _keys.encode(key), self.dumps(default)
        while True:
            value = self._get(raw)
            if value is not None:
                return self.loads(value)
            if self._client.insert(raw, made, ttl=self._ttl):
                return default

    @overload
    def pop(self, key: Key, /) -> Any: ...
    @overload
    def pop(self, key: Key, /, default: Any) -> Any: ...
    def pop(self, key: Key, default: Any = MISSING) -> Any:
        """Takes an entry out. Of several processes, one gets it."""
        raw = _keys.encode(key)
        while (value := self._get(raw)) is not None:
            if self._client.compare_exchange(raw, value, None):
                return self.loads(value)
        if default is MISSING:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[Key, Any]:
        """Takes any entry out. Of several processes, one gets it."""
        for key in self:
            value = self.pop(key, MISSING)
            if value is not MISSING:
                return key, value
        raise KeyError("the dict is empty")

    # Results of functions.

    def memo(self) -> Memo:
        with self._lock:
            if self._memo is None:
                self._memo = Memo(self)
            return self._memo

    def memoize(
        self, *, ttl: float | None = None, key: Callable[..., Any] | None = None, lock_ttl: float | None = None
    ) -> Decorator:
        """As :func:`oneread.memoize`, in this dict. The dict does not show results as entries."""
        return memoized(self.memo, self._ttl if ttl is None else ttl, key, lock_ttl)

    # What happens.

    def changes(self, *, start: Literal["now", "keys"] = "now") -> DictChanges:
        """What happens from now on; with ``"keys"``, all that is there first."""
        return DictChanges(self._client.changes(start=start, values=True), self.loads)

    def changes_async(self, *, start: Literal["now", "keys"] = "now") -> AsyncChanges[DictChange]:
        """The same for ``async for``."""
        return self.changes(start=start).asynchronous()

    # Many entries.

    def get_many(self, keys: Iterable[Key], default: Any = None) -> list[Any]:
        """The values of these keys, in their order, by one call."""
        loads = self.loads
        values = self._client.get_many([_keys.encode(key) for key in keys])
        return [default if value is None else loads(value) for value in values]

    def put_many(self, entries: Mapping[Key, Any] | Iterable[tuple[Key, Any]], *, ttl: float | None = None) -> None:
        """Puts these entries by one call. Others may see some of them before the rest."""
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        dumps = self.dumps
        raw = [(_keys.encode(key), dumps(value)) for key, value in pairs]
        ttl = self._ttl if ttl is None else ttl
        self._client.put_many([key for key, _ in raw], [value for _, value in raw], ttl=ttl)

    def update(self, entries: Any = (), /, **named: Any) -> None:
        """As that of a dict, by one call."""
        pairs = dict(entries)
        pairs.update(named)
        self.put_many(pairs)

    def clear(self) -> None:
        """Removes all that is there, results of :meth:`memoize` included."""
        self._client.clear()

    # All entries.

    def __len__(self) -> int:
        """How many entries the table has now: those that have just ended, and results of :meth:`memoize`, included.
        A question to the server."""
        return len(self._client)

    def _entries(self) -> Iterator[tuple[Key, Any]]:
        for raw, value in self._client.scan(values=True):
            if not _keys.is_hidden(raw):
                yield _keys.decode(raw), self.loads(value)

    def __iter__(self) -> Iterator[Key]:
        """All keys, in no order. One that is there throughout is shown once; one that comes or goes meanwhile once
        or not at all."""
        for raw in self._client.scan():
            if not _keys.is_hidden(raw):
                yield _keys.decode(raw)

    def items(self) -> ItemsView[Key, Any]:
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        return _Values(self)


class _Items(ItemsView[Key, Any]):
    """Entries by one scan, and not by a get for each."""

    _mapping: SharedDict

    def __iter__(self) -> Iterator[tuple[Key, Any]]:
        return self._mapping._entries()


class _Values(ValuesView[Any]):
    _mapping: SharedDict

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._mapping._entries())


def _is_child() -> None:
    """This process was made by `fork`: threads that are not there may have had locks."""
    for shared in list(OPEN.values()):
        shared._lock = threading.Lock()
        if shared._memo is not None:
            shared._memo.is_child()


os.register_at_fork(after_in_child=_is_child)


def _opened(name: str, options: dict[str, Any]) -> SharedDict:
    return SharedDict(name, **options)


def memoize(
    name: str = "memoize",
    *,
    ttl: float | None = None,
    key: Callable[..., Any] | None = None,
    lock_ttl: float | None = None,
    **options: Any,
) -> Decorator:
    """Keeps results of a function for all processes: ``@oneread.memoize(ttl=60)``.

    The first that asks for a result computes it, and the others that ask meanwhile wait for it: in all threads, tasks
    and processes of this user, one computes. If its process is killed, another begins about a second later. An
    exception goes to whoever computed; it is not kept, and one of those who wait computes then.

    Functions are told apart by module and name, calls by their arguments: ``None``, bool, int, float, str, bytes, and
    lists, tuples, dicts and sets of them. ``key``: a function of the arguments that returns what tells calls apart.
    ``ttl``: seconds after which a result ends. ``lock_ttl``: seconds after which another computes, although the first
    is still at it; without it, all wait as long as that takes. ``f.forget(*args)`` removes a result.

    They are kept in the :class:`SharedDict` of this name, which the first call opens, with the other options.
    """
    state: dict[str, Memo] = {}
    guard = threading.Lock()

    def open_memo() -> Memo:
        memo = state.get("memo")
        if memo is None:
            with guard:
                memo = state.get("memo")
                if memo is None:
                    memo = state["memo"] = SharedDict(name, **options).memo()
        return memo

    return memoized(open_memo, ttl, key, lock_ttl)


def metrics() -> dict[str, dict[str, Any]]:
    """The counts of each dict that this process has open, by its name: what its client did, and `memoize`."""
    return {shared.name: shared.stats() for shared in list(OPEN.values())}
