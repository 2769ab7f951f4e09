"""Lookups as Mooncake's store has them: which objects are there, and where each is.

Two engines have told where their objects are. A third one asks with the store's calls, and gets descriptors with the
members that Mooncake's have.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import oneread
from oneread.adapters.mooncake import StoreIndex

KEYS = [f"model@{block:08x}" for block in range(1000)]


def main() -> Counter[str]:
    """How many objects each endpoint has."""
    with tempfile.TemporaryDirectory() as folder:
        with oneread.Server(Path(folder) / "s", keys=10_000, **oneread.LocationIndex.table()) as server:
            with oneread.Client(server.address) as client:
                index = oneread.LocationIndex(client)
                for number, keys in ((1, KEYS[:600]), (2, KEYS[600:900])):
                    endpoint = index.endpoint(f"10.0.0.{number}:12345")
                    engine = index.as_owner(number)
                    engine.put(keys, [oneread.Location(endpoint, 1, 65_536 * n, 65_536) for n in range(len(keys))])

                store = StoreIndex(index)
                there = store.batch_is_exist(KEYS)
                replicas = store.batch_get_replica_desc(KEYS)
                assert sum(there) == len(replicas) == 900
                memory = [of[0].get_memory_descriptor().buffer_descriptor for of in replicas.values()]
                assert all(buffer.size == 65_536 for buffer in memory)
                # The second engine begins anew: what it had is not there from then on.
                index.remove_owner(2)
                assert sum(store.batch_is_exist(KEYS)) == 600
                return Counter(buffer.transport_endpoint for buffer in memory)


if __name__ == "__main__":
    print(", ".join(f"{count} at {endpoint}" for endpoint, count in sorted(main().items())))
