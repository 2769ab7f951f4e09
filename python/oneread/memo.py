"""Results of functions that all processes share: what is behind :meth:`SharedDict.memoize`."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import hashlib
import inspect
import logging
import math
import os
import random
import struct
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from oneread import _keys
from oneread._errors import Busy, Invalid, OnereadError, Refused
from oneread._native import Client, time_to_live

log = logging.getLogger("oneread")
P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

# How long who waits for another's result sleeps between two looks: it doubles from the first to the last.
PAUSE_FIRST, PAUSE_MAX = 0.0001, 0.01
# How long a lock stays whose owner is gone from the server's view: killed, or connecting anew.
ABSENT = 1.0
# Owners have numbers from 1 to this.
OWNER_MAX = 65_534
# How many numbers are tried. One is refused while its owner is just going, or because this process may have none.
OWNER_TRIES = 100
# How often a lock is tried for, where each time its owner has gone.
LOCK_TRIES = 3

# Before a result that may be computed before its end: when it ends, in seconds since 1970, and the seconds that it took.
EARLY = struct.Struct("<dd")
# The name of a thread that computes a result before its end.
EARLY_THREAD = "oneread-early"
# Tasks that do: a loop has none itself.
EARLY_TASKS: set[asyncio.Task[None]] = set()

# The calls that this thread, or task, is within: the innermost last.
WITHIN: contextvars.ContextVar[tuple[Call, ...]] = contextvars.ContextVar("within", default=())


def canonical(value: Any) -> bytes:
    """Bytes that are the same in all processes for equal arguments. ``TypeError`` where that is not certain."""
    kind = type(value)
    if kind is str:
        raw = value.encode()
    elif kind is bytes:
        raw = value
    elif value is None or kind is bool or kind is int or kind is float:
        raw = repr(value).encode()
    elif kind is tuple or kind is list:
        raw = b"".join(map(canonical, value))
    elif kind is dict:
        raw = b"".join(sorted(canonical(pair) for pair in value.items()))
    elif kind is set or kind is frozenset:
        raw = b"".join(sorted(map(canonical, value)))
    else:
        raise TypeError(
            f"memoize does not know when two {kind.__name__} are the same; say it by key=, a function of the arguments"
        )
    return b"%b:%d:%b" % (kind.__name__.encode(), len(raw), raw)


def fingerprint(code: types.CodeType) -> bytes:
    """Bytes that are the same wherever this interpreter compiles the same text, and seldom for another one. What only
    says where the text stands is not in it.
    """
    parts = [code.co_code, code.co_exceptiontable, constant(code.co_consts)]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    parts.append(repr((names, counts)).encode())
    return canonical(parts)


def constant(value: Any) -> bytes:
    """The canonical form of a constant in code."""
    if isinstance(value, types.CodeType):
        return fingerprint(value)
    if isinstance(value, (tuple, frozenset)):
        parts = list(map(constant, value))
        # A set has another order in each process.
        return canonical([type(value).__name__, parts if isinstance(value, tuple) else sorted(parts)])
    return canonical([type(value).__name__, repr(value)])


def identity(function: Callable[..., Any], name: str | None) -> bytes:
    """What tells a function apart from all others of this user. ``TypeError`` where nothing does."""
    if name is not None:
        return canonical(("name", name))
    inner = inspect.unwrap(function)
    code, qualname = getattr(inner, "__code__", None), getattr(function, "__qualname__", "<unnamed>")
    # The main module has another name in children of multiprocessing.
    file = os.path.realpath(code.co_filename) if isinstance(code, types.CodeType) else str(function.__module__)
    if "<" in qualname or inspect.ismethod(function) or "<" in os.path.basename(file):
        raise TypeError(
            f"memoize cannot tell {qualname} of {file} apart from others of that name: it is a lambda, within a "
            "function, a bound method, or in no file; give it a name: memoize(name=...)"
        )
    if not isinstance(code, types.CodeType):
        return canonical((file, qualname))
    try:
        defaults = canonical([inner.__defaults__, inner.__kwdefaults__])
    except TypeError:
        # They are objects: who changes them calls `forget`.
        defaults = b""
    return canonical((file, qualname, fingerprint(code), defaults))


class Memoized(Protocol[P, R_co]):
    """A function whose results are kept."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    def forget(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Removes the result of this call. Returns whether it was there."""


class Decorator(Protocol):
    def __call__(self, function: Callable[P, R], /) -> Memoized[P, R]: ...


class Store(Protocol):
    """Where results are kept."""

    @property
    def name(self) -> str: ...
    @property
    def client(self) -> Client: ...
    @property
    def _evicts(self) -> bool: ...
    @property
    def _clients(self) -> list[Client]: ...
    def _ask(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any: ...
    def get_raw(self, raw: bytes) -> bytes | None: ...
    def put_raw(self, raw: bytes, value: Any, ttl: float | None) -> None: ...
    def dumps(self, value: Any) -> Any: ...
    def loads(self, raw: bytes) -> Any: ...


class Memo:
    """The locks of one dict in one process."""

    def __init__(self, shared: Store) -> None:
        self.shared = shared
        self.counts = {"hits": 0, "computed": 0, "early": 0, "waited": 0, "not_kept": 0, "unreadable": 0}
        self._guard = threading.RLock()
        self._owner: Client | None = None

    def owner(self) -> Client:
        """Whose entries go with this process."""
        with self._guard:
            if self._owner is None:
                self._owner = self.shared._ask(new_owner, self.shared.client, self.shared._evicts)
                self.shared._clients.append(self._owner)
            return self._owner

    def is_gone(self, owner: Client) -> None:
        """The server has seen nothing of this owner for a while, and takes nothing of it any more."""
        with self._guard:
            if self._owner is owner:
                # Other threads may just ask it: it closes when the last one has let go of it.
                self._drop()

    def is_child(self) -> None:
        """This process was made by `fork`: it is another owner."""
        self._guard = threading.RLock()
        self._drop()

    def _drop(self) -> None:
        with suppress(ValueError):
            self.shared._clients.remove(self._owner)  # type: ignore[arg-type]
        self._owner = None


def is_due(ends: float, took: float, early: float) -> bool:
    """Whether a result is to be computed now, before its end: the more likely, the nearer the end is and the longer it
    takes; with a greater ``early``, earlier. (Vattani, Chierichetti, Lowenstein: Optimal Probabilistic Cache Stampede
    Prevention, VLDB 2015.)"""
    return time.time() - took * early * math.log(1.0 - random.random()) >= ends


def new_owner(client: Client, evicts: bool) -> Client:
    """A client whose entries go with it, as an owner that nobody else is: it has an entry that says so, which goes
    with it, too."""
    refused: Refused | None = None
    for _ in range(OWNER_TRIES):
        number = random.SystemRandom().randint(1, OWNER_MAX)
        try:
            owner = client.owner(number, absent_for=ABSENT)
        except Refused as error:
            refused = error
            continue
        says = _keys.LOCK + b"%d" % number
        if owner.insert(says, b"") and (not evicts or owner.pin(says)):
            return owner
        owner.close()
    raise refused or Busy(f"{OWNER_TRIES} owners have numbers of others; try again")


class Call:
    """One call of a memoized function, whose result may be there, be computed by another, or by this one."""

    def __init__(
        self, memo: Memo, digest: bytes, ttl: float | None, lock_ttl: float | None, early: float | None
    ) -> None:
        self.memo, self.ttl, self.lock_ttl, self.early = memo, ttl, lock_ttl, early
        self.result, self.lock = _keys.RESULT + digest, _keys.LOCK + digest
        self.token = os.urandom(8)
        self.holder: Client | None = None
        self.value: Any = None
        self.is_computing = False
        self.unreadable: bytes | None = None
        # The result as it was found, and whether it is to be computed before its end.
        self.raw: bytes | None = None
        self.is_due = False
        self.begun = 0.0

    def is_there(self) -> bool:
        """Whether there is a result, which is :attr:`value` then. One that the codec cannot read is none: it is
        computed again, and replaced."""
        shared = self.memo.shared
        try:
            raw = shared.get_raw(self.result)
        except Invalid:
            raise
        except OnereadError as error:
            log.warning("nobody knows whether a result is in %r: %s", shared.name, error)
            return False
        if raw is None or raw == self.unreadable:
            return False
        try:
            if self.early is None:
                self.value = shared.loads(raw)
            else:
                ends, took = EARLY.unpack_from(raw)
                self.value = shared.loads(raw[EARLY.size :])
                self.is_due = is_due(ends, took, self.early)
        except Exception as error:
            # What a codec raises may be anything.
            self.unreadable = raw
            self.memo.counts["unreadable"] += 1
            log.warning("a result in %r cannot be read, and is computed again: %r", shared.name, error)
            return False
        self.raw = raw
        self.memo.counts["hits"] += 1
        return True

    def begins_early(self) -> bool:
        """Whether this call is to compute the result that it has found once more. Of all that are due, one does."""
        if not self.is_due or self.is_within_itself():
            return False
        memo = self.memo
        try:
            holder = memo.owner()
            try:
                if not memo.shared._ask(self._is_locked, holder):
                    return False
            except Refused:
                memo.is_gone(holder)
                return False
            # Another may have just done it.
            if memo.shared.get_raw(self.result) != self.raw:
                self.let_go()
                return False
        except OnereadError as error:
            log.warning("a result in %r is not computed before its end: %s", memo.shared.name, error)
            return False
        memo.counts["early"] += 1
        return True

    def is_within_itself(self) -> bool:
        """Whether this thread, or task, is just computing this result: to wait for it would be to wait for itself."""
        name = self.memo.shared.name
        return any(
            call.is_computing and call.result == self.result and call.memo.shared.name == name
            for call in WITHIN.get()
        )

    @contextmanager
    def computing(self) -> Iterator[None]:
        """While this call computes."""
        outer = WITHIN.get()
        WITHIN.set((*outer, self))
        self.is_computing = True
        self.begun = time.monotonic()
        try:
            yield
        finally:
            # A task that was begun meanwhile has a copy, and it may go on for longer.
            self.is_computing = False
            WITHIN.set(outer)
            self.let_go()

    def is_mine(self) -> bool:
        """Whether this call is to compute the result: nobody else does from now on."""
        memo, shared = self.memo, self.memo.shared
        why: OnereadError | None = None
        for _ in range(LOCK_TRIES):
            try:
                holder = memo.owner()
                try:
                    return bool(shared._ask(self._is_locked, holder))
                except Refused as error:
                    memo.is_gone(holder)
                    why = error
            except Invalid:
                raise
            except OnereadError as error:
                why = error
                break
        # It may not be kept either.
        log.warning("a result of %r is computed without a lock: %s", shared.name, why)
        return True

    def _is_locked(self, holder: Client) -> bool:
        """Whether this call has the lock now. If it may have it from before its server went, it looks."""
        shared = self.memo.shared
        if not holder.insert(self.lock, self.token, ttl=self.lock_ttl) and shared.get_raw(self.lock) != self.token:
            return False
        self.holder = holder
        # If it has gone before it was pinned, it is tried for again.
        if shared._evicts and not holder.pin(self.lock):
            self.holder = None
        return self.holder is not None

    def pauses(self) -> Iterator[float]:
        """How long to wait before each further look. It ends when there is a result, or this call is to compute
        it: :attr:`is_found` says which."""
        pause = PAUSE_FIRST
        self.is_found = self.is_there()
        if not self.is_found and self.is_within_itself():
            # It computes once more, without a lock, as the function would by itself.
            return
        while not self.is_found:
            if self.is_mine():
                # It may have come between the look and the lock.
                self.is_found = self.is_there()
                if self.is_found:
                    self.let_go()
                return
            if pause == PAUSE_FIRST:
                self.memo.counts["waited"] += 1
            yield pause
            pause = min(2 * pause, PAUSE_MAX)
            self.is_found = self.is_there()

    def keep(self, value: Any) -> None:
        self.memo.counts["computed"] += 1
        shared = self.memo.shared
        try:
            raw = shared.dumps(value)
            if self.early is not None:
                assert self.ttl is not None, "who computes early says when results end"
                raw = b"".join((EARLY.pack(time.time() + self.ttl, time.monotonic() - self.begun), raw))
            shared.put_raw(self.result, raw, self.ttl)
        except Exception as error:
            # It was asked for, and is there. What a codec raises may be anything.
            self.memo.counts["not_kept"] += 1
            log.warning("a result is not kept in %r: %s", shared.name, error)

    def let_go(self) -> None:
        holder, self.holder = self.holder, None
        if holder is not None:
            shared = self.memo.shared
            # The lock may have ended, and be another's now. Where this fails, it ends with its owner.
            with suppress(OnereadError):
                shared._ask(holder.compare_exchange, self.lock, self.token, None)
            if shared._evicts:
                with suppress(OnereadError):
                    holder.unpin(self.lock)


def memoized(
    open_memo: Callable[[], Memo],
    name: str | None,
    ttl: float | None,
    key: Callable[..., Any] | None,
    lock_ttl: float | None,
    early: float | None,
) -> Decorator:
    """The decorator. ``open_memo`` is called when a result is asked for."""
    ttl, lock_ttl = time_to_live("ttl", ttl), time_to_live("lock_ttl", lock_ttl)
    if early is not None and not 0 < early < math.inf:
        raise ValueError(f"early={early!r}: it is a number more than 0; 1 is as good as any")
    if early is not None and ttl is None:
        raise ValueError("early= computes results before their end, and these have none; give ttl=, too")

    def decorate(function: Callable[P, R], /) -> Memoized[P, R]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__qualname__} is a generator, whose result cannot be kept; return a list")
        its_own = identity(function, name)

        def digest(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
            what = (args, kwargs) if key is None else key(*args, **kwargs)
            # Results with a time before them are others.
            kind = (its_own, what) if early is None else (its_own, what, "early")
            return hashlib.blake2b(canonical(kind), digest_size=16).digest()

        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
            return Call(open_memo(), digest(args, kwargs), ttl, lock_ttl, early)

        def compute_early(asked: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            try:
                with asked.computing():
                    asked.keep(function(*args, **kwargs))
            except Exception:
                # The old result stays until its end, and who comes then has the exception.
                log.warning("%s failed before its result's end", function.__qualname__, exc_info=True)

        async def compute_early_async(asked: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            try:
                with asked.computing():
                    asked.keep(await cast(Any, function(*args, **kwargs)))
            except Exception:
                log.warning("%s failed before its result's end", function.__qualname__, exc_info=True)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            asked = call(args, kwargs)
            for pause in asked.pauses():
                time.sleep(pause)
            if asked.is_found:
                if asked.begins_early():
                    compute = threading.Thread(target=compute_early, args=(asked, args, kwargs), name=EARLY_THREAD, daemon=True)
                    compute.start()
                return asked.value
            with asked.computing():
                value = function(*args, **kwargs)
                asked.keep(value)
                return value

        @functools.wraps(function)
        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            asked = call(args, kwargs)
            for pause in asked.pauses():
                await asyncio.sleep(pause)
            if asked.is_found:
                if asked.begins_early():
                    task = asyncio.get_running_loop().create_task(compute_early_async(asked, args, kwargs))
                    EARLY_TASKS.add(task)
                    task.add_done_callback(EARLY_TASKS.discard)
                return asked.value
            with asked.computing():
                value = await cast(Any, function(*args, **kwargs))
                asked.keep(value)
                return value

        def forget(*args: Any, **kwargs: Any) -> bool:
            shared = open_memo().shared
            return bool(shared._ask(shared.client.remove, _keys.RESULT + digest(args, kwargs)))

        chosen: Any = async_wrapper if inspect.iscoroutinefunction(function) else wrapper
        chosen.forget = forget
        return chosen  # type: ignore[no-any-return]

    return decorate
