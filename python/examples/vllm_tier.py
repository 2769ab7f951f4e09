"""A secondary tier of vLLM's: the scheduler looks up one block a call, while a thread moves data.

`TierIndex` answers the scheduler from the server's memory. What asks the server, to tell where blocks are, is done by
the thread that moves them. vLLM itself is not needed here: `Job` and `LookupResult` are what a tier sees of it.
"""

from __future__ import annotations

import queue
import tempfile
import threading
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

import oneread
from oneread.adapters.vllm import TierIndex

BLOCK_BYTES = 1024


class LookupResult(Enum):
    MISS = auto()
    HIT = auto()
    RETRY = auto()


@dataclass
class Job:
    job_id: int
    keys: list[bytes]
    chunk_ids: list[int]


class Tier(TierIndex):
    """Its blocks are in one file, which all tiers of a host reach. With vLLM it is a `SecondaryTierManager`, too."""

    def __init__(self, index: oneread.LocationIndex, primary: memoryview, file: Path) -> None:
        super().__init__(index, LookupResult)
        self.primary, self.file = primary, file.open("r+b", buffering=0)
        self.endpoint = index.endpoint(str(file))
        self.jobs: queue.Queue[tuple[Any, Job] | None] = queue.Queue()
        self.finished: queue.Queue[tuple[int, bool]] = queue.Queue()
        self.mover = threading.Thread(target=self.move)
        self.mover.start()

    # In the scheduler.

    def submit_store(self, job: Job) -> None:
        self.store_begins(job.keys)
        self.jobs.put((self.store, job))

    def submit_load(self, job: Job) -> None:
        self.jobs.put((self.load, job))

    def shutdown(self) -> None:
        self.jobs.put(None)
        self.mover.join()
        self.file.close()

    # In the thread that moves data.

    def move(self) -> None:
        while (task := self.jobs.get()) is not None:
            how, job = task
            self.finished.put((job.job_id, how(job)))

    def store(self, job: Job) -> bool:
        places = []
        for chunk in job.chunk_ids:
            at = self.file.seek(0, 2)
            self.file.write(self.primary[BLOCK_BYTES * chunk : BLOCK_BYTES * (chunk + 1)])
            places.append(oneread.Location(self.endpoint, 2, at, BLOCK_BYTES))
        try:
            self.store_ends(job.keys, places)
        except oneread.OnereadError:
            return False
        return True

    def load(self, job: Job) -> bool:
        found = self.locate(job.keys)
        for chunk, (address, _, length, *_, is_there) in zip(job.chunk_ids, oneread.FOUND.iter_unpack(found)):
            if is_there:
                self.file.seek(address)
                self.primary[BLOCK_BYTES * chunk : BLOCK_BYTES * chunk + length] = self.file.read(length)
        # What has gone meanwhile was not that block, perhaps.
        return all(self.are_same(job.keys, found))


def main(blocks: int = 32) -> None:
    keys = [block.to_bytes(32, "big") + bytes(4) for block in range(blocks)]
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder) / "blocks").touch()
        with oneread.Server(Path(folder) / "s", keys=10_000, **oneread.LocationIndex.table()) as server:
            with oneread.Client(server.address, timeout=1.0, get_timeout=0.01) as client:
                index = oneread.LocationIndex(client)
                memories = [bytearray(BLOCK_BYTES * blocks) for _ in range(2)]
                one, two = (Tier(index, memoryview(memory), file) for memory in memories)
                memories[0][:] = b"".join(bytes([block]) * BLOCK_BYTES for block in range(blocks))

                assert {two.lookup(key, None) for key in keys} == {LookupResult.MISS}
                one.submit_store(Job(1, keys, list(range(blocks))))
                # Until its own store has ended, the tier says that it may be asked again.
                assert {one.lookup(key, None) for key in keys} <= {LookupResult.RETRY, LookupResult.HIT}
                assert one.finished.get(timeout=60) == (1, True)
                hits = sum(two.lookup(key, None) is LookupResult.HIT for key in keys)
                two.submit_load(Job(2, keys, list(range(blocks))))
                assert two.finished.get(timeout=60) == (2, True)
                assert memories[0] == memories[1]
                one.shutdown()
                two.shutdown()
    print(f"{hits} of {blocks} blocks hit, and were loaded")


if __name__ == "__main__":
    main()
