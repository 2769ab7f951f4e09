"""vLLM's secondary tiers: the lookup of one block, in the scheduler.

Follows vLLM 0.33.0, ``vllm/v1/kv_offload/tiering/base.py``. Put it before vLLM's class::

    class Tier(TierIndex, SecondaryTierManager):
        def __init__(self, offloading_spec, primary_kv_view, tier_type, **options):
            SecondaryTierManager.__init__(self, offloading_spec, primary_kv_view, tier_type, **options)
            client = oneread.Client(ADDRESS, timeout=0.1, get_timeout=0.001)
            TierIndex.__init__(self, oneread.LocationIndex(client), LookupResult)

        def submit_store(self, job):
            self.store_begins(job.keys)     # then a thread of yours copies, and says where the blocks are

A lookup reads the server's memory: no request, no lock, no wait for the server. Changes are requests, and so belong to
the thread that moves data.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable
from typing import Any

from oneread._errors import OnereadError
from oneread._native import LocationIndex
from oneread._types import FOUND, Location

log = logging.getLogger("oneread")

# A hash of 32 bytes, and the group.
USUAL = 36


def digests(keys: Collection[bytes]) -> list[bytes] | list[str]:
    """Keys of vLLM, each a block's hash and 4 bytes of its group: 36 bytes with the usual hash. Others become text."""
    if all(len(key) == USUAL for key in keys):
        return list(keys)
    return [key.hex() for key in keys]


class TierIndex:
    """Where blocks are, for a secondary tier. Any thread may call it."""

    def __init__(self, index: LocationIndex, results: Any) -> None:
        """``index``: where blocks are. Its client's ``get_timeout`` is the longest that a lookup takes while the server
        is there. ``results``: vLLM's ``LookupResult``, which has HIT, MISS and RETRY."""
        self._index = index
        self._hit, self._miss, self._retry = results.HIT, results.MISS, results.RETRY
        self._stores: dict[bytes, int] = {}
        # For changes of what is being stored: some instructions. A lookup does not take it.
        self._lock = threading.Lock()

    def lookup(self, key: bytes, req_context: Any) -> Any:
        """Whether the block is there. RETRY: this engine is just storing it. Where the server is away for longer than a
        client reads its memory, nothing is there."""
        # Looked at first: a store that ends meanwhile is in the index, or is asked for again.
        is_being_stored = key in self._stores
        try:
            if self._index.locate_many(digests([key]), out=bytearray(FOUND.size))[0]:
                return self._hit
        except OnereadError as error:
            log.warning("vLLM: a block counts as not there: %s", error)
            return self._miss
        return self._retry if is_being_stored else self._miss

    def store_begins(self, keys: Iterable[bytes]) -> None:
        """This engine is about to store blocks. No request."""
        with self._lock:
            for key in keys:
                self._stores[key] = self._stores.get(key, 0) + 1

    def store_ends(self, keys: Collection[bytes], places: Collection[Location] | None) -> None:
        """The blocks are stored at these places, or not at all. Asks the server: for the thread that moves data.

        Raises what :meth:`oneread.LocationIndex.put` raises; they are no longer being stored then, either.
        """
        try:
            if places is not None:
                self._index.put(digests(keys), list(places))
        finally:
            with self._lock:
                for key in keys:
                    left = self._stores.get(key, 1) - 1
                    if left:
                        self._stores[key] = left
                    else:
                        self._stores.pop(key, None)

    def locate(self, keys: Collection[bytes]) -> Any:
        """Where blocks are, as :meth:`oneread.LocationIndex.locate_many` tells: for ``submit_load``."""
        return self._index.locate_many(digests(keys))[1]

    def are_same(self, keys: Collection[bytes], found: Any) -> list[bool]:
        """Which blocks are valid that were fetched from where they were found."""
        return [bool(same) for same in self._index.revalidate(digests(keys), found)]
