"""A dict that all processes of this user share: :class:`SharedDict`."""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import weakref
from contextlib import suppress
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from fractions import Fraction
from itertools import filterfalse, islice, starmap
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias, overload

from oneread import _codecs, _entries, _keys, _place
from oneread._errors import Disconnected, Full, Invalid, KeyTooLong, OnereadError, Refused, SystemRefused, Undecoded
from oneread._keys import Key
from oneread._native import Changes, Client, time_to_live
from oneread.aio import AsyncChanges, DictChange, DictChanges
from oneread.memo import Decorator, Memo, memoized

log = logging.getLogger("oneread")

Lives: TypeAlias = Literal["until last", "for ever"] | float

# Those that are open, for `oneread.metrics`.
OPEN: weakref.WeakValueDictionary[int, SharedDict] = weakref.WeakValueDictionary()

# What is not opened yet.
OPENING: weakref.WeakSet[_Opening] = weakref.WeakSet()

UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
MISSING: Any = object()
# How often a call is made again that may happen twice.
AGAIN = 2
# How many keys go at once where all go.
CLEARED = 4096
# What a dict is made as of which nothing else is asked.
MADE = {"codec": "pickle", "evict": None, "lives": "until last", "key_max": None, "value_max": None}
MADE |= {"users": None, "metrics": None, "snapshot_every": None, "directory": None, "durable": None}
# The most memory, where nothing is said, and there is as much.
MEMORY = 1 << 30
# Seconds between snapshots, where a directory for them is named, and there is no log.
SNAPSHOT_EVERY = 60.0

Durable: TypeAlias = Literal["1s", "always"]


NEVER_PICKLE = "a pickle of another user runs code; take codec='plain', 'msgpack' or 'raw'"


def byte_count(size: int | str) -> int:
    """``64 << 20``, or ``"64MiB"``."""
    if isinstance(size, int):
        return size
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
    if parts is None or parts[2].upper() not in UNITS:
        raise ValueError(f"no size: {size!r}; say it in bytes, or as in '64MiB', '1.5GiB'")
    return math.ceil(Fraction(parts[1]) * UNITS[parts[2].upper()])


def checked_durable(durable: str | None) -> str | None:
    """When a log is on the disk; ``None``: there is no log."""
    if durable not in (None, "1s", "always"):
        raise ValueError(
            f"durable={durable!r}: it is '1s' (a change is on the disk a second later), 'always' (before the call returns), or None"
        )
    return durable


def _outlives(
    name: str, every: float | None, directory: str | os.PathLike[str] | None, durable: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """How a dict outlives the machine, and where: what is asked, and what is made of it where nothing is. Nothing where it
    does not."""
    if every is None and directory is None and checked_durable(durable) is None:
        return {}, {}
    if every is not None and not 0 < every < math.inf:
        raise ValueError(f"snapshot_every={every!r}: it is a number of seconds")
    where = _place.state_directory(name) if directory is None else Path(directory)
    asked: dict[str, Any] = {"durable": checked_durable(durable), "directory": str(where.expanduser().resolve())}
    asked["snapshot_every"] = None if every is None else float(every)
    # A server with a log makes snapshots when that has become long.
    return asked, {} if durable is not None else {"snapshot_every": SNAPSHOT_EVERY}


class SharedDict(MutableMapping[Key, Any]):
    """A dict that all processes of this user on this host share, by its name.

    The first that opens it starts a server process. All read its memory by themselves, and ask the server for changes.
    A value that was got is a copy: a change of it is seen when it is put again.

    ``memory``: the most that it may take, in bytes or as in ``"8GiB"``; it begins with some MiB. Default: 1 GiB, or four
    fifths of what is free in ``/dev/shm``.
    ``ttl``: seconds after which an entry ends that this object puts, unless the call says otherwise.
    ``codec``: ``"pickle"``, ``"plain"`` (Python's plain types; nothing runs that a value says), ``"msgpack"``, ``"raw"``
    (values are bytes), or a pair of functions (dumps, loads).
    ``evict``: what happens where it is full. ``None``: a put of another key raises :class:`Full`. ``"s3-fifo"``,
    ``"sieve"``, ``"clock"``: an entry leaves that was not read lately.
    ``lives``: ``"until last"``: as long as a process has it open. A number: and so many seconds more.
    ``"for ever"``: until :func:`oneread.delete_dict`, or until the machine stops; ``oneread stop`` stops a server, and
    no entry is lost.
    ``key_max``, ``value_max``: the longest key and value in bytes, as they are stored.
    ``create=False``: it must be there.
    ``snapshot_every``: it outlives its server and the machine: a snapshot is written so often, in seconds, and at the end of
    the server; the next one begins with it. ``directory``: where; without it, below ``$XDG_STATE_HOME`` or
    ``~/.local/state``. Say it each time.
    ``durable``: its server keeps a log of all changes in that directory, too, and a power cut takes no more than the changes of
    the last second (``"1s"``), or none that a call has returned for or that anybody has read (``"always"``: each change waits
    for the disk). Say it each time.
    ``metrics``: where its server answers scrapes of Prometheus, as ``"127.0.0.1:9464"``. Whoever reaches that may read counts.
    ``users``: other users, by name or number, who may open it with ``user=`` and this one's name, read it and change it. Values
    are ``"plain"`` then, or of another codec that runs nothing. ``user``: whose it is. A process of another user does not
    keep it open, and starts no server for it.

    What is given must be as it was made (:class:`Incompatible` otherwise), but for ``ttl``. What is not is as it was
    made.

    **Pickle runs code.** Whoever may put into the dict can run anything in every process that gets from it. That is
    this user, and nobody else unless you share the folder. Take ``"plain"``, ``"msgpack"`` or ``"raw"`` if that is too
    much.

    Without a server, because that was killed or stopped, the next call of any process starts one, which takes over the
    table. A call that may have happened already, and would not be the same twice, raises :class:`Disconnected` then:
    ``del`` and :meth:`pop` of a key that has gone meanwhile, and changes by :attr:`client`.

    What the codec cannot read raises :class:`Undecoded`, which names the key. A loop over :meth:`items` or
    :meth:`values` can go on behind it, with the next ``next``.

    Any thread may use it, and a child made by `fork`. It can be pickled: whoever unpickles it opens it by name, as long
    as it is there.
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
        snapshot_every: float | None = None,
        directory: str | os.PathLike[str] | None = None,
        durable: Durable | None = None,
        metrics: str | None = None,
        users: Iterable[int | str] | None = None,
        user: int | str | None = None,
        start_within: float = 30.0,
        _made: dict[str, Any] | None = None,
        _asked: dict[str, Any] | None = None,
    ) -> None:
        is_time = isinstance(lives, (int, float)) and 0 <= lives < math.inf
        if not (lives is None or lives in ("until last", "for ever") or is_time):
            raise ValueError(f"lives={lives!r}: it is 'until last', 'for ever', or a number of seconds")
        outlives, kept_so = _outlives(name, snapshot_every, directory, durable)
        asked: dict[str, Any] = {
            "memory": None if memory is None else byte_count(memory),
            "codec": None if codec is None else _codecs.codec_of(codec)[0],
            "evict": evict,
            "lives": "until last" if lives == 0 else lives,
            "key_max": key_max,
            "value_max": None if value_max is None else byte_count(value_max),
            "metrics": metrics,
            "users": None if users is None else sorted({_place.uid_of(one) for one in users}),
            **outlives,
            **(_asked or {}),
        }
        if users is not None and codec is None:
            asked["codec"] = "plain"
        if users is not None and asked["codec"] == "pickle":
            raise ValueError(NEVER_PICKLE)
        self._asked = {what: how for what, how in asked.items() if how is not None}
        self._ttl = time_to_live("ttl", ttl)
        self._own_codec = codec if isinstance(codec, tuple) else None
        self._start_within = start_within
        # A signal's handler may close it while its thread has this.
        self._lock = threading.RLock()
        # What it is made as, where it is not there.
        self._made: dict[str, Any] = {**MADE, **kept_so, **(_made or {})}
        server_uids = []
        self._fd: int | None = None
        self._user = user
        if user is None or _place.uid_of(user) == os.geteuid():
            self._place = _place.found(name, asked["users"])
            if "memory" not in self._made:
                self._made |= _place.memory_for(MEMORY)
            self._fd, about = _place.open_place(self._place, create, self._asked, self._made, start_within)
        else:
            self._place, uid, about = _place.of_other(name, user)
            _place.check_asked(name, self._asked, about)
            if about["codec"] == "pickle":
                raise Refused(f"the shared dict {name!r} of user {user} has pickles: {NEVER_PICKLE}")
            server_uids.append(uid)
        # Its own, and the owner of its locks.
        self._clients: list[Client] = []
        self._feeds: weakref.WeakSet[Changes] = weakref.WeakSet()
        ends = (self._feeds, self._clients, self._place, self._fd, _place.stays(about))
        self._closing = weakref.finalize(self, _end, *ends)
        try:
            self._name_codec, self.dumps, self.loads = _codecs.codec_of(self._codec(about["codec"]))
            self._client = Client(self._place.address, server_uids=server_uids, _mender=_mender(self))
        except BaseException:
            self._closing()
            raise
        self._clients.append(self._client)
        self._evicts = about["evict"] is not None
        # What it may take is what was free when it was made.
        self._is_limited = bool(about.get("is_limited")) and "memory" not in self._asked
        # What other codecs write may begin as what stands before a value.
        self._takes_tags = self._name_codec not in ("raw", "own")
        # A lookup less for each call.
        self._get, self._value, self._put = self._client.get, self._client._value, self._client.put
        self._key_max = self._client.key_max
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

    def __reduce__(self) -> tuple[Any, ...]:
        options = {**self._asked, "create": False, "ttl": self._ttl, "user": self._user, "start_within": self._start_within}
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
        """The client that it is made of, for keys and values as bytes (:meth:`raw_key`). Without a server, its calls
        start one, too. A change that may have been made is not made again: it raises :class:`Disconnected`, whose
        ``maybe_made`` is true.
        """
        return self._client

    @staticmethod
    def raw_key(key: Key) -> bytes:
        """The bytes of a key. A longer one than the table takes stands in it as a hash."""
        return _keys.encode(key)

    def stats(self) -> dict[str, Any]:
        """The counts of its client, and of :meth:`memoize` in this process; as ``"host"`` the gets of all processes since its
        server started: ``gets``, ``hits``, ``misses``. The others tell it of theirs every 64."""
        host: dict[str, int] | None = None
        # Nobody counts without a server.
        with suppress(OnereadError):
            host = self._client.get_counts()
        memo = {} if self._memo is None else self._memo.counts.copy()
        return {**self._client.stats(), "memoize": memo, "host": host or {}}

    def __repr__(self) -> str:
        return f"SharedDict({self.name!r})"

    # Its end.

    def close(self) -> None:
        """Lets go of it, and closes its feeds. As the last one, with ``lives="until last"``, ends it, and with it all
        entries."""
        with self._lock:
            self._closing()
            OPEN.pop(id(self), None)

    def __enter__(self) -> SharedDict:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _mend(self, error: Disconnected) -> None:
        """Its server is gone: killed, or told to stop. Starts another, which takes over the table."""
        with self._lock:
            if not self._closing.alive or self._fd is None:
                # Another user's server is started by that user's programs.
                raise error
            _place.check_here(self._place, self._fd)
            log.warning("the server of the shared dict %r is gone: %s", self.name, error)
            fd, _ = _place.open_place(self._place, True, self._asked, self._made, self._start_within)
            os.close(fd)

    def _ask(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """What a call gives that may happen twice. (The client has started a server where none was there.)"""
        for _ in range(AGAIN):
            try:
                return self._change(call, *args, **named)
            except Disconnected as error:
                if not error.maybe_made:
                    raise
        return self._change(call, *args, **named)

    def _change(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """What a call gives that may need memory."""
        try:
            return call(*args, **named)
        except (SystemRefused, Full) as error:
            raise _place.no_memory(error, self._is_limited) from error

    def _loaded(self, key: Key, raw: bytes) -> Any:
        """The value of a key."""
        try:
            if self._takes_tags and raw[:1] == _entries.LETTER:
                raw = _entries.split(raw)[1]
            return self.loads(raw)
        except Exception as error:
            # What a codec raises may be anything.
            raise _undecoded(key, f"the value of {key!r}, {len(raw)} bytes", self.name, error) from error

    # Keys and values as the table has them. A longer key than it takes is a hash, and stands before its value.

    def _placed(self, key: Key) -> tuple[bytes, bytes | None]:
        """What the table has for a key; and the key's bytes, if these stand before the value."""
        raw = _keys.encode(key)
        if len(raw) <= self._key_max:
            return raw, None
        hashed = _keys.hashed(raw)
        if len(hashed) > self._key_max:
            raise KeyTooLong(
                f"the key has {len(raw)} bytes, and its hash {len(hashed)}; the dict takes keys of {self._key_max} (key_max=)"
            )
        return hashed, raw

    def _stored(self, before: bytes | None, value: Any) -> Any:
        return value if before is None else _keys.before(before, value)

    def _payload(self, value: Any, tag: Any) -> Any:
        """The bytes of a value, behind its tag."""
        raw = self.dumps(value)
        if tag is None:
            return raw
        if not self._takes_tags:
            raise ValueError("what codec='raw' or one of your own writes has no place for a tag; take another codec")
        return _entries.joined(_entries.Head(None, 0, _entries.tag_bytes(tag)), raw)

    def _split(self, found: bytes) -> tuple[_entries.Head, bytes]:
        return _entries.split(found) if self._takes_tags else (_entries.BARE, found)

    def _found(self, key: Key, before: bytes | None, stored: bytes) -> bytes | None:
        """The value that stands there; ``None`` if it is another key's."""
        if before is None:
            return stored
        try:
            there, value = _keys.split(stored)
        except ValueError as error:
            raise _undecoded(key, f"the value of {key!r}, {len(stored)} bytes", self.name, error) from error
        return value if there == before else None

    def _get_long(self, key: Key) -> bytes | None:
        placed, before = self._placed(key)
        stored = self._get(placed)
        return None if stored is None else self._found(key, before, stored)

    # One entry.

    def __getitem__(self, key: Key) -> Any:
        value = self.get(key, MISSING)
        if value is MISSING:
            raise KeyError(key)
        return value

    def get(self, key: Key, default: Any = None) -> Any:
        try:
            if type(key) is str and key:
                # Most keys are text, and most values are made without a call of Python's.
                return self._value(key, default, self._name_codec, self._loaded)
            value = self._get(_keys.encode(key))
        except KeyTooLong:
            value = self._get_long(key)
        return default if value is None else self._loaded(key, value)

    def get_raw(self, raw: bytes) -> bytes | None:
        return self._get(raw)

    def __contains__(self, key: object) -> bool:
        return self._placed(key)[0] in self._client  # type: ignore[arg-type]

    def put(self, key: Key, value: Any, *, ttl: float | None = None, tag: Any = None) -> None:
        """Puts an entry that ends after ``ttl`` seconds; without it, after those of the dict, if it has any. ``tag``: what
        :meth:`clear` removes it by, together with others; a plain value. It goes with the value."""
        placed, before = self._placed(key)
        self.put_raw(placed, self._stored(before, self._payload(value, tag)), self._ttl_or(ttl))

    def add(self, key: Key, value: Any, *, ttl: float | None = None, tag: Any = None) -> bool:
        """Puts an entry if the key is absent. Whether it was. Of several processes, one puts."""
        placed, before = self._placed(key)
        made = self._stored(before, self._payload(value, tag))
        return bool(self._change(self._client.insert, placed, made, ttl=self._ttl_or(ttl)))

    def tag(self, key: Key) -> Any:
        """The tag of an entry; ``None`` if it has none. ``KeyError`` if it is absent."""
        placed, before = self._placed(key)
        stored = self.get_raw(placed)
        found = None if stored is None else self._found(key, before, stored)
        if found is None:
            raise KeyError(key)
        try:
            return _entries.tag_of(self._split(found)[0].tag)
        except Exception as error:
            raise _undecoded(key, f"the tag of {key!r}", self.name, error) from error

    def incr(self, key: Key, delta: int = 1, *, initial: int | None = 0, ttl: float | None = None) -> int:
        """Adds to a number of 64 bits, and returns what it is then: no other change comes between. An absent key counts as
        ``initial``, and its entry ends after ``ttl`` seconds; with ``None`` it is a ``KeyError``. A value that is no number
        is :class:`Invalid`, and so is a sum out of range. Not with a codec of your own that keeps numbers otherwise than
        as decimal text.
        """
        placed, before = self._placed(key)
        if before is not None:
            return self._incr_here(key, delta, initial, ttl)
        life = self._ttl_or(ttl) if initial is not None else None
        try:
            number = self._change(self._client.incr, placed, delta, initial=initial, ttl=life)
        except Invalid:
            # It may stand behind a tag.
            return self._incr_here(key, delta, initial, ttl)
        if number is None:
            raise KeyError(key)
        return int(number)

    def _incr_here(self, key: Key, delta: int, initial: int | None, ttl: float | None) -> int:
        """Adds to a number behind its whole key, or its tag: by compare-and-swap."""
        placed, before = self._placed(key)
        while True:
            stored = self._get(placed)
            found = None if stored is None else self._found(key, before, stored)
            head = _entries.BARE
            if stored is None or found is None:
                if initial is None:
                    raise KeyError(key)
                number = initial
            else:
                head, payload = self._split(found)
                number = _codecs.number_of(payload)
            number += delta
            if not -_codecs.INT_END <= number < _codecs.INT_END:
                raise Invalid(f"the number is {number - delta}, and {delta:+} would take it out of 64 bits")
            text = b"%d" % number
            now = self._stored(before, text if head == _entries.BARE else _entries.joined(head, text))
            if stored is None:
                if self._change(self._client.insert, placed, now, ttl=self._ttl_or(ttl)):
                    return number
            elif self._change(self._client.compare_exchange, placed, stored, now):
                return number

    def touch(self, key: Key, *, ttl: float | None = None) -> bool:
        """Has the entry end ``ttl`` seconds from now; without it, after those of the dict, or not at all. Its value stays.
        Whether it is there."""
        return bool(self._ask(self._client.touch, self._placed(key)[0], ttl=self._ttl_or(ttl)))

    def expire(self, key: Key, ttl: float) -> bool:
        """Has the entry end ``ttl`` seconds from now. Whether it is there."""
        return self.touch(key, ttl=ttl)

    def ttl(self, key: Key) -> float | None:
        """The seconds that the entry still has; ``None`` if it does not end by itself. ``KeyError`` if it is absent."""
        life = self._client.life(self._placed(key)[0])
        if life is None:
            raise KeyError(key)
        return life.ends_in

    def _ttl_or(self, ttl: float | None) -> float | None:
        return self._ttl if ttl is None else time_to_live("ttl", ttl)

    def put_raw(self, raw: bytes, value: Any, ttl: float | None) -> None:
        # Twice is as good as once.
        self._ask(self._put, raw, value, ttl=ttl)

    def __setitem__(self, key: Key, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Key) -> None:
        raw = self._placed(key)[0]
        try:
            was_there = self._client.remove(raw)
        except Disconnected as error:
            if not error.maybe_made:
                raise
            was_there = self._client.remove(raw)
            if not was_there:
                # Nobody knows whether this call has removed it.
                raise
        if not was_there:
            raise KeyError(key)

    def setdefault(self, key: Key, default: Any = None) -> Any:
        """The value that is there; else puts this one. Of several processes, one puts."""
        raw, before = self._placed(key)
        made = self._stored(before, self.dumps(default))
        while True:
            stored = self.get_raw(raw)
            value = None if stored is None else self._found(key, before, stored)
            if value is not None:
                return self._loaded(key, value)
            try:
                if self._change(self._client.insert, raw, made, ttl=self._ttl):
                    return default
            except Disconnected as error:
                # If it was put, it is the value that is there.
                if not error.maybe_made:
                    raise

    @overload
    def pop(self, key: Key, /) -> Any: ...
    @overload
    def pop(self, key: Key, /, default: Any) -> Any: ...
    def pop(self, key: Key, default: Any = MISSING) -> Any:
        """Takes an entry out. Of several processes, one gets it. What the codec cannot read stays, and raises
        :class:`Undecoded`."""
        raw, before = self._placed(key)
        lost: Disconnected | None = None
        while (stored := self.get_raw(raw)) is not None and (value := self._found(key, before, stored)) is not None:
            taken = self._loaded(key, value)
            try:
                if self._client.compare_exchange(raw, stored, None):
                    return taken
            except Disconnected as error:
                if not error.maybe_made:
                    raise
                # If it is there again, this call has not taken it.
                lost = error
        if lost is not None:
            # Nobody knows whether this call has taken it.
            raise lost
        if default is MISSING:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[Key, Any]:
        """Takes any entry out. Of several processes, one gets it. What the codec cannot read stays; it raises
        :class:`Undecoded` where nothing else is left."""
        unreadable: Undecoded | None = None
        for key in self:
            try:
                value = self.pop(key, MISSING)
            except Undecoded as error:
                unreadable = error
                continue
            if value is not MISSING:
                return key, value
        raise unreadable or KeyError("the dict is empty")

    # Results of functions.

    def memo(self) -> Memo:
        with self._lock:
            if self._memo is None:
                self._memo = Memo(self)
            return self._memo

    def memoize(
        self,
        *,
        name: str | None = None,
        ttl: float | None = None,
        key: Callable[..., Any] | None = None,
        lock_ttl: float | None = None,
        early: float | None = None,
    ) -> Decorator:
        """As :func:`oneread.memoize`, in this dict. The dict does not show results as entries."""
        return memoized(self.memo, name, self._ttl_or(ttl), key, lock_ttl, early)

    # What happens.

    def changes(self, *, start: Literal["now", "keys"] = "now") -> DictChanges:
        """What happens from now on; with ``"keys"``, all that is there first."""
        feed = self._client.changes(start=start, values=True)
        self._feeds.add(feed)
        return DictChanges(feed, self._entry)

    def changes_async(self, *, start: Literal["now", "keys"] = "now") -> AsyncChanges[DictChange]:
        """As ``changes``, for ``async for``."""
        return self.changes(start=start).asynchronous()

    # Many entries.

    def get_many(
        self, keys: Iterable[Key], default: Any = None, *, undecoded: Callable[[Undecoded], Any] | None = None
    ) -> list[Any]:
        """The values of these keys, in their order, by one call. A value that the codec cannot read raises
        :class:`Undecoded`; with ``undecoded``, what that function makes of the error stands in its place.
        """
        keys = list(keys)
        placed = [self._placed(key) for key in keys]
        values = self._client.get_many([raw for raw, _ in placed])
        found = []
        for key, (_, before), stored in zip(keys, placed, values):
            try:
                value = None if stored is None else self._found(key, before, stored)
                found.append(default if value is None else self._loaded(key, value))
            except Undecoded as error:
                if undecoded is None:
                    raise
                found.append(undecoded(error))
        return found

    def put_many(
        self, entries: Mapping[Key, Any] | Iterable[tuple[Key, Any]], *, ttl: float | None = None, tag: Any = None
    ) -> None:
        """Puts these entries by one call. Others may see some of them before the rest."""
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        keys, values = [], []
        for key, value in pairs:
            placed, before = self._placed(key)
            keys.append(placed)
            values.append(self._stored(before, self._payload(value, tag)))
        self._ask(self._client.put_many, keys, values, ttl=self._ttl_or(ttl))

    def update(self, entries: Any = (), /, **named: Any) -> None:
        """As that of a dict, by one call."""
        pairs = dict(entries)
        pairs.update(named)
        self.put_many(pairs)

    def clear(self, *, prefix: str | bytes | None = None, tag: Any = None) -> None:
        """Removes all that is there, results of :meth:`memoize` included; not its locks: who computes goes on alone. With
        ``prefix``: the keys that are text, or bytes, and begin so. With ``tag``: the entries that have it; looks at all."""
        if tag is not None:
            self._clear_tagged(_entries.tag_bytes(tag), prefix)
            return
        if prefix is None:
            found: Iterator[bytes] = filterfalse(_keys.is_lock, self._client.scan())
        else:
            found = self._beginning(prefix)
        while some := list(islice(found, CLEARED)):
            self._ask(self._client.remove_many, some)

    def _clear_tagged(self, tag: bytes, prefix: str | bytes | None) -> None:
        for placed, stored in self._client.scan(values=True):
            if _keys.is_hidden(placed):
                continue
            try:
                raw, found = _keys.split(stored) if placed[:1] == _keys.HASHED else (placed, stored)
                is_tagged = self._split(found)[0].tag == tag
            except ValueError:
                # Another program's, which has no tag.
                continue
            # An entry that has changed since stays.
            if is_tagged and _keys.begins(raw, prefix):
                self._ask(self._client.compare_exchange, placed, stored, None)

    def _beginning(self, prefix: str | bytes) -> Iterator[bytes]:
        """What the table has for keys that begin so."""
        raw = prefix.encode() if isinstance(prefix, str) else _keys.BYTES + prefix
        if prefix == "":
            # All text, and that begins with every byte.
            yield from (key for key in self._client.scan() if _keys.begins(key, prefix))
        else:
            yield from self._client.scan(prefix=raw)
        # Longer keys stand before their values.
        for key, stored in self._client.scan(prefix=_keys.HASHED, values=True):
            if _keys.begins(_keys.split(stored)[0], prefix):
                yield key

    # All entries.

    def __len__(self) -> int:
        """How many entries the table has now: those that have just ended, and results of :meth:`memoize`, included.
        A question to the server."""
        return len(self._client)

    def _key(self, raw: bytes) -> Key:
        try:
            return _keys.decode(raw)
        except ValueError as error:
            raise _undecoded(raw, f"a key of {len(raw)} bytes, {raw!r},", self.name, error) from error

    def _entry(self, placed: bytes, stored: bytes | None) -> tuple[Key, Any]:
        """The entry that the table has so. Of a longer key that has gone, its hash."""
        if placed[:1] != _keys.HASHED:
            key = self._key(placed)
            return key, None if stored is None else self._loaded(key, stored)
        if stored is None:
            return placed, None
        key = self._long_key(placed, stored)
        return key, self._loaded(key, _keys.split(stored)[1])

    def _long_key(self, placed: bytes, stored: bytes) -> Key:
        try:
            raw, _ = _keys.split(stored)
        except ValueError as error:
            raise _undecoded(placed, "a key that stands before its value", self.name, error) from error
        return self._key(raw)

    def __iter__(self) -> Iterator[Key]:
        """All keys, in no order. One that is there throughout is shown once; one that comes or goes meanwhile once
        or not at all."""
        return _Keys(self)

    def items(self) -> ItemsView[Key, Any]:
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        return _Values(self)


class _Keys(Iterator[Key]):
    """Keys by a scan. An error does not end it, as it would end a generator."""

    def __init__(self, shared: SharedDict) -> None:
        self._shared = shared
        self._found = filterfalse(_keys.is_hidden, shared._client.scan())

    def __next__(self) -> Key:
        for placed in self._found:
            if placed[:1] != _keys.HASHED:
                return self._shared._key(placed)
            # A longer key stands before its value, if it has not gone since.
            stored = self._shared.get_raw(placed)
            if stored is not None:
                return self._shared._long_key(placed, stored)
        raise StopIteration


class _Items(ItemsView[Key, Any]):
    """Entries by one scan, and not by a get for each."""

    _mapping: SharedDict

    def __iter__(self) -> Iterator[tuple[Key, Any]]:
        shared = self._mapping

        def is_hidden(found: tuple[bytes, bytes]) -> bool:
            return _keys.is_hidden(found[0])

        # As that over its keys.
        found: Iterator[tuple[bytes, bytes]] = shared._client.scan(values=True)
        shown: Iterator[tuple[bytes, bytes]] = filterfalse(is_hidden, found)
        return starmap(shared._entry, shown)


class _Values(ValuesView[Any]):
    _mapping: SharedDict

    def __iter__(self) -> Iterator[Any]:
        return map(itemgetter(1), self._mapping.items())

    def __contains__(self, value: object) -> bool:
        return any(found is value or found == value for found in self)


def _undecoded(key: Key, what: str, name: str, error: Exception) -> Undecoded:
    """What a caller is told whose codec has raised this."""
    told = Undecoded(
        f"{what} of the shared dict {name!r} cannot be read: {type(error).__name__}: {error}; put it again, or remove it"
    )
    told.key = key
    return told


def _mender(shared: SharedDict) -> Callable[[Disconnected], None]:
    """What has a server started for the client of a dict, as long as that is there."""
    known = weakref.ref(shared)

    def mend(error: Disconnected) -> None:
        shared = known()
        if shared is None:
            raise error
        shared._mend(error)

    return mend


def _end(
    feeds: weakref.WeakSet[Changes], clients: list[Client], place: _place.Place, fd: int | None, stays: bool
) -> None:
    """Lets go of a dict. Its feeds and clients close first: a server that ends is no news to them."""
    for feed in list(feeds):
        feed.close()
    for client in clients:
        client.close()
    _place.let_go(place, fd, stays)


def _is_child() -> None:
    """This process was made by `fork`: threads that are not there may have had locks."""
    for opening in list(OPENING):
        opening.lock = threading.RLock()
    for shared in list(OPEN.values()):
        shared._lock = threading.RLock()
        if shared._memo is not None:
            shared._memo.is_child()


os.register_at_fork(after_in_child=_is_child)


def _opened(name: str, options: dict[str, Any]) -> SharedDict:
    return SharedDict(name, **options)


class _Opening:
    """The dict that `memoize` opens at the first call."""

    def __init__(self, open_dict: Callable[[], SharedDict]) -> None:
        self.lock = threading.RLock()
        self._open_dict = open_dict
        self._memo: Memo | None = None
        OPENING.add(self)

    def memo(self) -> Memo:
        if self._memo is None:
            with self.lock:
                if self._memo is None:
                    self._memo = self._open_dict().memo()
        return self._memo


def memoize(
    shared: str = "memoize",
    /,
    *,
    name: str | None = None,
    ttl: float | None = None,
    key: Callable[..., Any] | None = None,
    lock_ttl: float | None = None,
    early: float | None = None,
    **options: Any,
) -> Decorator:
    """Keeps results of a function for all processes: ``@oneread.memoize(ttl=60)``.

    The first that asks for a result computes it, and the others that ask meanwhile wait for it: in all threads, tasks
    and processes of this user, one computes. If its process is killed, another begins about a second later. An
    exception goes to whoever computed; it is not kept, and one of those who wait computes then.

    Functions are told apart by file, name, code and defaults. A function that was changed has none of its old results;
    of what it calls, nobody looks at the code. ``name``: what tells it apart instead, for as long as you say. A lambda,
    a function within a function, a bound method, and one that is in no file need it (``TypeError`` otherwise): others
    of that kind may have the same name. Calls are told apart by their arguments: ``None``, bool, int, float, str,
    bytes, and lists, tuples, dicts and sets of them. ``key``: a function of the arguments that returns what tells calls
    apart.

    ``ttl``: seconds after which a result ends. ``lock_ttl``: seconds after which another computes, although the first
    is still at it; without it, all wait as long as that takes. ``early``: nobody waits for a result that ends. Before its end,
    a call now and then computes it again beside, and returns the old one: the more likely, the nearer the end is and the
    longer it takes; 1 is as good as any number, and a greater one begins earlier. ``f.forget(*args)`` removes a result.

    They are kept in the :class:`SharedDict` named ``shared``, which the first call opens, with the other options. What
    cannot be kept is returned nevertheless, with a warning.
    """
    return memoized(_Opening(lambda: SharedDict(shared, **options)).memo, name, ttl, key, lock_ttl, early)


def delete_dict(name: str, *, directory: str | os.PathLike[str] | None = None, within: float = 30.0) -> bool:
    """Stops the server of a :class:`SharedDict` that no process has open, and removes all that it held, its snapshot
    included; ``directory`` says where that is, if the dict said so. Returns whether it was there. :class:`Busy` if a process
    has it open.
    """
    where: Path | None = None if directory is None else Path(directory).resolve()
    if where is None:
        # Without a home there is none.
        with suppress(ValueError):
            where = _place.state_directory(name)
    return _place.delete(_place.found(name, None), where, within)


def metrics() -> dict[str, dict[str, Any]]:
    """The counts of each dict that this process has open, by its name: what its client did, and `memoize`."""
    return {shared.name: shared.stats() for shared in list(OPEN.values())}
