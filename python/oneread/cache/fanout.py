"""A cache with diskcache's interface of one in shards: :class:`FanoutCache`."""

from __future__ import annotations

import os
from typing import Any

from oneread.cache.core import DEFAULT_SETTINGS, Cache, Disk
from oneread.cache.persistent import Deque, Index


class FanoutCache(Cache):
    """A :class:`Cache`. Writers do not wait for each other here, so there are no shards: ``shards`` only divides
    ``size_limit``, as diskcache does."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        shards: int = 8,
        timeout: float = 0.01,
        disk: type[Disk] = Disk,
        **settings: Any,
    ) -> None:
        self._shards = [self]
        self._count = shards
        settings["size_limit"] = settings.get("size_limit", DEFAULT_SETTINGS["size_limit"]) // shards
        super().__init__(directory, timeout, disk, **settings)

    def _limit(self) -> int:
        return super()._limit() * self._count

    def __getstate__(self) -> Any:
        limit = self._settings.get("size_limit", 0) * self._count
        return (self._directory, self._count, self._timeout, self._codec, {**self._settings, "size_limit": limit})

    def __setstate__(self, state: Any) -> None:
        directory, shards, timeout, codec, settings = state
        self.__init__(directory, shards, timeout, codec=codec, **settings)  # type: ignore[misc]

    def _within(self, kind: str, name: str) -> str:
        return os.path.join(self._directory, kind, *name.split("/"))

    def _own(self, settings: dict[str, Any]) -> dict[str, Any]:
        """What is within a cache with a log has one, too."""
        return {"durable": self._durable, **settings}

    def cache(self, name: str, timeout: float = 60, disk: type[Disk] | None = None, **settings: Any) -> Cache:
        """A cache of its own in a directory within this one's."""
        return Cache(self._within("cache", name), timeout, disk or Disk, codec=self._codec, **self._own(settings))

    def deque(self, name: str, maxlen: int | None = None) -> Deque:
        """A deque in a directory within this one's."""
        cache = Cache(self._within("deque", name), codec=self._codec, **self._own({"eviction_policy": "none"}))
        return Deque.fromcache(cache, maxlen=maxlen)

    def index(self, name: str) -> Index:
        """An ordered dict in a directory within this one's."""
        cache = Cache(self._within("index", name), codec=self._codec, **self._own({"eviction_policy": "none"}))
        return Index.fromcache(cache)
