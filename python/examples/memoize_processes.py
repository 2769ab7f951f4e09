"""One of many processes computes, the others wait for it, and all have the result."""

from __future__ import annotations

import multiprocessing
import os
import time

import oneread

NAME = f"memoize-example-{os.getpid()}"


@oneread.memoize(os.environ.setdefault("MEMOIZE_EXAMPLE", NAME), ttl=600)
def expensive(n: int) -> tuple[int, int]:
    time.sleep(0.2)
    return n * n, os.getpid()


def main(processes: int = 4) -> set[tuple[int, int]]:
    # As long as this process has the dict open, its results stay.
    assert expensive(1)[0] == 1
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return set(pool.map(expensive, [12] * 4 * processes, chunksize=1))


if __name__ == "__main__":
    results = main()
    print(f"{results}: computed once" if len(results) == 1 else f"computed {len(results)} times: {results}")
