"""Caches, deques and ordered dicts in directories, with the interface of diskcache's: ``import oneread.cache as diskcache``.

docs/PYTHON.md says what is otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oneread.cache.core import (
    DEFAULT_SETTINGS,
    ENOVAL,
    EVICTION_POLICY,
    UNKNOWN,
    Cache,
    Disk,
    EmptyDirWarning,
    JSONDisk,
    Timeout,
    UnknownFileWarning,
)
from oneread.cache.fanout import FanoutCache
from oneread.cache.persistent import Deque, Index
from oneread.cache.recipes import (
    Averager,
    BoundedSemaphore,
    Lock,
    RLock,
    barrier,
    memoize_stampede,
    throttle,
)

if TYPE_CHECKING:
    from oneread.cache.djangocache import DjangoCache


def __getattr__(name: str) -> Any:
    """`DjangoCache`, which needs Django, when it is asked for."""
    if name == "DjangoCache":
        from oneread.cache.djangocache import DjangoCache

        return DjangoCache
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "DEFAULT_SETTINGS",
    "ENOVAL",
    "EVICTION_POLICY",
    "UNKNOWN",
    "Averager",
    "BoundedSemaphore",
    "Cache",
    "Deque",
    "DjangoCache",
    "Disk",
    "EmptyDirWarning",
    "FanoutCache",
    "Index",
    "JSONDisk",
    "Lock",
    "RLock",
    "Timeout",
    "UnknownFileWarning",
    "barrier",
    "memoize_stampede",
    "throttle",
]
