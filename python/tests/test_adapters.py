"""The adapters, against fakes that have the engines' signatures. What is written of these was read in the packages."""

from __future__ import annotations

import ctypes
import inspect
import sys
from collections.abc import Iterator
from enum import Enum
from types import SimpleNamespace
from typing import Any

import engines
import published
import pytest
from native import served
from published import (
    FAKES,
    HiCacheStorage,
    LookupResult,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
    SecondaryTierManager,
)

import oneread
from oneread import Location
from oneread.adapters.hicache import HiCacheIndex, scope_of
from oneread.adapters.mooncake import StoreIndex
from oneread.adapters.vllm import TierIndex

PAGE, SLOTS = 64, 4


@pytest.fixture
def client() -> Iterator[oneread.Client]:
    with served(**oneread.LocationIndex.table()) as (_, client):
        yield client


def has_signatures(ours: type, fake: type) -> None:
    """Those that the fake has, of the engine's own class where it is there."""
    names = [name for name, of in vars(fake).items() if inspect.isfunction(of) and name != "__init__"]
    assert names
    published_one = getattr(published, fake.__name__, fake)
    for name in names:
        mine, theirs = (inspect.signature(getattr(of, name)).parameters.values() for of in (ours, published_one))
        shape = [(of.name, of.kind, of.default is of.empty) for of in theirs]
        assert [(of.name, of.kind, of.default is of.empty) for of in mine] == shape, name


# ---- SGLang ----


class Registers:
    """What SGLang's class does with pools."""

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        self.__dict__.setdefault("registered_pools", {})[host_pool_name] = host_pool


class HostPool:
    """A pool of pages with keys and values apart, as SGLang's page-first layout has them."""

    page_size = SLOTS

    def __init__(self, pages: int) -> None:
        self.memory = bytearray(2 * PAGE * pages)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self._values = PAGE * pages

    def get_page_buffer_meta(self, indices: list[int]) -> tuple[list[int], list[int]]:
        starts = [self._start + PAGE * (index // SLOTS) for index in indices[::SLOTS]]
        addresses = [address for start in starts for address in (start, start + self._values)]
        return addresses, [PAGE] * len(addresses)

    def fill(self, page: int, byte: int) -> None:
        for start in (PAGE * page, self._values + PAGE * page):
            self.memory[start : start + PAGE] = bytes([byte]) * PAGE

    def has(self, page: int) -> set[int]:
        starts = (PAGE * page, self._values + PAGE * page)
        return {byte for start in starts for byte in self.memory[start : start + PAGE]}


class Network:
    """Memory of all engines: one for each endpoint."""

    def __init__(self) -> None:
        self.arenas: dict[str, bytearray] = {}
        self.after_fetch: Any = lambda: None


class Arena:
    """The memory of an engine that others reach."""

    def __init__(self, network: Network, name: str, pages: int = 100) -> None:
        self.network, self.name, self.pages = network, name, pages
        self.memory = network.arenas[name] = bytearray(2 * PAGE * pages)
        self.next, self.freed = 0, []  # type: int, list[Location]

    def store(self, texts: Any, pages: Any) -> list[tuple[int, int, int] | None]:
        places: list[tuple[int, int, int] | None] = []
        for page in pages:
            if self.next == self.pages:
                places.append(None)
                continue
            begins = 2 * PAGE * self.next
            self.next += 1
            self.memory[begins : begins + 2 * PAGE] = b"".join(ctypes.string_at(*piece) for piece in page)
            places.append((1, begins, 2 * PAGE))
        return places

    def fetch(self, wanted: Any) -> list[bool]:
        for endpoint, place, page in wanted:
            data = bytes(self.network.arenas[endpoint][place.address : place.address + place.length])
            for address, size in page:
                ctypes.memmove(address, data[:size], size)
                data = data[size:]
        self.network.after_fetch()
        return [True] * len(wanted)

    def free(self, places: Any) -> None:
        self.freed.extend(places)


class Storage(HiCacheIndex, Registers, HiCacheStorage):
    pass


def engine(client: oneread.Client, network: Network, number: int, pages: int = 16) -> tuple[Storage, HostPool, Arena]:
    name = f"engine {number}"
    arena, pool = Arena(network, name), HostPool(pages)
    index = oneread.LocationIndex(client)
    storage = Storage(index, name, number, arena, absent_for=60.0, scope="|m", result=PoolTransferResult)
    storage.register_mem_pool_host(pool)
    return storage, pool, arena


def indices(*pages: int) -> list[int]:
    return [SLOTS * page + slot for page in pages for slot in range(SLOTS)]


@pytest.mark.skipif(not engines.FOLDER, reason="the engines' wheels are not installed (ONEREAD_ENGINES)")
def test_fakes_are_as_published() -> None:
    """What the other tests take for the engines', where those are not there."""
    for name, fake in FAKES.items():
        real = getattr(published, name)
        assert real is not fake
        if issubclass(fake, Enum):
            assert {one.name for one in fake} <= {one.name for one in real}
            assert all(one.value == real[one.name].value for one in fake if isinstance(one.value, str))
        elif hasattr(fake, "__dataclass_fields__"):
            mine, theirs = (list(inspect.signature(of).parameters.values()) for of in (fake, real))
            of_these = [(one.name, one.default is one.empty) for one in mine]
            assert [(one.name, one.default is one.empty) for one in theirs][: len(mine)] == of_these
            assert all(one.default is not one.empty for one in theirs[len(mine) :])
        else:
            has_signatures(fake, fake)
            assert set(fake.__abstractmethods__) <= set(real.__abstractmethods__)


class Loaded(HiCacheIndex, Registers, HiCacheStorage):
    """As docs say to make one."""

    address, arena = "", None  # type: str, Any

    def __init__(self, storage_config: Any, kwargs: Any) -> None:
        index, scope = oneread.LocationIndex(oneread.Client(self.address)), scope_of(storage_config)
        super().__init__(index, "engine 1", 1, self.arena, scope=scope, result=PoolTransferResult)


@pytest.mark.skipif(not engines.FOLDER, reason="the engines' wheels are not installed (ONEREAD_ENGINES)")
def test_sglang_loads_a_storage(client: oneread.Client) -> None:
    Loaded.address, Loaded.arena = client.address, Arena(Network(), "engine 1")
    ranks = {"pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1, "is_mla_model": False}
    layout = {"enable_storage_metrics": False, "is_page_first_layout": True, "model_name": "m"}
    sys.modules["storages_of_tests"] = sys.modules[__name__]
    storage = engines.backend("Loaded", "storages_of_tests", {**ranks, **layout})
    assert type(storage) is Loaded and isinstance(storage, HiCacheStorage)
    storage.register_mem_pool_host(HostPool(16))
    keys = [str(n) for n in range(4)]
    assert storage.batch_set_v1(keys[:3], indices(0, 1, 2)) == [True] * 3
    assert storage.batch_exists(keys) == 3 and storage.batch_get_v1(keys[:3], indices(4, 5, 6)) == [True] * 3


def test_hicache_has_the_signatures_of_sglang() -> None:
    has_signatures(HiCacheIndex, FAKES["HiCacheStorage"])


def test_engines_fetch_each_others_pages(client: oneread.Client) -> None:
    network = Network()
    (a, a_pool, _), (b, b_pool, b_arena) = (engine(client, network, number) for number in (1, 2))
    keys = [f"{n:064x}" for n in range(4)]
    for page in range(3):
        a_pool.fill(page, 10 + page)
    assert a.batch_set_v1(keys[:3], indices(0, 1, 2)) == [True] * 3
    assert b.batch_exists(keys) == 3 and b.exists(keys[0]) and not b.exists(keys[3])
    assert b.batch_get_v1(keys, indices(4, 5, 6, 7)) == [True, True, True, False]
    assert [b_pool.has(page) for page in (4, 5, 6, 7)] == [{10}, {11}, {12}, {0}]
    # What another has stored is not stored again.
    assert b.batch_set_v1(keys, indices(4, 5, 6, 7)) == [True] * 4
    assert b.batch_set_v1(keys, indices(4, 5, 6, 7)) == [True] * 4
    assert b_arena.next == 1 and b_arena.freed == []
    assert b.batch_exists([]) == 0 and b.batch_get_v1([], []) == b.batch_set_v1([], []) == []
    assert b.batch_exists_v2([], [PoolTransfer(PoolName.MAMBA)]) == PoolTransferResult(0, {}, [])
    assert a.forget([keys[0] + "|m"], [Location(a._endpoint, 1, 0, 2 * PAGE)]) == 1 and not b.exists(keys[0])
    # Its engine begins anew, and none of its pages is there.
    assert b.batch_exists(keys[1:]) == 3
    engine(client, network, 1)
    assert b.batch_exists(keys[1:]) == 0 and b.batch_exists(keys[3:]) == 1


def test_a_page_that_goes_while_it_is_fetched_is_not_valid(client: oneread.Client) -> None:
    network = Network()
    (a, _, _), (b, _, _) = (engine(client, network, number) for number in (1, 2))
    a.batch_set_v1(["x", "y"], indices(0, 1))
    index = oneread.LocationIndex(client)

    def goes() -> None:
        index.remove(["y|m"], index.locate_many(["y|m"])[1])

    network.after_fetch = goes
    assert b.batch_get_v1(["x", "y"], indices(0, 1)) == [True, False]


def test_who_is_second_frees_its_memory(client: oneread.Client) -> None:
    network = Network()
    (a, _, a_arena), (b, _, b_arena) = (engine(client, network, number) for number in (1, 2))
    stores = b_arena.store

    def late(texts: Any, pages: Any) -> Any:
        a.batch_set_v1(["x"], indices(0))
        return stores(texts, pages)

    b_arena.store = late  # type: ignore[method-assign]
    assert b.batch_set_v1(["x", "y"], indices(0, 1)) == [True, True]
    assert [place.address for place in b_arena.freed] == [0] and a_arena.freed == []
    # A page twice in a call is stored once; what finds no room is said.
    assert a.batch_set_v1(["z", "z"], indices(2, 2)) == [True, True] and a_arena.next == 2
    a_arena.pages = a_arena.next
    assert a.batch_set_v1(["z", "w"], indices(2, 3)) == [True, False]


def test_a_full_table_frees_what_it_does_not_take() -> None:
    with served(slots=64, **oneread.LocationIndex.table()) as (_, client):
        storage, _, arena = engine(client, Network(), 1, pages=100)
        keys = [str(n) for n in range(100)]
        stored = storage.batch_set_v1(keys, indices(*range(100)))
        assert 0 < sum(stored) < 64
        assert len(arena.freed) == 100 - sum(stored)
        assert [storage.exists(key) for key in keys] == stored


def test_other_pools_have_policies(client: oneread.Client) -> None:
    storage, _, _ = engine(client, Network(), 1)
    storage.register_mem_host_pool_v2(HostPool(16), PoolName.MAMBA)
    keys = [str(n) for n in range(8)]
    storage.batch_set_v1(keys[:6], indices(*range(6)))
    there = [keys[n] for n in (0, 1, 3, 4)]
    transfer = PoolTransfer(PoolName.MAMBA, host_indices=indices(0, 1, 2, 3), keys=there)
    assert storage.batch_set_v2([transfer]) == {"mamba": [True] * 4}
    assert storage.batch_get_v2([transfer]) == {"mamba": [True] * 4}

    def asked(policy: PoolHitPolicy, wanted: int = 0) -> PoolTransferResult:
        result = storage.batch_exists_v2(keys, [PoolTransfer(PoolName.MAMBA, keys=keys[:wanted], hit_policy=policy)])
        assert isinstance(result, PoolTransferResult)
        return result

    assert storage.batch_exists_v2(keys) == PoolTransferResult(6, {"kv": 6}, [1, 2, 3, 4, 5, 6])
    assert asked(PoolHitPolicy.ALL_PAGES) == PoolTransferResult(2, {"kv": 6, "mamba": 2}, [1, 2])
    assert asked(PoolHitPolicy.TRAILING_PAGES, 1) == PoolTransferResult(5, {"kv": 6, "mamba": 5}, [1, 2, 4, 5])
    assert asked(PoolHitPolicy.TRAILING_PAGES, 2) == PoolTransferResult(5, {"kv": 6, "mamba": 5}, [1, 2, 5])
    assert asked(PoolHitPolicy.TRAILING_PAGES, 3) == PoolTransferResult(2, {"kv": 6, "mamba": 2}, [1, 2])
    with pytest.raises(ValueError, match="not known"):
        asked(PoolHitPolicy.BLOCK_GROUPS)


def test_ranks_have_pages_of_their_own() -> None:
    config = SimpleNamespace(
        model_name="m", pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, dcp_rank=0, dcp_size=1, is_mla_model=False
    )
    scopes = {scope_of(SimpleNamespace(**{**vars(config), "tp_rank": rank, "tp_size": 2})) for rank in (0, 1)}
    assert len(scopes) == 2
    latent = {**vars(config), "is_mla_model": True}
    scopes = {scope_of(SimpleNamespace(**{**latent, "tp_rank": rank, "tp_size": 2})) for rank in (0, 1)}
    assert len(scopes) == 1


# ---- vLLM ----


def others(self: Any, *given: Any) -> None:
    """What a tier of yours does."""


# Calls of vLLM's class that are not the adapter's.
NOT_OURS = {name: others for name in SecondaryTierManager.__abstractmethods__ if not hasattr(TierIndex, name)}
Tier: Any = type("Tier", (TierIndex, SecondaryTierManager), dict(NOT_OURS))


@pytest.mark.parametrize("hash_bytes", [32, 16])
def test_a_tier_is_asked_for_a_block(client: oneread.Client, hash_bytes: int) -> None:
    has_signatures(TierIndex, FAKES["SecondaryTierManager"])
    index = oneread.LocationIndex(client)
    tier, other = Tier(index, LookupResult), Tier(index, LookupResult)
    keys = [bytes([n]) * hash_bytes + group.to_bytes(4, "big") for n in range(3) for group in (0, 1)]
    assert {tier.lookup(key, None) for key in keys} == {LookupResult.MISS}
    tier.store_begins(keys[:2])
    tier.store_begins(keys[1:2])
    assert [tier.lookup(key, None) for key in keys[:3]] == [LookupResult.RETRY] * 2 + [LookupResult.MISS]
    assert other.lookup(keys[0], None) is LookupResult.MISS
    tier.store_ends(keys[:2], None)
    assert [tier.lookup(key, None) for key in keys[:2]] == [LookupResult.MISS, LookupResult.RETRY]
    tier.store_ends(keys[1:2], [Location(1, 2, 4096, 64)])
    assert tier.lookup(keys[1], None) is other.lookup(keys[1], None) is LookupResult.HIT
    found = other.locate(keys)
    assert other.are_same(keys, found) == [False, True] + [False] * 4
    index.remove([keys[1]] if hash_bytes == 32 else [keys[1].hex()], [Location(1, 2, 4096, 64)])
    assert other.are_same(keys, found) == [False] * 6 and tier.lookup(keys[1], None) is LookupResult.MISS


def test_a_lookup_of_a_tier_asks_nobody(client: oneread.Client) -> None:
    index = oneread.LocationIndex(client)
    tier = Tier(index, LookupResult)
    keys = [bytes([n]) * 36 for n in range(100)]
    tier.store_ends(keys, [Location(1, 1, n, 1) for n in range(100)])
    before = index.stats()["requests"]
    assert {tier.lookup(key, None) for key in keys} == {LookupResult.HIT}
    assert index.stats()["requests"] == before


def test_what_asks_a_closed_client_finds_nothing(client: oneread.Client) -> None:
    index = oneread.LocationIndex(client)
    storage, _, _ = engine(client, Network(), 1)
    tier, store = Tier(index, LookupResult), StoreIndex(index)
    storage.batch_set_v1(["a"], indices(0))
    client.close()
    with oneread.Client(client.address) as another:
        assert oneread.LocationIndex(another).contains_many(["a|m"])[0]
    assert tier.lookup(bytes(36), None) is LookupResult.MISS
    assert store.batch_is_exist(["a", "b"]) == [-1, -1] and store.batch_get_replica_desc(["a"]) == {}


# ---- Mooncake ----


class MooncakeDistributedStore:
    """Of mooncake-transfer-engine-non-cuda 0.3.13.post1, mooncake.store: the calls that ask."""

    def batch_is_exist(self, keys: list[str]) -> list[int]: ...  # type: ignore[empty-body]
    def batch_get_replica_desc(self, keys: list[str]) -> dict[str, list[Any]]: ...  # type: ignore[empty-body]
    def get_replica_desc(self, key: str) -> list[Any]: ...  # type: ignore[empty-body]


def test_a_store_tells_replicas(client: oneread.Client) -> None:
    has_signatures(StoreIndex, MooncakeDistributedStore)
    index = oneread.LocationIndex(client)
    store = StoreIndex(index, disk_tiers={3})
    memory, disk = index.endpoint("10.0.0.7:12345"), index.endpoint("/data/object 2")
    keys = ["k/1", "k/2", "k/3"]
    index.put(keys[:2], [Location(memory, 1, 1 << 40, 65_536), Location(disk, 3, 0, 100)])
    assert store.batch_is_exist(keys) == [1, 1, 0] and store.is_exist("k/1") == 1 and store.is_exist("no") == 0
    replicas = store.batch_get_replica_desc(keys)
    assert store.batch_is_exist([]) == [] and store.batch_get_replica_desc([]) == {}
    assert list(replicas) == keys[:2] and store.get_replica_desc("k/3") == []
    (one,), (two,) = replicas.values()
    assert one.status.name == "COMPLETE" and one.status.value == 3
    assert one.is_memory_replica() and not one.is_disk_replica() and not one.is_local_disk_replica()
    buffer = one.get_memory_descriptor().buffer_descriptor
    assert (buffer.transport_endpoint, buffer.buffer_address, buffer.size) == ("10.0.0.7:12345", 1 << 40, 65_536)
    file = two.get_disk_descriptor()
    assert two.is_disk_replica() and (file.file_path, file.object_size) == ("/data/object 2", 100)
    with pytest.raises(RuntimeError, match="no disk replica"):
        one.get_disk_descriptor()
    with pytest.raises(RuntimeError, match="no memory replica"):
        two.get_memory_descriptor()


def test_lengths_that_do_not_fit_are_named(client: oneread.Client) -> None:
    """Of keys and pages, of a pool's pieces, of what the caller's memory answers."""
    (a, pool, arena), keys = engine(client, Network(), 1), [str(n) for n in range(4)]
    for call in (a.batch_get_v1, a.batch_set_v1):
        for pages in [(0, 1), (0, 1, 2, 3, 4, 5, 6, 7), ()]:
            with pytest.raises(ValueError, match=f"4 keys of pages came with {SLOTS * len(pages)} indices"):
                call(keys, indices(*pages))
    assert arena.next == 0 and a.batch_exists(keys) == 0, "nothing was stored"
    meta = pool.get_page_buffer_meta
    pool.get_page_buffer_meta = lambda given: (meta(given)[0], meta(given)[1][:-1])  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="the sizes of 7 for 8"):
        a.batch_set_v1(keys, indices(0, 1, 2, 3))
    pool.get_page_buffer_meta = lambda given: ([], [])  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="0 pieces for 4 pages"):
        a.batch_set_v1(keys, indices(0, 1, 2, 3))
    pool.get_page_buffer_meta = meta  # type: ignore[method-assign]
    stores, fetches = arena.store, arena.fetch
    arena.store = lambda texts, pages: stores(texts, pages)[:-1]  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="store answers 3 for 4; give one for each"):
        a.batch_set_v1(keys, indices(0, 1, 2, 3))
    assert a.batch_exists(keys) == 0
    arena.store = stores  # type: ignore[method-assign]
    assert a.batch_set_v1(keys, indices(0, 1, 2, 3)) == [True] * 4
    arena.fetch = lambda wanted: [*fetches(wanted), True]  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="fetch answers 5 for 4"):
        a.batch_get_v1(keys, indices(4, 5, 6, 7))
