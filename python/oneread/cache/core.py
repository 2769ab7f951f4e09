"""A cache in a directory, which all processes of this user share: :class:`Cache`.

An entry with an end, a tag or a place in an order has these before its value (`oneread._entries`). The table ends an entry a
little later by itself. What ends when is for who reads.
"""

from __future__ import annotations

import functools
import io
import logging
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from oneread import _codecs, _entries, _keys, _place
from oneread._errors import Invalid, KeyTooLong, OnereadError, Timeout
from oneread.cache._calls import ENOVAL, UNKNOWN, args_to_key, full_name, sort_key
from oneread.cache._home import identity, wait_for_snapshot
from oneread.shared import MEMORY, SNAPSHOT_EVERY, Durable, SharedDict, byte_count, checked_durable

log = logging.getLogger("oneread")

# Settings of diskcache's. Those of SQLite and of files are kept and have no effect.
DEFAULT_SETTINGS: dict[str, Any] = {
    "statistics": 0,
    "tag_index": 0,
    "eviction_policy": "least-recently-stored",
    "size_limit": 1 << 30,
    "cull_limit": 10,
    "disk_min_file_size": 1 << 15,
    "disk_pickle_protocol": pickle.HIGHEST_PROTOCOL,
}
# What each policy of diskcache's is here.
EVICTION_POLICY: dict[str, str | None] = {
    "none": None,
    "least-recently-stored": "s3-fifo",
    "least-recently-used": "s3-fifo",
    "least-frequently-used": "s3-fifo",
}
# The table ends an entry so many seconds after its time: until then it is counted, as diskcache counts it.
SLACK = 1.0
# The table takes no longer time to live. What lives longer does not end there.
TTL_MAX = 3_650 * 86_400.0
# The longest value, and which part of the memory it is at most: a table needs room for several.
VALUE_MAX, VALUE_SHARE = 64 << 20, 16
# What an entry takes besides its key and its value, about.
ENTRY_BYTES = 32
# The first key of a queue.
QUEUE_START = 500_000_000_000_000
# How many keys of a queue are got at once, and how many are removed.
AT_ONCE = 256
# How long closing the last one waits for the snapshot.
SNAPSHOT_WITHIN = 600.0

COUNT, ORDER, QUEUE = _keys.NOTE + b"#", _keys.NOTE + b"o", _keys.NOTE + b"q"


class Disk:
    """A name of diskcache's. How values become bytes says ``codec=``."""

    def __init__(self, directory: str, **settings: Any) -> None:
        self._directory = directory


class JSONDisk(Disk):
    """Not here: ``codec="plain"`` keeps what JSON does, and more."""


class _Stored(NamedTuple):
    """What an entry has, where that is more than a value, or another one than most are."""

    key: Any
    raw: bytes


class UnknownFileWarning(UserWarning):
    """Never given: there are no files of values."""


class EmptyDirWarning(UserWarning):
    """Never given."""


class Entry(NamedTuple):
    """What the table has for a key."""

    placed: bytes
    before: bytes | None
    stored: bytes
    payload: bytes
    expire: float | None
    tag: bytes
    order: int

    def size(self) -> int:
        """The bytes that it takes, about."""
        return ENTRY_BYTES + len(self.placed) + len(self.stored)

    def has_ended(self, now: float) -> bool:
        return self.expire is not None and self.expire <= now


class Cache:
    """A cache in a directory, with the interface of diskcache's.

    All processes of this user that open the directory share it. The entries are in memory. A snapshot of them is in the
    directory: it is written every ``snapshot_every`` seconds, when the last process closes the cache, and when its server
    ends, ``lives`` seconds after the last process has gone. The next start loads it. A crash of the machine, or a power
    cut, takes what came after the last snapshot; a crash of a process takes nothing. ``durable="1s"`` or ``"always"``: a log of
    all changes is in the directory, too, and such a crash takes at most the last second, or nothing. A cache that has a log
    keeps it, whoever opens it.

    ``codec``: ``"plain"``, ``"pickle"`` or ``"msgpack"``, or a pair of functions (dumps, loads). ``memory``: the most that
    it may take; otherwise ``size_limit``, or what is free. Where it is full, entries leave, unless ``eviction_policy`` is
    ``"none"``. ``timeout`` and ``retry`` are for compatibility. What cannot be here raises :class:`NotImplementedError`.
    """

    statistics: int
    tag_index: int
    eviction_policy: str
    size_limit: int
    cull_limit: int
    disk_min_file_size: int
    disk_pickle_protocol: int

    _ordered = False

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        timeout: float = 60,
        disk: type[Disk] = Disk,
        *,
        codec: _codecs.Codec = "plain",
        memory: int | str | None = None,
        lives: float = 10.0,
        snapshot_every: float | None = None,
        durable: Durable | None = None,
        **settings: Any,
    ) -> None:
        if not isinstance(disk, type):
            raise ValueError("disk must be a class; it has no effect: how values become bytes says codec=")
        if disk is not Disk:
            raise NotImplementedError(
                f"disk={disk.__name__}: there are no files of values to name or write; give codec=(dumps, loads)"
            )
        if codec == "raw":
            raise ValueError("codec='raw' has no place for tags and ends; 'plain' keeps bytes as they are")
        if directory is None:
            directory = tempfile.mkdtemp(prefix="oneread-cache-")
        self._directory = os.path.expandvars(os.path.expanduser(os.fspath(directory)))
        self._timeout = timeout
        self._codec, self._memory = codec, memory
        self._lives, self._durable = float(lives), checked_durable(durable)
        if snapshot_every is None and durable is None:
            snapshot_every = SNAPSHOT_EVERY
        # With a log, the server makes snapshots when that has become long.
        self._snapshot_every = None if snapshot_every is None else float(snapshot_every)
        for name, value in {**DEFAULT_SETTINGS, **settings}.items():
            known = name in DEFAULT_SETTINGS or name.startswith(("sqlite_", "disk_"))
            if not known:
                raise TypeError(f"Cache has no setting {name!r}")
            setattr(self, name, value)
        self._settings = settings
        self._codec_name, self._dumps, self._loads = _codecs.codec_of(codec)
        # The bytes of another's codec may begin as a head does.
        self._is_marked = self._codec_name == "own"
        self._hits = self._misses = 0
        self._shared: SharedDict | None = None
        self._open()

    def _open(self) -> SharedDict:
        """Its dict. One that was closed is opened again."""
        if self._shared is None:
            try:
                os.makedirs(self._directory, mode=0o755, exist_ok=True)
            except OSError as error:
                raise OSError(error.errno, f"no cache directory: {error.strerror}", self._directory) from None
            policy = self.eviction_policy
            limit = self._limit() if self._memory is None else byte_count(self._memory)
            sized: dict[str, Any] = {"memory": limit} if self._memory is not None else _place.memory_for(limit or MEMORY)
            made = {
                **sized,
                "evict": EVICTION_POLICY.get(policy, "s3-fifo"),
                "lives": self._lives,
                # Each process has its own codec; what another one wrote is a miss.
                "codec": "plain",
                "value_max": min(VALUE_MAX, _place.at_most(sized["memory"]) // VALUE_SHARE),
                "directory": str(Path(self._directory).resolve()),
                "snapshot_every": self._snapshot_every,
            }
            self._shared = SharedDict(identity(Path(self._directory)), _made=made, _asked={"durable": self._durable})
        return self._shared

    def _limit(self) -> int:
        return int(self.size_limit)

    # What it is.

    @property
    def directory(self) -> str:
        return self._directory

    @property
    def timeout(self) -> float:
        return self._timeout

    @property
    def disk(self) -> Any:
        raise NotImplementedError("there is no Disk: how values become bytes says codec=")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(directory={self._directory!r})"

    def reset(self, key: str, value: Any = ENOVAL, update: bool = True) -> Any:
        """Sets a setting of this object, and returns it."""
        if value is not ENOVAL:
            setattr(self, key, value)
        return getattr(self, key)

    # Entries as the table has them.

    def _split(self, placed: bytes, before: bytes | None, stored: bytes) -> Entry:
        raw = stored if before is None else _keys.split(stored)[1]
        (expire, order, tag), payload = _entries.split(raw)
        return Entry(placed, before, stored, payload, expire, tag, order)

    def _joined(
        self, before: bytes | None, payload: Any, expire: float | None, tag: bytes, order: int = 0
    ) -> bytes:
        raw: bytes = payload
        if expire is not None or tag or order or self._is_marked:
            raw = _entries.joined(_entries.Head(expire, order, tag), payload)
        return raw if before is None else _keys.before(before, raw)

    def _seek(self, key: Any) -> tuple[bytes, bytes | None, Entry | None]:
        """What the table has for a key, if it has something."""
        shared = self._open()
        placed, before = shared._placed(key)
        stored = shared.get_raw(placed)
        if stored is None or (before is not None and shared._found(key, before, stored) is None):
            return placed, before, None
        return placed, before, self._split(placed, before, stored)

    def _live(self, key: Any) -> Entry | None:
        """The entry, unless it has ended."""
        entry = self._seek(key)[2]
        return None if entry is None or entry.has_ended(time.time()) else entry

    def _value(self, entry: Entry, key: Any) -> Any:
        """The value; ``ENOVAL`` where the codec cannot read it: that is a miss."""
        try:
            return self._loads(entry.payload)
        except Exception as error:
            # What a codec raises may be anything.
            log.warning("the value of %r in %s cannot be read, and counts as absent: %r", key, self._directory, error)
            return ENOVAL

    def _payload(self, value: Any, read: bool) -> Any:
        return self._dumps(value.read() if read else value)

    def _write(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """A call that puts an entry."""
        return self._open()._ask(call, *args, **named)

    def _put(self, placed: bytes, stored: bytes, ends: float | None) -> None:
        self._write(self._open().client.put, placed, stored, ttl=ends)

    def _swap(self, entry: Entry, now: bytes | None) -> bool:
        return self._open().client.compare_exchange(entry.placed, entry.stored, now)

    # One entry.

    def set(
        self,
        key: Any,
        value: Any,
        expire: float | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = False,
    ) -> bool:
        """Sets an entry, which ends after ``expire`` seconds. With ``read``, ``value`` is a file in binary mode."""
        payload, tagged = self._payload(value, read), _entries.tag_bytes(tag)
        at = None if expire is None else time.time() + expire
        if self._ordered:
            return self._set_in_order(key, payload, at, tagged, expire)
        placed, before = self._open()._placed(key)
        self._put(placed, self._joined(before, payload, at, tagged), table_ttl(expire))
        return True

    def _set_in_order(
        self, key: Any, payload: Any, at: float | None, tag: bytes, expire: float | None
    ) -> bool:
        """Sets an entry, which keeps its place, or gets the last one."""
        client = self._open().client
        while True:
            placed, before, there = self._seek(key)
            order = there.order if there is not None and not there.has_ended(time.time()) else 0
            order = order or self._next_order()
            stored = self._joined(before, payload, at, tag, order)
            if there is None:
                if self._write(client.insert, placed, stored, ttl=table_ttl(expire)):
                    return True
            elif self._swap(there, stored):
                client.touch(placed, ttl=table_ttl(expire))
                return True

    def _next_order(self) -> int:
        client = self._open().client
        number = client.incr(ORDER, 1)
        if number is None:
            self._note(ORDER, b"0")
            number = client.incr(ORDER, 1, initial=0)
        assert number is not None
        return number

    def _note(self, note: bytes, value: bytes) -> None:
        """Makes a note of the cache's own, which counts as no entry."""
        client = self._open().client
        if client.insert(note, value):
            client.incr(COUNT, 1, initial=1)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.set(key, value)

    def add(
        self,
        key: Any,
        value: Any,
        expire: float | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = False,
    ) -> bool:
        """Sets an entry if the key is absent. Whether it was. Of several processes, one sets it."""
        payload, tagged = self._payload(value, read), _entries.tag_bytes(tag)
        client = self._open().client
        while True:
            placed, before, there = self._seek(key)
            now = time.time()
            if there is not None:
                if not there.has_ended(now):
                    return False
                # Only what has ended is taken away, and one of those who come then is the first.
                self._swap(there, None)
            at = None if expire is None else now + expire
            order = self._next_order() if self._ordered else 0
            stored = self._joined(before, payload, at, tagged, order)
            if self._write(client.insert, placed, stored, ttl=table_ttl(expire)):
                return True

    def touch(self, key: Any, expire: float | None = None, retry: bool = False) -> bool:
        """Has an entry end ``expire`` seconds from now, or not at all. Whether it is there."""
        client = self._open().client
        while True:
            entry = self._live(key)
            if entry is None:
                return False
            at = None if expire is None else time.time() + expire
            # The table never ends it sooner than it says itself.
            is_later = at is None or (entry.expire is not None and at > entry.expire)
            if is_later:
                client.touch(entry.placed, ttl=table_ttl(expire))
            if self._swap(entry, self._joined(entry.before, entry.payload, at, entry.tag, entry.order)):
                if not is_later:
                    client.touch(entry.placed, ttl=table_ttl(expire))
                return True

    def incr(self, key: Any, delta: float = 1, default: float | None = 0, retry: bool = False) -> Any:
        """Adds to a number, and returns what it is then. An absent key counts as ``default``; with ``None`` it is a
        ``KeyError``. A number without tag and end is decimal text, for ``oneread incr``, too."""
        client = self._open().client
        are_whole = type(delta) is int and (default is None or type(default) is int)
        while True:
            placed, before, entry = self._seek(key)
            if entry is not None and entry.has_ended(time.time()):
                self._swap(entry, None)
                entry = None
            if entry is None and default is None:
                raise KeyError(key)
            is_text = before is None and not self._ordered and not self._is_marked
            if are_whole and is_text and (entry is None or entry.stored == entry.payload):
                try:
                    number = client.incr(placed, delta, initial=None if entry is not None else default)  # type: ignore[arg-type]
                except Invalid:
                    # It is a fraction, or longer than the table adds to.
                    pass
                else:
                    if number is not None:
                        return number
                    continue
            if entry is None:
                assert default is not None
                if self.add(key, default + delta):
                    return default + delta
                continue
            value = self._value(entry, key)
            if not isinstance(value, (int, float)):
                raise TypeError(f"the value of {key!r} is no number; it is {value!r}")
            now = value + delta
            if self._swap(entry, self._joined(entry.before, self._payload(now, False), entry.expire, entry.tag, entry.order)):
                return now

    def decr(self, key: Any, delta: float = 1, default: float | None = 0, retry: bool = False) -> Any:
        """:meth:`incr` by as much less."""
        return self.incr(key, -delta, default, retry)

    def get(
        self,
        key: Any,
        default: Any = None,
        read: bool = False,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """The value, or ``default``; with ``expire_time`` and ``tag`` a tuple with these. With ``read``, bytes come as a
        file."""
        # Its truth would be its length, which the server knows.
        shared = self._open() if self._shared is None else self._shared
        entry = None
        try:
            if type(key) is str and key:
                # Most entries are no more than their value, which the client makes by itself.
                value = shared._value(key, ENOVAL, self._codec_name, _Stored)
                if type(value) is _Stored:
                    value, entry = self._seen(key, value.raw)
            elif (stored := shared._get(_keys.encode(key))) is None:
                value = ENOVAL
            else:
                value, entry = self._seen(key, stored)
        except KeyTooLong:
            entry = self._live(key)
            value = ENOVAL if entry is None else self._value(entry, key)
        if self.statistics:
            self._hits += value is not ENOVAL
            self._misses += value is ENOVAL
        if value is ENOVAL:
            value, entry = default, None
        elif read and isinstance(value, bytes):
            value = _file(value, self._directory)
        if not (expire_time or tag):
            return value
        ends, tagged = (None, None) if entry is None else (entry.expire, _entries.tag_of(entry.tag))
        return _with(value, (ends, expire_time), (tagged, tag))

    def _seen(self, key: Any, stored: bytes) -> tuple[Any, Entry | None]:
        """The value that a key has, or ``ENOVAL``; and its entry, if that is more than the value."""
        if stored and stored[0] != _entries.MARK:
            try:
                return self._loads(stored), None
            except Exception:
                # Said where all of it is known.
                pass
        entry = self._split(stored, None, stored)
        return (ENOVAL if entry.has_ended(time.time()) else self._value(entry, key)), entry

    def __getitem__(self, key: Any) -> Any:
        value = self.get(key, ENOVAL)
        if value is ENOVAL:
            raise KeyError(key)
        return value

    def read(self, key: Any, retry: bool = False) -> Any:
        """The bytes of a value as a file."""
        value = self.get(key, ENOVAL, read=True)
        if value is ENOVAL:
            raise KeyError(key)
        return value

    def __contains__(self, key: Any) -> bool:
        return self._live(key) is not None

    def pop(
        self,
        key: Any,
        default: Any = None,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """Takes an entry out. Of several processes, one gets it."""
        while True:
            entry = self._live(key)
            value = ENOVAL if entry is None else self._value(entry, key)
            if entry is None or value is ENOVAL:
                return _with(default, (None, expire_time), (None, tag))
            if self._swap(entry, None):
                return _with(value, (entry.expire, expire_time), (_entries.tag_of(entry.tag), tag))

    def delete(self, key: Any, retry: bool = False) -> bool:
        """Removes an entry. Whether it was there."""
        while True:
            entry = self._seek(key)[2]
            if entry is None:
                return False
            if self._swap(entry, None):
                return not entry.has_ended(time.time())

    def __delitem__(self, key: Any, retry: bool = True) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def _alter(self, key: Any, make: Callable[[Any], Any], expire: float | None, tag: Any) -> None:
        """Gives a key the value that ``make`` makes of the one that is there, or of ``ENOVAL``: no other change comes
        between. ``make`` may be called again."""
        tagged = _entries.tag_bytes(tag)
        while True:
            entry = self._live(key)
            if entry is None:
                if self.add(key, make(ENOVAL), expire, tag=tag):
                    return
                continue
            at = None if expire is None else time.time() + expire
            payload = self._payload(make(self._value(entry, key)), False)
            client = self._open().client
            if self._swap(entry, self._joined(entry.before, payload, at, tagged, entry.order)):
                if (expire, entry.expire) != (None, None):
                    client.touch(entry.placed, ttl=table_ttl(expire))
                return

    # Queues: keys with numbers, from a first one on, up to the one before a last one. A note has both.

    def _queue_key(self, prefix: str | None, number: int) -> Any:
        return number if prefix is None else f"{prefix}-{number:015d}"

    def _queue(self, prefix: str | None) -> tuple[bytes, bytes | None, range]:
        """The note of a queue, what is in it, and the numbers of the queue."""
        note = QUEUE + _keys.encode(prefix)
        raw = self._open().get_raw(note)
        first, end = (QUEUE_START, QUEUE_START) if raw is None else map(int, raw.split())
        return note, raw, range(first, end)

    def _set_queue(self, note: bytes, raw: bytes, first: int, end: int) -> bool:
        if first >= end:
            first = end = QUEUE_START
        return self._open().client.compare_exchange(note, raw, b"%d %d" % (first, end))

    def push(
        self,
        value: Any,
        prefix: str | None = None,
        side: str = "back",
        expire: float | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = False,
    ) -> Any:
        """Pushes a value to a side of a queue, and returns its key."""
        if side not in ("back", "front"):
            raise ValueError(f"side={side!r}: it is 'back' or 'front'")
        payload, tagged = self._payload(value, read), _entries.tag_bytes(tag)
        at = None if expire is None else time.time() + expire
        client = self._open().client
        while True:
            note, raw, queue = self._queue(prefix)
            if raw is None:
                self._note(note, b"%d %d" % (QUEUE_START, QUEUE_START))
                continue
            is_back = side == "back" or not queue
            number = queue.stop if is_back else queue.start - 1
            key = self._queue_key(prefix, number)
            placed, before = self._open()._placed(key)
            order = self._next_order() if self._ordered else 0
            stored = self._joined(before, payload, at, tagged, order)
            # It is there before the note says so: who finds it there goes on behind it.
            is_new = self._write(client.insert, placed, stored, ttl=table_ttl(expire))
            is_noted = self._set_queue(note, raw, min(queue.start, number), max(queue.stop, number + 1))
            if is_new and (is_noted or self._is_pushed(prefix, number, placed, stored)):
                return key

    def _is_pushed(self, prefix: str | None, number: int, placed: bytes, stored: bytes) -> bool:
        """Whether a value is in the queue, or was and has been pulled. If the queue has gone elsewhere meanwhile, it is
        taken back."""
        while True:
            note, raw, queue = self._queue(prefix)
            if number in queue:
                return True
            if raw is not None and queue and number in (queue.start - 1, queue.stop):
                if self._set_queue(note, raw, min(queue.start, number), max(queue.stop, number + 1)):
                    return True
                continue
            return not self._open().client.compare_exchange(placed, stored, None)

    def _next(self, prefix: str | None, side: str, takes: bool) -> tuple[Any, Any, Entry] | None:
        """The key, value and entry at a side of a queue. What has ended goes."""
        if side not in ("back", "front"):
            raise ValueError(f"side={side!r}: it is 'front' or 'back'")
        while True:
            note, raw, queue = self._queue(prefix)
            if raw is None or not queue:
                return None
            number = queue.start if side == "front" else queue.stop - 1
            rest = (queue.start + 1, queue.stop) if side == "front" else (queue.start, queue.stop - 1)
            key = self._queue_key(prefix, number)
            entry = self._seek(key)[2]
            if entry is None:
                self._set_queue(note, raw, *rest)
                continue
            value = ENOVAL if entry.has_ended(time.time()) else self._value(entry, key)
            if value is not ENOVAL and not takes:
                return key, value, entry
            if self._swap(entry, None):
                self._set_queue(note, raw, *rest)
                if value is not ENOVAL:
                    return key, value, entry

    def _shown(self, found: tuple[Any, Any, Entry] | None, default: Any, expire_time: bool, tag: bool) -> Any:
        if found is None:
            return _with(default, (None, expire_time), (None, tag))
        key, value, entry = found
        return _with((key, value), (entry.expire, expire_time), (_entries.tag_of(entry.tag), tag))

    def pull(
        self,
        prefix: str | None = None,
        default: Any = (None, None),
        side: str = "front",
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """Takes a key and a value from a side of a queue. Of several processes, one gets them."""
        return self._shown(self._next(prefix, side, True), default, expire_time, tag)

    def peek(
        self,
        prefix: str | None = None,
        default: Any = (None, None),
        side: str = "front",
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """The key and the value at a side of a queue, which stay there."""
        return self._shown(self._next(prefix, side, False), default, expire_time, tag)

    # All entries.

    def _entries(self) -> Iterator[tuple[Any, Entry]]:
        """All keys with their entries, in no order."""
        shared = self._open()
        for placed, stored in shared.client.scan(values=True):
            if _keys.is_hidden(placed):
                continue
            is_long = placed[:1] == _keys.HASHED
            raw = _keys.split(stored)[0] if is_long else placed
            yield _keys.decode(raw), self._split(placed, raw if is_long else None, stored)

    def __iter__(self) -> Iterator[Any]:
        """All keys, in no order, or in the order in which they came, where there is one. Those that have just ended are
        among them."""
        if self._ordered:
            return iter([key for _, key in sorted(((entry.order, key) for key, entry in self._entries()), key=_first)])
        return iter(self._open())

    def __reversed__(self) -> Iterator[Any]:
        return iter(list(self)[::-1])

    def iterkeys(self, reverse: bool = False) -> Iterator[Any]:
        """All keys, sorted."""
        return iter(sorted(self._open(), key=sort_key, reverse=reverse))

    def peekitem(
        self, last: bool = True, expire_time: bool = False, tag: bool = False, retry: bool = False
    ) -> Any:
        """The last or the first entry, as :meth:`__iter__` has them."""
        keys = list(self)
        for key in reversed(keys) if last else keys:
            entry = self._live(key)
            value = ENOVAL if entry is None else self._value(entry, key)
            if entry is not None and value is not ENOVAL:
                return _with((key, value), (entry.expire, expire_time), (_entries.tag_of(entry.tag), tag))
        raise KeyError("the cache is empty")

    def __len__(self) -> int:
        """How many entries there are; those that have just ended are among them."""
        client = self._open().client
        return max(0, len(client) - int(client.get(COUNT) or 0))

    def _remove_where(self, goes: Callable[[Entry], bool]) -> int:
        # An entry that has changed since stays.
        return sum(self._swap(entry, None) for _, entry in self._entries() if goes(entry))

    def expire(self, now: float | None = None, retry: bool = False) -> int:
        """Removes what has ended. Returns how many."""
        at = time.time() if now is None else now
        return self._remove_where(lambda entry: entry.has_ended(at))

    def evict(self, tag: Any, retry: bool = False) -> int:
        """Removes what has this tag. Returns how many."""
        tagged = _entries.tag_bytes(tag)
        return self._remove_where(lambda entry: entry.tag == tagged)

    def cull(self, retry: bool = False) -> int:
        """Removes what has ended, and then others until :meth:`volume` is at most ``size_limit``. Returns how many."""
        removed, volume = self.expire(), self.volume()
        if self.eviction_policy == "none":
            return removed
        for _, entry in self._entries():
            if volume <= self._limit():
                break
            if self._swap(entry, None):
                removed += 1
                volume -= entry.size()
        return removed

    def clear(self, retry: bool = False) -> int:
        """Removes all entries. Returns how many."""
        client = self._open().client
        removed, some = 0, []
        for placed in client.scan():
            some.append(placed)
            if len(some) == AT_ONCE:
                removed += self._remove_many(some)
                some = []
        return removed + self._remove_many(some)

    def _remove_many(self, placed: list[bytes]) -> int:
        client = self._open().client
        notes = [one for one in placed if _keys.is_hidden(one)]
        client.remove_many(notes)
        return client.remove_many([one for one in placed if not _keys.is_hidden(one)])

    def volume(self) -> int:
        """About the bytes of all entries. Looks at all of them."""
        return sum(entry.size() for _, entry in self._entries())

    def check(self, fix: bool = False, retry: bool = False) -> list[Any]:
        """There are no files that could differ from the entries. Always empty."""
        self._open()
        return []

    def create_tag_index(self) -> None:
        """For compatibility: :meth:`evict` looks at all entries."""
        self.tag_index = 1

    def drop_tag_index(self) -> None:
        """For compatibility."""
        self.tag_index = 0

    def stats(self, enable: bool = True, reset: bool = False) -> tuple[int, int]:
        """Hits and misses of this object, since they are counted."""
        found = (self._hits, self._misses)
        if reset:
            self._hits = self._misses = 0
        self.statistics = int(enable)
        return found

    def transact(self, retry: bool = False) -> Any:
        raise NotImplementedError(
            "changes of several keys are not made or taken back together; make one change of one key (incr, add, pop, "
            "push, Averager), or have a Lock around them"
        )

    def memoize(
        self,
        name: str | None = None,
        typed: bool = False,
        expire: float | None = None,
        tag: Any = None,
        ignore: Iterable[Any] = (),
        early: float | None = None,
    ) -> Callable[[Callable[..., Any]], Any]:
        """Keeps results of a function: ``@cache.memoize(expire=60)``. With ``early``, a result is computed again before it
        ends, as :func:`memoize_stampede` does; that is its ``beta``."""
        if callable(name):
            raise TypeError("memoize needs its brackets: @cache.memoize()")
        if early is not None:
            from oneread.cache.recipes import memoize_stampede

            if expire is None:
                raise ValueError("early= computes results before their end, and these have none; give expire=, too")
            return memoize_stampede(self, expire, name, typed, tag, early, ignore)

        def decorate(function: Callable[..., Any]) -> Any:
            base = full_name(function) if name is None else name
            return self._memoized(function, base, typed, expire, tag, ignore)

        return decorate

    def _memoized(
        self,
        function: Callable[..., Any],
        base: str,
        typed: bool,
        expire: float | None,
        tag: Any,
        ignore: Iterable[Any],
    ) -> Any:
        def cache_key(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
            return args_to_key((base,), args, kwargs, typed, ignore)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            key = cache_key(*args, **kwargs)
            result = self.get(key, ENOVAL)
            if result is ENOVAL:
                result = function(*args, **kwargs)
                if expire is None or expire > 0:
                    self.set(key, result, expire, tag=tag)
            return result

        wrapper.__cache_key__ = cache_key  # type: ignore[attr-defined]
        return wrapper

    # Its end.

    def snapshot(self, within: float = SNAPSHOT_WITHIN) -> None:
        """Writes a snapshot of all entries into the directory, and returns when it is there."""
        wait_for_snapshot(self._open().client, within)

    def close(self) -> None:
        """Closes it. The last process that does so waits for the snapshot. What is called later opens it again."""
        shared, self._shared = self._shared, None
        if shared is None:
            return
        place = shared._place
        shared.close()
        if os.path.isdir(self._directory):
            try:
                _place.save_if_last(place, wait_for_snapshot, SNAPSHOT_WITHIN)
            except (OnereadError, OSError) as error:
                # The folder in memory may have been removed.
                log.warning("no snapshot of the cache in %s: %s; its server tries again at its end", self._directory, error)

    def __enter__(self) -> Any:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> Any:
        return (self._directory, self._timeout, self._codec, self._settings)

    def __setstate__(self, state: Any) -> None:
        directory, timeout, codec, settings = state
        self.__init__(directory, timeout, codec=codec, **settings)  # type: ignore[misc]


def table_ttl(expire: float | None) -> float | None:
    """How long the table keeps what ends after so many seconds."""
    if expire is None or expire + SLACK >= TTL_MAX:
        return None
    return max(0.0, expire) + SLACK


def _first(pair: tuple[int, Any]) -> int:
    return pair[0]


def _with(value: Any, *more: tuple[Any, bool]) -> Any:
    """A value, or a tuple of it and of what else was asked for."""
    asked = [one for one, is_asked in more if is_asked]
    return (value, *asked) if asked else value


class _File(io.BytesIO):
    """The bytes of a value, as a file."""

    name: str


def _file(value: bytes, directory: str) -> io.BytesIO:
    file = _File(value)
    file.name = directory
    return file


__all__ = [
    "DEFAULT_SETTINGS",
    "ENOVAL",
    "EVICTION_POLICY",
    "UNKNOWN",
    "Cache",
    "Disk",
    "EmptyDirWarning",
    "JSONDisk",
    "Timeout",
    "UnknownFileWarning",
]
