"""SGLang's HiCache: the calls of its storage class that ask where pages are.

Follows SGLang 0.5.23, ``sglang/srt/mem_cache/hicache_storage.py``. Put it before SGLang's class, and load that as
HiCache's ``dynamic`` backend, with ``interface_v1`` set to 1 in its configuration::

    class Storage(HiCacheIndex, HiCacheStorage):
        def __init__(self, storage_config, kwargs):
            index = oneread.LocationIndex(oneread.Client(ADDRESS))
            scope = scope_of(storage_config)
            super().__init__(index, NAME, NUMBER, pages, scope=scope, result=PoolTransferResult)

A page is one entry, with all its pieces (keys and values). Every call of SGLang's thread may fail where the server is
away: then pages are not there, or were not stored, and the log says why.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from oneread._errors import OnereadError, Refused
from oneread._native import LocationIndex
from oneread._types import FOUND, Location

log = logging.getLogger("oneread")

# The pieces of a page in this process' memory: the address and the bytes of each.
Page = Sequence[tuple[int, int]]


class Pages(Protocol):
    """Who has memory for pages, and moves them: the caller's. Each answer has one item for each page."""

    def store(self, texts: Sequence[str], pages: Sequence[Page], /) -> Sequence[tuple[int, int, int] | None]:
        """Copies pages to where others reach them. Where each is: tier, address, length; ``None``: it has no room.
        ``texts`` are the pages' keys in the index, for :meth:`HiCacheIndex.forget`."""

    def fetch(self, wanted: Sequence[tuple[str, Location, Page]], /) -> Sequence[bool]:
        """Copies pages, each from a place of an endpoint, to the pieces given. Whether it could."""

    def free(self, places: Sequence[Location], /) -> None:
        """These places, which were stored to, are not in the index."""


@dataclass
class HitResult:
    """As SGLang's ``PoolTransferResult``."""

    kv_hit_pages: int
    extra_pool_hit_pages: dict[str, int]
    restorable_prefix_pages: list[int] | None = None


def scope_of(config: Any) -> str:
    """What tells the pages of a rank of a model apart, from a ``HiCacheStorageConfig``."""
    parts = [config.model_name or "", f"pp{config.pp_rank}/{config.pp_size}"]
    parts.append(f"cp{config.attn_cp_rank}/{config.attn_cp_size}")
    # The ranks of a model with one latent cache have the same pages, but for their shard of each.
    if config.is_mla_model:
        parts.append(f"dcp{config.dcp_rank}/{config.dcp_size}")
    else:
        parts.append(f"tp{config.tp_rank}/{config.tp_size}")
    return "".join(f"|{part}" for part in parts)


def as_owner(index: LocationIndex, owner: int, absent_for: float) -> LocationIndex:
    """An owner, after the entries of its earlier life are gone. Waits for up to a minute."""
    end = time.monotonic() + 60
    while True:
        try:
            return index.as_owner(owner, absent_for=absent_for)
        except Refused:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def leading(present: Iterable[Any]) -> int:
    """How many are true before the first that is not."""
    count = 0
    for is_there in present:
        if not is_there:
            break
        count += 1
    return count


class HiCacheIndex:
    """Where pages are, for HiCache. Any thread may call it."""

    # SGLang's class sets them: `register_mem_pool_host`, `register_mem_host_pool_v2`.
    mem_pool_host: Any
    registered_pools: dict[Any, Any]

    def __init__(
        self,
        index: LocationIndex,
        endpoint: str,
        owner: int,
        pages: Pages,
        *,
        absent_for: float = 10.0,
        scope: str = "",
        result: Callable[[int, dict[str, int], list[int]], Any] = HitResult,
    ) -> None:
        """``endpoint``: this engine's name for others' ``fetch``. ``owner``: its number, which no other has. Pages that it
        had in an earlier life are gone; so are all when it has been away for ``absent_for`` seconds. ``scope``: see
        :func:`scope_of`. ``result``: SGLang's ``PoolTransferResult``."""
        self._index, self._pages, self._scope, self._result = index, pages, scope, result
        # By a handle that is no owner's: a name stays when its engine goes.
        self._endpoint = index.endpoint(endpoint)
        index.remove_owner(owner)
        self._own = as_owner(index, owner, absent_for)

    # ---- what is there ----

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many pages are there, from the first on."""
        try:
            return self._index.longest_prefix(self._texts(keys))
        except OnereadError as error:
            log.warning("HiCache: pages count as not there: %s", error)
            return 0

    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """How many pages are there, and in other pools, too: all of a prefix, or the last ones of it."""
        transfers = list(pool_transfers or [])
        for transfer in transfers:
            if transfer.hit_policy not in ("all_pages", "trailing_pages"):
                raise ValueError(f"the hit policy {transfer.hit_policy!r} of pool {transfer.name} is not known")
        pages = self.batch_exists(keys, extra_info)
        hits: dict[str, int] = {"kv": pages} if pages else {}
        restorable = list(range(1, pages + 1))
        asked = [text for transfer in transfers for text in self._texts(keys[:pages], transfer.name)]
        try:
            present = bytes(self._index.contains_many(asked))
        except OnereadError as error:
            log.warning("HiCache: pages count as not there: %s", error)
            present = bytes(len(asked))
        for nth, transfer in enumerate(transfers):
            there = present[nth * pages : (nth + 1) * pages]
            if transfer.hit_policy == "all_pages":
                ends = set(range(1, leading(there) + 1))
            else:
                wanted, run, ends = max(1, len(transfer.keys or ())), 0, set()
                for end, is_there in enumerate(there, 1):
                    run = run + 1 if is_there else 0
                    if run >= min(wanted, end):
                        ends.add(end)
            if ends:
                hits[transfer.name] = max(ends)
            restorable = [end for end in restorable if end in ends]
        return self._result(restorable[-1] if restorable else 0, hits, restorable)

    # ---- pages ----

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Fetches pages to the host's pool. Which are there and valid."""
        return self._get(self._texts(keys), self.mem_pool_host, host_indices)

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Stores pages of the host's pool. Which are in the index now, by this call or before."""
        return self._set(self._texts(keys), self.mem_pool_host, host_indices)

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        return {
            of.name: self._get(self._texts(of.keys, of.name), self.registered_pools[of.name], of.host_indices)
            for of in transfers
        }

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        return {
            of.name: self._set(self._texts(of.keys, of.name), self.registered_pools[of.name], of.host_indices)
            for of in transfers
        }

    def forget(self, texts: Sequence[str], places: Sequence[Location]) -> int:
        """Takes pages of this engine out of the index: before their memory is used for anything else. How many were
        there. Raises what :meth:`oneread.LocationIndex.remove` raises: then the memory is not to be used."""
        return self._own.remove(texts, places)

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        raise NotImplementedError("pages come by batch_get_v1; set interface_v1 to 1 in the backend's configuration")

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        raise NotImplementedError("pages go by batch_set_v1; set interface_v1 to 1 in the backend's configuration")

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> Any:
        raise NotImplementedError("pages come by batch_get_v1; set interface_v1 to 1 in the backend's configuration")

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        raise NotImplementedError("pages go by batch_set_v1; set interface_v1 to 1 in the backend's configuration")

    # ---- how ----

    def _texts(self, keys: Sequence[str], pool: Any = "kv") -> list[str]:
        suffix = self._scope if pool == "kv" else f"{self._scope}.{pool}"
        return [key + suffix for key in keys]

    def _get(self, texts: list[str], pool: Any, host_indices: Any) -> list[bool]:
        try:
            _, found = self._index.locate_many(texts)
            wanted, numbers, names = [], [], {}
            for number, (page, record) in enumerate(zip(pages_of(pool, host_indices, len(texts)), records(found))):
                place, is_there = record
                if place.endpoint not in names:
                    names[place.endpoint] = self._index.endpoint_name(place.endpoint) if is_there else None
                name = names[place.endpoint] if is_there else None
                if name is not None:
                    wanted.append((name, place, page))
                    numbers.append(number)
            fetched = dict(zip(numbers, one_each("fetch answers", self._pages.fetch(wanted), len(wanted))))
            same = self._index.revalidate(texts, found)
        except OnereadError as error:
            log.warning("HiCache: pages count as not there: %s", error)
            return [False] * len(texts)
        return [bool(fetched.get(number) and is_same) for number, is_same in enumerate(same)]

    def _set(self, texts: list[str], pool: Any, host_indices: Any) -> list[bool]:
        stored: dict[str, Location] = {}
        in_index: set[str] = set()
        try:
            present = dict(zip(texts, self._index.contains_many(texts)))
            in_index = {text for text, is_there in present.items() if is_there}
            pages = dict(zip(texts, pages_of(pool, host_indices, len(texts))))
            new = [text for text in pages if text not in in_index]
            places = one_each("store answers", self._pages.store(new, [pages[text] for text in new]), len(new))
            for text, place in zip(new, places):
                if place is not None:
                    stored[text] = Location(self._endpoint, *place)
            self._put(stored)
            _, found = self._index.locate_many(list(stored))
            for (text, mine), (theirs, is_there) in zip(list(stored.items()), records(found)):
                if is_there:
                    in_index.add(text)
                if is_there and mine == theirs:
                    del stored[text]
        except OnereadError as error:
            log.warning("HiCache: pages were not stored: %s", error)
            # Whether they are in the index is not known: the memory stays as it is.
            stored.clear()
        # Others were first, or the index has no room.
        self._pages.free(list(stored.values()))
        return [text in in_index for text in texts]

    def _put(self, stored: dict[str, Location]) -> None:
        try:
            self._own.put(list(stored), list(stored.values()), replace=False)
        except OnereadError as error:
            # Some blocks alone were refused, as where the table is full.
            if not error.rejected:
                raise
            log.warning("HiCache: %d pages were not stored: %s", len(error.rejected), error)


def one_each(who: str, given: Sequence[Any], count: int) -> Sequence[Any]:
    """What was given, one for each page or piece. ``ValueError`` otherwise."""
    if len(given) != count:
        raise ValueError(f"{who} {len(given)} for {count}; give one for each, in their order")
    return given


def pages_of(pool: Any, host_indices: Any, count: int) -> list[Page]:
    """The pieces of so many pages of a host's pool."""
    page_size = getattr(pool, "page_size", None)
    if isinstance(page_size, int) and len(host_indices) != page_size * count:
        raise ValueError(
            f"{count} keys of pages came with {len(host_indices)} indices of the host's pool, whose pages have "
            f"{page_size}; give {page_size} indices for each key"
        )
    addresses, sizes = pool.get_page_buffer_meta(host_indices)
    pieces = list(zip(addresses, one_each("the host's pool tells the sizes of", sizes, len(addresses))))
    each = len(pieces) // count if count else 0
    if each * count != len(pieces) or count and not each:
        raise ValueError(
            f"the host's pool tells {len(pieces)} pieces for {count} pages; each page has as many pieces as the others"
        )
    return [pieces[each * nth : each * (nth + 1)] for nth in range(count)]


def records(found: Any) -> list[tuple[Location, bool]]:
    """What was found: where each is, and whether it is there."""
    unpacked = FOUND.iter_unpack(found)
    return [(Location(at[3], at[5], at[0], at[2]), at[6]) for at in unpacked]
