"""A cache for Django: ``"BACKEND": "oneread.cache.djangocache.DjangoCache"``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache  # type: ignore[import-untyped, unused-ignore]

from oneread.cache._calls import full_name
from oneread.cache.core import Cache
from oneread.cache.fanout import FanoutCache
from oneread.cache.persistent import Deque, Index


class DjangoCache(BaseCache):  # type: ignore[misc, unused-ignore]
    """``LOCATION`` is the directory; ``OPTIONS`` are those of :class:`oneread.cache.FanoutCache`. Values are pickled, as
    Django's own backends do, unless ``OPTIONS`` has another ``codec``."""

    def __init__(self, directory: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        options = {"codec": "pickle", **params.get("OPTIONS", {})}
        # Django's own, for the base class.
        for name in ("MAX_ENTRIES", "CULL_FREQUENCY"):
            options.pop(name, None)
        self._cache = FanoutCache(
            directory, params.get("SHARDS", 8), params.get("DATABASE_TIMEOUT", 0.01), **options
        )

    @property
    def directory(self) -> str:
        return self._cache.directory

    def cache(self, name: str) -> Cache:
        return self._cache.cache(name)

    def deque(self, name: str, maxlen: int | None = None) -> Deque:
        return self._cache.deque(name, maxlen)

    def index(self, name: str) -> Index:
        return self._cache.index(name)

    def _key(self, key: Any, version: int | None) -> Any:
        key = self.make_key(key, version=version)
        self.validate_key(key)
        return key

    def add(
        self,
        key: Any,
        value: Any,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = True,
    ) -> bool:
        expire = self.get_backend_timeout(timeout)
        return self._cache.add(self._key(key, version), value, expire, read, tag)

    def get(
        self,
        key: Any,
        default: Any = None,
        version: int | None = None,
        read: bool = False,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        return self._cache.get(self._key(key, version), default, read, expire_time, tag)

    def read(self, key: Any, version: int | None = None) -> Any:
        return self._cache.read(self._key(key, version))

    def set(
        self,
        key: Any,
        value: Any,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = True,
    ) -> bool:
        expire = self.get_backend_timeout(timeout)
        return self._cache.set(self._key(key, version), value, expire, read, tag)

    def touch(
        self, key: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None, retry: bool = True
    ) -> bool:
        return self._cache.touch(self._key(key, version), self.get_backend_timeout(timeout))

    def pop(
        self,
        key: Any,
        default: Any = None,
        version: int | None = None,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = True,
    ) -> Any:
        return self._cache.pop(self._key(key, version), default, expire_time, tag)

    def delete(self, key: Any, version: int | None = None, retry: bool = True) -> bool:
        return self._cache.delete(self._key(key, version))

    def incr(
        self, key: Any, delta: int = 1, version: int | None = None, default: int | None = None, retry: bool = True
    ) -> Any:
        try:
            return self._cache.incr(self._key(key, version), delta, default)
        except KeyError:
            raise ValueError(f"Key '{key}' not found") from None

    def decr(
        self, key: Any, delta: int = 1, version: int | None = None, default: int | None = None, retry: bool = True
    ) -> Any:
        return self.incr(key, -delta, version, default)

    def has_key(self, key: Any, version: int | None = None) -> bool:
        return self._key(key, version) in self._cache

    def expire(self) -> int:
        return self._cache.expire()

    def stats(self, enable: bool = True, reset: bool = False) -> tuple[int, int]:
        return self._cache.stats(enable, reset)

    def create_tag_index(self) -> None:
        self._cache.create_tag_index()

    def drop_tag_index(self) -> None:
        self._cache.drop_tag_index()

    def evict(self, tag: Any) -> int:
        return self._cache.evict(tag)

    def cull(self) -> int:
        return self._cache.cull()

    def clear(self) -> int:
        return self._cache.clear()

    def close(self, **_: Any) -> None:
        """Django calls it after each request: the cache stays open, so that no request waits for a snapshot."""

    def get_backend_timeout(self, timeout: Any = DEFAULT_TIMEOUT) -> float | None:
        """Seconds until an entry ends; ``None``: it does not."""
        if timeout is DEFAULT_TIMEOUT:
            timeout = self.default_timeout
        return None if timeout is None else max(0.0, float(timeout))

    def memoize(
        self,
        name: str | None = None,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
        typed: bool = False,
        tag: Any = None,
        ignore: Iterable[Any] = (),
    ) -> Callable[[Callable[..., Any]], Any]:
        """Keeps results of a function."""
        if callable(name):
            raise TypeError("memoize needs its brackets: @cache.memoize()")
        expire = self.get_backend_timeout(timeout)

        def decorate(function: Callable[..., Any]) -> Any:
            base = self.make_key(full_name(function) if name is None else name, version=version)
            return self._cache._memoized(function, base, typed, expire, tag, ignore)

        return decorate

