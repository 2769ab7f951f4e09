"""What engines publish and adapters are used with: fakes with these versions' names and signatures, or the engines'
own classes (`engines.py`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import engines


class HiCacheStorage(ABC):
    """Of SGLang 0.5.23, sglang/srt/mem_cache/hicache_storage.py: what the adapter has in its place."""

    @abstractmethod
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any: ...
    @abstractmethod
    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> Any: ...
    @abstractmethod
    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool: ...
    @abstractmethod
    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool: ...
    @abstractmethod
    def exists(self, key: str) -> bool: ...
    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int: ...  # type: ignore[empty-body]
    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any: ...
    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> Any: ...
    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> Any: ...
    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> Any: ...
    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> Any: ...


class PoolName(str, Enum):
    KV = "kv"
    MAMBA = "mamba"

    def __str__(self) -> str:
        return self.value


class PoolHitPolicy(str, Enum):
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"
    BLOCK_GROUPS = "block_groups"


@dataclass
class PoolTransfer:
    name: PoolName
    host_indices: Any = None
    device_indices: Any = None
    keys: list[str] | None = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES


@dataclass
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict[str, int]
    restorable_prefix_pages: list[int] | None = None


class LookupResult(Enum):
    """Of vLLM 0.33.0, vllm/v1/kv_offload/base.py."""

    MISS = auto()
    HIT = auto()
    HIT_PENDING = auto()
    RETRY = auto()


class SecondaryTierManager(ABC):
    """Of vLLM 0.33.0, vllm/v1/kv_offload/tiering/base.py: the call that asks."""

    @abstractmethod
    def lookup(self, key: bytes, req_context: Any) -> LookupResult: ...


FAKES: dict[str, Any] = {
    of.__name__: of
    for of in (
        HiCacheStorage,
        PoolName,
        PoolHitPolicy,
        PoolTransfer,
        PoolTransferResult,
        LookupResult,
        SecondaryTierManager,
    )
}
if engines.FOLDER:
    globals().update(engines.published())
