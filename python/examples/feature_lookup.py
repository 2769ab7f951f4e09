"""Features of 10,000 ids by one call: an array of ids in, an array of vectors out, no Python object for any key."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

import oneread

IDS, WIDTH, ASKED = 50_000, 8, 10_000


def main() -> float:
    """Returns the seconds that the lookup took."""
    with tempfile.TemporaryDirectory() as folder, oneread.Server(Path(folder) / "sock") as server:
        with oneread.Client(server.address) as client:
            ids = np.arange(IDS, dtype=np.uint64)
            vectors = np.random.default_rng(0).random((IDS, WIDTH), dtype=np.float32)
            client.put_many(ids, vectors)

            asked = np.random.default_rng(1).integers(0, IDS + 100, ASKED, dtype=np.uint64)
            features, found = np.empty((ASKED, WIDTH), np.float32), np.empty(ASKED, bool)
            begun = time.perf_counter()
            count = client.get_many_into(asked, features, found=found)
            took = time.perf_counter() - begun

            there = asked < IDS
            assert np.array_equal(found, there) and count == there.sum(), "those that are there, and no other"
            assert np.array_equal(features[there], vectors[asked[there]])
    return took


if __name__ == "__main__":
    print(f"{ASKED} vectors in {1e3 * main():.2f} ms")
