"""The engines' own classes, out of their wheels, without a GPU.

``ONEREAD_ENGINES`` names a folder that they are installed in (``pip install --no-deps --target``). Only the modules
that have the classes are loaded: no ``__init__`` of the packages, which need all else that engines import; and torch,
which the modules import for their annotations, is a stub where it is not installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

FOLDER = os.environ.get("ONEREAD_ENGINES", "")

HICACHE = "sglang.srt.mem_cache.hicache_storage"
PUBLISHED = {
    HICACHE: ["HiCacheStorage", "PoolName", "PoolHitPolicy", "PoolTransfer", "PoolTransferResult"],
    "vllm.v1.kv_offload.base": ["LookupResult"],
    "vllm.v1.kv_offload.tiering.base": ["SecondaryTierManager"],
}


class Stub(ModuleType):
    """A module whose names are all there, and are types."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def packages(module: str) -> None:
    """Makes the packages of a module, without what their ``__init__`` does."""
    parts = module.split(".")[:-1]
    for length in range(1, len(parts) + 1):
        name = ".".join(parts[:length])
        if name not in sys.modules:
            package = ModuleType(name)
            package.__path__ = [os.path.join(FOLDER, *parts[:length])]
            sys.modules[name] = package


def published() -> dict[str, Any]:
    """The classes, by their names."""
    sys.path.append(FOLDER)
    if importlib.util.find_spec("torch") is None:
        sys.modules["torch"] = Stub("torch")
    for module in PUBLISHED:
        packages(module)
    found = ((importlib.import_module(module), names) for module, names in PUBLISHED.items())
    return {name: getattr(module, name) for module, names in found for name in names}


def backend(name: str, module: str, config: dict[str, Any]) -> Any:
    """A storage that SGLang itself loads as its ``dynamic`` backend."""
    factory = importlib.import_module("sglang.srt.mem_cache.storage.backend_factory").StorageBackendFactory
    storage = importlib.import_module(HICACHE).HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        **config,
        extra_config={"backend_name": "oneread", "module_path": module, "class_name": name, "interface_v1": 1},
    )
    return factory.create_backend("dynamic", storage, None)
