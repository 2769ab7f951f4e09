"""A pool of loader processes that read one table, as a DataLoader's workers do.

The parent puts the samples once. Each worker has a client of its own, made when the worker begins, and puts values
straight into the array of its batch. No worker has a copy of the table, and no sample goes through a pipe.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import oneread

SAMPLES, WIDTH, BATCH = 4_000, 64, 128

client: oneread.Client


def begin(address: str) -> None:
    global client
    client = oneread.Client(address)


def load(ids: Any) -> tuple[Any, Any]:
    """The ids of a batch, and their rows."""
    rows = np.empty((len(ids), WIDTH), np.float32)
    found = client.get_many_into(ids, rows)
    assert found == len(ids), "a sample is missing"
    return ids, rows


def batches() -> Iterator[Any]:
    order = np.random.default_rng(0).permutation(SAMPLES)
    for first in range(0, SAMPLES, BATCH):
        yield order[first : first + BATCH]


def main(workers: int = 4) -> int:
    with tempfile.TemporaryDirectory() as folder, oneread.Server(Path(folder) / "sock") as server:
        ids = np.arange(SAMPLES, dtype=np.int64)
        rows = np.repeat(ids.astype(np.float32)[:, None], WIDTH, axis=1)
        with oneread.Client(server.address) as writer:
            writer.put_many(ids, rows)
        seen = 0
        # Forked or spawned, both are fine: a worker makes its own client.
        context = multiprocessing.get_context("spawn")
        with context.Pool(workers, initializer=begin, initargs=(server.address,)) as pool:
            for of, loaded in pool.imap_unordered(load, batches()):
                assert np.array_equal(loaded[:, 0], of), "the rows are those of the ids"
                seen += len(of)
    return seen


if __name__ == "__main__":
    print(f"{main()} samples loaded")
