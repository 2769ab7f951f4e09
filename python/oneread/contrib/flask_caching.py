"""A backend for Flask-Caching: ``CACHE_TYPE = "oneread.contrib.flask_caching.OnereadCache"``.

``CACHE_DIR`` is the directory, ``CACHE_THRESHOLD`` has no effect, and ``CACHE_OPTIONS`` are those of
:class:`oneread.cache.Cache`. Values are pickled, as its own backends do, unless the options have another ``codec``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flask_caching.backends.base import BaseCache  # type: ignore[import-not-found, import-untyped, unused-ignore]

from oneread.cache.core import Cache


class OnereadCache(BaseCache):  # type: ignore[misc, unused-ignore]
    def __init__(self, cache_dir: str, default_timeout: int = 300, **options: Any) -> None:
        super().__init__(default_timeout)
        self._cache = Cache(cache_dir, **{"codec": "pickle", **options})

    @classmethod
    def factory(cls, app: Any, config: dict[str, Any], args: list[Any], kwargs: dict[str, Any]) -> OnereadCache:
        # What else it gives is for its own backends.
        return cls(config["CACHE_DIR"], config["CACHE_DEFAULT_TIMEOUT"], **(config.get("CACHE_OPTIONS") or {}))

    def _expire(self, timeout: int | timedelta | None) -> float | None:
        """Seconds; ``None`` for 0, which Flask-Caching says for what does not end."""
        if timeout is None:
            timeout = self.default_timeout
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        return None if seconds == 0 else seconds

    def get(self, key: str) -> Any:
        return self._cache.get(key)

    def has(self, key: str) -> bool:
        return key in self._cache

    def set(self, key: str, value: Any, timeout: int | timedelta | None = None) -> bool:
        return self._cache.set(key, value, self._expire(timeout))

    def add(self, key: str, value: Any, timeout: int | timedelta | None = None) -> bool:
        return self._cache.add(key, value, self._expire(timeout))

    def delete(self, key: str) -> bool:
        return self._cache.delete(key)

    def clear(self) -> bool:
        self._cache.clear()
        return True

    def inc(self, key: str, delta: int = 1) -> Any:
        return self._cache.incr(key, delta)

    def dec(self, key: str, delta: int = 1) -> Any:
        return self._cache.decr(key, delta)
