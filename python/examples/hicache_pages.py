"""Two engines fetch each other's pages, with SGLang's calls: `HiCacheIndex` behind its storage class.

Each engine is a process. What it stores is in shared memory, so others reach it by a name. SGLang itself is not needed
here: `HostPool` is what the adapter uses of its pool.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np

import oneread
from oneread.adapters.hicache import HiCacheIndex, Page

PAGES, PAGE_BYTES, SLOTS = 64, 4096, 16
PROMPT = [f"{block:064x}" for block in range(40)]


class HostPool:
    """Pages in this process' memory, one piece each; SGLang numbers their slots."""

    def __init__(self) -> None:
        self.pages = np.zeros((PAGES, PAGE_BYTES), np.uint8)

    def get_page_buffer_meta(self, indices: Sequence[int]) -> tuple[list[int], list[int]]:
        starts = [self.pages.ctypes.data + PAGE_BYTES * (slot // SLOTS) for slot in indices[::SLOTS]]
        return starts, [PAGE_BYTES] * len(starts)


def memory_of(shared: SharedMemory) -> memoryview:
    assert shared.buf is not None
    return shared.buf


class SharedPages:
    """Pages in shared memory: those of this engine, and of all others by their names."""

    def __init__(self) -> None:
        self.own = SharedMemory(create=True, size=PAGES * PAGE_BYTES)
        self.name = self.own.name
        self.memories = {self.name: memory_of(self.own)}
        self.others: list[SharedMemory] = []
        self.room = list(range(0, PAGES * PAGE_BYTES, PAGE_BYTES))

    def store(self, texts: Sequence[str], pages: Sequence[Page]) -> list[tuple[int, int, int] | None]:
        places: list[tuple[int, int, int] | None] = []
        for page in pages:
            if not self.room:
                places.append(None)
                continue
            at = self.room.pop()
            data = b"".join(ctypes.string_at(address, size) for address, size in page)
            self.memories[self.name][at : at + len(data)] = data
            places.append((1, at, len(data)))
        return places

    def fetch(self, wanted: Sequence[tuple[str, oneread.Location, Page]]) -> list[bool]:
        for endpoint, place, page in wanted:
            if endpoint not in self.memories:
                self.others.append(SharedMemory(endpoint))
                self.memories[endpoint] = memory_of(self.others[-1])
            data = bytes(self.memories[endpoint][place.address : place.address + place.length])
            for address, size in page:
                ctypes.memmove(address, data[:size], size)
                data = data[size:]
        return [True] * len(wanted)

    def free(self, places: Sequence[oneread.Location]) -> None:
        self.room.extend(place.address for place in places)

    def close(self) -> None:
        self.memories.clear()
        for memory in (*self.others, self.own):
            memory.close()
        self.own.unlink()


def slots(pages: range) -> list[int]:
    return [SLOTS * page + slot for page in pages for slot in range(SLOTS)]


def engine(address: str, number: int, scheduler: Connection) -> None:
    """Stores the first pages of the prompt, and fetches as many as there are, as its scheduler says."""
    pool, pages = HostPool(), SharedPages()
    with oneread.Client(address) as client:
        storage = HiCacheIndex(oneread.LocationIndex(client), pages.name, number, pages, scope="|a model")
        storage.mem_pool_host = pool
        while (task := scheduler.recv()) is not None:
            count = task[1]
            if task[0] == "store":
                # What is computed for a page is told by its number here.
                pool.pages[:count] = np.arange(count, dtype=np.uint8)[:, None]
                stored = storage.batch_set_v1(PROMPT[:count], slots(range(count)))
                scheduler.send((sum(stored), PAGES - len(pages.room)))
            else:
                pool.pages[:] = 255
                there = storage.batch_exists(PROMPT)
                fetched = storage.batch_get_v1(PROMPT[:there], slots(range(there)))
                right = (pool.pages[:there] == np.arange(there, dtype=np.uint8)[:, None]).all(axis=1)
                scheduler.send((there, int(right[fetched].sum())))
    pages.close()


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        with oneread.Server(Path(folder) / "s", keys=10_000, **oneread.LocationIndex.table()) as server:
            pipes, engines = [], []
            for number in (1, 2):
                ours, theirs = spawn.Pipe()
                pipes.append(ours)
                engines.append(spawn.Process(target=engine, args=(server.address, number, theirs)))
                engines[-1].start()

            def ask(of: int, what: str, count: int = 0) -> tuple[int, int]:
                pipes[of].send((what, count))
                there, pages = pipes[of].recv()
                return int(there), int(pages)

            print("engine 1 has stored %d pages, in %d of its own" % ask(0, "store", 24))
            print("engine 2 finds %d pages, and has fetched %d" % ask(1, "fetch"))
            print("engine 2 has stored %d pages, in %d of its own" % ask(1, "store", 40))
            print("engine 1 finds %d pages, and has fetched %d" % ask(0, "fetch"))
            for pipe, process in zip(pipes, engines):
                pipe.send(None)
                process.join()


if __name__ == "__main__":
    main()
