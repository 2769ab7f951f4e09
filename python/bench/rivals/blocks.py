"""Which blocks there are, what is known of them at any instant, and whether an answer agrees with that.

A block has a number. Its digest is a mix of the number, so that nobody keeps a table of digests. *Stable* blocks are
put once and must be found always. *Doomed* ones belong to an owner that dies. *Absent* ones are never put. Blocks
that come and go do so in chunks, in the order of their numbers: a few counters, which all processes see, say which
are there for certain, which are not, and which are just being changed.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

STABLE, DOOMED, ABSENT, CHURN = 0, 1 << 40, 2 << 40, 3 << 40
# Blocks of a chunk that comes or goes; and how many chunks are there at a time.
CHUNK, WINDOW = 100, 100
# Each run of one that changes blocks has numbers of its own.
RUN = 1 << 30
# The prompt that many workers have: worker k has (k + 1) / 96 of it.
WIDE, WIDE_WORKERS = 3_750, 96
WIDE_BLOCKS = 4 << 40


def mix(numbers: Any) -> Any:
    """SplitMix64's last step: any two numbers have two results."""
    with np.errstate(over="ignore"):
        z = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def digests16(numbers: Any) -> Any:
    """A row of 16 bytes for each block."""
    numbers = np.asarray(numbers)
    pair = np.stack([mix(numbers), mix(numbers + (1 << 50))], axis=1)
    return np.ascontiguousarray(pair).view(np.uint8)


def digests8(numbers: Any) -> Any:
    """Numbers of 64 bits, as engines' routers have them."""
    return mix(np.asarray(numbers))


def addresses(numbers: Any) -> Any:
    """Where a block is: what a right answer says."""
    return np.asarray(numbers).astype(np.uint64) * np.uint64(4096)


def wide_lengths(count: int) -> dict[str, int]:
    """How much of the first `count` blocks of the wide prompt each worker has."""
    return {f"w{k}": min(count, (k + 1) * WIDE // WIDE_WORKERS) for k in range(WIDE_WORKERS)}


@dataclass(frozen=True)
class Instant:
    """Chunks before `adding` are being put or were, those before `added` were; `removing` and `removed` likewise."""

    adding: int
    added: int
    removing: int
    removed: int


class Truth:
    """The counters of one system, in a file that all of its processes map. One process writes."""

    def __init__(self, path: Path) -> None:
        with open(path, "a+b") as file:
            file.truncate(mmap.PAGESIZE)
            self.words = np.frombuffer(mmap.mmap(file.fileno(), mmap.PAGESIZE), np.int64, 5)
        # The fifth word is the number of the run.

    def begin(self, run: int) -> None:
        self.words[:4] = 0
        self.words[4] = run

    def now(self) -> Instant:
        # Counters only grow, and each `-ing` is written before its `-ed`. Read the other way round, none is seen
        # ahead of what it stands for.
        removed, removing = int(self.words[3]), int(self.words[2])
        added, adding = int(self.words[1]), int(self.words[0])
        return Instant(adding, added, removing, removed)

    def first(self, chunk: int) -> int:
        """The number of a chunk's first block."""
        return CHURN + int(self.words[4]) * RUN + chunk * CHUNK


def must_be(chunk: int, before: Instant, after: Instant) -> bool | None:
    """Whether a lookup between two instants must find a chunk, or must not. None: either is right."""
    if before.added > chunk >= after.removing:
        return True
    if before.removed > chunk or chunk >= after.adding:
        return False
    return None


def asked_chunks(now: Instant, count: int, rng: Any) -> list[int]:
    """Chunks around what is there: most are, some have just gone or are about to come."""
    low, high = max(0, now.removed - 5), now.adding + 2
    return [int(chunk) for chunk in rng.integers(low, max(high, low + 1), count)]


def agrees(states: Iterable[int], expected: Iterable[bool | None]) -> bool:
    """Whether answers (1: there, and where it is; 0: absent; -1: something else) are right."""
    return all(
        state >= 0 and (must is None or bool(state) is must) for state, must in zip(states, expected, strict=True)
    )


def same_lengths(told: dict[str, int], expected: dict[str, int | None]) -> bool:
    """Whether each worker's prefix is as long as it must be. None: any of 0 to all is right."""
    for worker, length in expected.items():
        if length is not None and told.get(worker, 0) != length:
            return False
    return all(worker in expected for worker, length in told.items() if length)
