"""What programs build of a cache: averages, locks, limits, and results that are computed before they end."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from oneread.cache._calls import ENOVAL, args_to_key, full_name
from oneread.cache.core import Cache
from oneread.memo import EARLY_THREAD as EARLY
from oneread.memo import is_due

# How long who waits for a lock sleeps between two looks.
PAUSE = 0.001


class Averager:
    """The average of numbers that several processes add."""

    def __init__(self, cache: Cache, key: Any, expire: float | None = None, tag: Any = None) -> None:
        self._cache, self._key, self._expire, self._tag = cache, key, expire, tag

    def add(self, value: float) -> None:
        def more(found: Any) -> tuple[float, int]:
            total, count = (0.0, 0) if found is ENOVAL else found
            return total + value, count + 1

        self._cache._alter(self._key, more, self._expire, self._tag)

    def get(self) -> float | None:
        """The average; ``None`` if nothing was added."""
        return _average(self._cache.get(self._key))

    def pop(self) -> float | None:
        """The average, which begins again."""
        return _average(self._cache.pop(self._key))


def _average(found: Any) -> float | None:
    return None if found is None else found[0] / found[1]


class Lock:
    """A lock among processes. It stays when its holder is killed, unless ``expire`` says how long."""

    def __init__(self, cache: Cache, key: Any, expire: float | None = None, tag: Any = None) -> None:
        self._cache, self._key, self._expire, self._tag = cache, key, expire, tag

    def acquire(self) -> None:
        while not self._cache.add(self._key, None, expire=self._expire, tag=self._tag):
            time.sleep(PAUSE)

    def release(self) -> None:
        self._cache.delete(self._key)

    def locked(self) -> bool:
        return self._key in self._cache

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock:
    """A lock among processes and threads, which its holder may take again."""

    def __init__(self, cache: Cache, key: Any, expire: float | None = None, tag: Any = None) -> None:
        self._cache, self._key, self._expire, self._tag = cache, key, expire, tag

    @staticmethod
    def _me() -> str:
        return f"{os.getpid()}-{threading.get_ident()}"

    def acquire(self) -> None:
        me = self._me()
        while True:
            taken = False

            def take(found: Any) -> tuple[str, int]:
                nonlocal taken
                holder, count = ("", 0) if found is ENOVAL else found
                taken = count == 0 or holder == me
                return (me, count + 1) if taken else (holder, count)

            self._cache._alter(self._key, take, self._expire, self._tag)
            if taken:
                return
            time.sleep(PAUSE)

    def release(self) -> None:
        me = self._me()

        def let_go(found: Any) -> tuple[str, int]:
            holder, count = ("", 0) if found is ENOVAL else found
            if holder != me or count == 0:
                raise AssertionError("cannot release un-acquired lock")
            return me, count - 1

        self._cache._alter(self._key, let_go, self._expire, self._tag)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class BoundedSemaphore:
    """So many may be within it at once, of all processes."""

    def __init__(
        self, cache: Cache, key: Any, value: int = 1, expire: float | None = None, tag: Any = None
    ) -> None:
        self._cache, self._key, self._value, self._expire, self._tag = cache, key, value, expire, tag

    def acquire(self) -> None:
        while True:
            taken = False

            def take(found: Any) -> int:
                nonlocal taken
                left: int = self._value if found is ENOVAL else found
                taken = left > 0
                return left - taken

            self._cache._alter(self._key, take, self._expire, self._tag)
            if taken:
                return
            time.sleep(PAUSE)

    def release(self) -> None:
        def let_go(found: Any) -> int:
            left: int = self._value if found is ENOVAL else found
            if left >= self._value:
                raise AssertionError("cannot release un-acquired semaphore")
            return left + 1

        self._cache._alter(self._key, let_go, self._expire, self._tag)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def throttle(
    cache: Cache,
    count: float,
    seconds: float,
    name: str | None = None,
    expire: float | None = None,
    tag: Any = None,
    time_func: Callable[[], float] = time.time,
    sleep_func: Callable[[float], None] = time.sleep,
) -> Callable[[Callable[..., Any]], Any]:
    """Lets a function begin ``count`` times in ``seconds``, of all processes. The others wait."""

    def decorate(function: Callable[..., Any]) -> Any:
        rate = count / seconds
        key = full_name(function) if name is None else name

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            while True:
                wait = 0.0

                def take(found: Any) -> tuple[float, float]:
                    nonlocal wait
                    now = time_func()
                    last, left = (now, count) if found is ENOVAL else found
                    left = min(count, left + (now - last) * rate)
                    wait = 0.0 if left >= 1 else (1 - left) / rate
                    return (now, left) if wait else (now, left - 1)

                cache._alter(key, take, expire, tag)
                if not wait:
                    return function(*args, **kwargs)
                sleep_func(wait)

        return wrapper

    return decorate


def barrier(
    cache: Cache,
    lock_factory: Callable[..., Any],
    name: str | None = None,
    expire: float | None = None,
    tag: Any = None,
) -> Callable[[Callable[..., Any]], Any]:
    """Has a function wait for a lock: ``Lock``, ``RLock`` or ``BoundedSemaphore``."""

    def decorate(function: Callable[..., Any]) -> Any:
        lock = lock_factory(cache, full_name(function) if name is None else name, expire=expire, tag=tag)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with lock:
                return function(*args, **kwargs)

        return wrapper

    return decorate


def memoize_stampede(
    cache: Cache,
    expire: float,
    name: str | None = None,
    typed: bool = False,
    tag: Any = None,
    beta: float = 1,
    ignore: Iterable[Any] = (),
) -> Callable[[Callable[..., Any]], Any]:
    """Keeps results of a function for ``expire`` seconds. Before one ends, a call now and then computes it again in a
    thread: the more likely, the nearer the end is and the longer it takes. A greater ``beta`` begins earlier."""

    def decorate(function: Callable[..., Any]) -> Any:
        base = (full_name(function) if name is None else name,)

        def computed(key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            begun = time.time()
            result = function(*args, **kwargs)
            cache.set(key, (result, time.time() - begun), expire=expire, tag=tag)
            return result

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            key = wrapper.__cache_key__(*args, **kwargs)  # type: ignore[attr-defined]
            found, ends = cache.get(key, ENOVAL, expire_time=True)
            if found is ENOVAL:
                return computed(key, args, kwargs)
            result, took = found
            # One computes it at a time.
            if ends is not None and is_due(ends, took, beta) and cache.add((*key, "early"), None, expire=max(took, 0.001)):
                threading.Thread(target=computed, args=(key, args, kwargs), name=EARLY, daemon=True).start()
            return result

        def cache_key(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
            return args_to_key(base, args, kwargs, typed, ignore)

        wrapper.__cache_key__ = cache_key  # type: ignore[attr-defined]
        return wrapper

    return decorate
