"""Caches of Python programs, beside each other: `python bench/caches.py`.

One run, one process, in rounds: in each, every cache is asked for random keys of its own, another one first, and then sets some. A
figure is the median of the rounds. Values are small objects, which each cache keeps as its users do: diskcache and SharedDict
by themselves, Redis and LMDB by `pickle`. What is not installed is left out, and said to be. Then it says how far the aims
are reached. The machine should be idle: the load is written down, too.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oneread
import oneread.cache

# What the figures of `oneread.cache.Cache` are to be: of which call, beside whom, at least so many times as quick.
AIMS = [("get", "oneread.SharedDict", 1 / 1.3), ("get", "diskcache", 8), ("get", "Redis", 20), ("set", "diskcache", 3)]
OURS = "oneread.cache.Cache"


class Contender:
    """One cache, in a folder."""

    name = ""

    def __init__(self, folder: Path) -> None: ...

    def get(self, key: str) -> Any:
        raise NotImplementedError

    def set(self, key: str, value: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None: ...


class Cache(Contender):
    name = OURS

    def __init__(self, folder: Path) -> None:
        self._cache = oneread.cache.Cache(folder, lives=0)
        self.get, self.set, self.close = self._cache.get, self._cache.set, self._cache.close  # type: ignore[method-assign]


class Shared(Contender):
    name = "oneread.SharedDict"

    def __init__(self, folder: Path) -> None:
        self._shared = oneread.SharedDict(f"bench-{os.getpid()}", codec="plain")
        self.get, self.set, self.close = self._shared.get, self._shared.put, self._shared.close  # type: ignore[method-assign]


class DiskCache(Contender):
    name = "diskcache"

    def __init__(self, folder: Path) -> None:
        import diskcache  # type: ignore[import-not-found, import-untyped, unused-ignore]

        self._cache = diskcache.Cache(str(folder))
        self.get, self.set, self.close = self._cache.get, self._cache.set, self._cache.close  # type: ignore[method-assign]


class Redis(Contender):
    """On a Unix socket, without files."""

    name = "Redis"

    def __init__(self, folder: Path) -> None:
        import redis  # type: ignore[import-not-found, import-untyped, unused-ignore]

        program = shutil.which("redis-server")
        if program is None:
            raise ImportError("redis-server is not installed")
        socket = folder / "socket"
        command = [program, "--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no"]
        self._server = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while not socket.exists():
            assert time.monotonic() < end, "redis-server starts"
            time.sleep(0.01)
        self._client = redis.Redis(unix_socket_path=str(socket))

    def get(self, key: str) -> Any:
        return pickle.loads(self._client.get(key))

    def set(self, key: str, value: Any) -> Any:
        return self._client.set(key, pickle.dumps(value))

    def close(self) -> None:
        self._client.close()
        self._server.terminate()
        self._server.wait(60)


class Lmdb(Contender):
    """A transaction for each call, as a cache has it; with `sync=False, writemap=True`: a crash of the machine may lose all."""

    name = "LMDB (sync=False, writemap=True)"

    def __init__(self, folder: Path) -> None:
        import lmdb  # type: ignore[import-not-found, import-untyped, unused-ignore]

        self._env = lmdb.open(str(folder), map_size=1 << 30, sync=False, writemap=True, readahead=False)

    def get(self, key: str) -> Any:
        with self._env.begin(buffers=True) as transaction:
            return pickle.loads(transaction.get(key.encode()))

    def set(self, key: str, value: Any) -> Any:
        with self._env.begin(write=True) as transaction:
            return transaction.put(key.encode(), pickle.dumps(value))

    def close(self) -> None:
        self._env.close()


ALL: list[type[Contender]] = [Cache, Shared, DiskCache, Redis, Lmdb]


def value_of(n: int) -> Any:
    return {"id": n, "name": f"user {n}", "roles": ["admin", "author"]}


def each(call: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> float:
    """Microseconds of one call."""
    begun = time.perf_counter()
    for one in arguments:
        call(*one)
    return (time.perf_counter() - begun) * 1e6 / len(arguments)


def measured(contenders: list[Contender], keys: int, gets: int, sets: int, rounds: int) -> dict[str, dict[str, float]]:
    draw = random.Random(1)
    for contender in contenders:
        for n in range(keys):
            contender.set(f"user:{n}", value_of(n))
    took: dict[str, dict[str, list[float]]] = {c.name: {"get": [], "set": []} for c in contenders}
    for nth in range(rounds):
        turn = nth % len(contenders)
        for contender in contenders[turn:] + contenders[:turn]:
            asked = [(f"user:{draw.randrange(keys)}",) for _ in range(gets)]
            took[contender.name]["get"].append(each(contender.get, asked))
        for contender in contenders[turn:] + contenders[:turn]:
            told = [(f"user:{n}", value_of(n)) for n in (draw.randrange(keys) for _ in range(sets))]
            took[contender.name]["set"].append(each(contender.set, told))
    return {name: {call: statistics.median(times) for call, times in of.items()} for name, of in took.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--gets", type=int, default=2_000, help="gets of a round")
    parser.add_argument("--sets", type=int, default=200, help="sets of a round")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    # The cache's server may be writing its snapshot yet.
    with tempfile.TemporaryDirectory(prefix="oneread-bench-", ignore_cleanup_errors=True) as folder:
        contenders: list[Contender] = []
        try:
            for nth, kind in enumerate(ALL):
                place = Path(folder) / str(nth)
                place.mkdir()
                try:
                    contenders.append(kind(place))
                except ImportError as error:
                    print(f"{kind.name} is left out: {error}", file=sys.stderr)
            figures = measured(contenders, given.keys, given.gets, given.sets, given.rounds)
        finally:
            for contender in contenders:
                contender.close()
    print(f"{given.keys:,} keys, medians of {given.rounds} rounds; Python {platform.python_version()}, load {load:.1f} before\n")
    print("| | a get | a set |\n|---|---:|---:|")
    for name, of in figures.items():
        print(f"| {name} | {of['get']:.3g} us | {of['set']:.3g} us |")
    print()
    for call, whom, aim in AIMS:
        if whom in figures:
            times = figures[whom][call] / figures[OURS][call]
            print(f"{call} of {OURS}: {times:.2f} times as quick as {whom}'s; the aim is {aim:.2f}: {'yes' if times >= aim else 'no'}")
    if given.json is not None:
        given.json.write_text(json.dumps({"load": load, "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
