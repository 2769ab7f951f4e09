"""``python -m oneread import diskcache DIRECTORY``: what a cache of diskcache's has, into one of :mod:`oneread.cache`."""

from __future__ import annotations

import argparse
import io
import os
import pickle
import re
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from oneread import _keys
from oneread.cache.core import DEFAULT_SETTINGS, QUEUE, QUEUE_START, Cache

# How diskcache has a value: in its row, or in a file.
RAW, BINARY, TEXT, PICKLE = 1, 2, 3, 4
# Numbers of a queue are as near to the first one as this.
QUEUE_NEAR = 10**12
ROWS = "SELECT key, raw, expire_time, tag, mode, filename, value FROM Cache ORDER BY rowid"
SHOWN_EVERY = 0.2


class Row(NamedTuple):
    """An entry of diskcache's, and the directory that its files are in."""

    key: Any
    raw: int
    expire_time: float | None
    tag: Any
    mode: int
    filename: str | None
    value: Any
    directory: Path


class Plain(pickle.Unpickler):
    """Reads pickles of plain values, which run nothing."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is code of a program; --pickle reads it")


def unpickled(raw: bytes, trusts: bool) -> Any:
    return pickle.loads(raw) if trusts else Plain(io.BytesIO(raw)).load()


def databases(directory: Path) -> list[Path]:
    """The databases of a cache: one, or one in each shard."""
    found = [directory / "cache.db", *sorted(directory.glob("[0-9][0-9][0-9]/cache.db"))]
    return [path for path in found if path.exists()]


def rows(path: Path) -> Iterator[Row]:
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        for row in database.execute(ROWS):
            yield Row._make((*row, path.parent))
    finally:
        database.close()


def count(path: Path) -> int:
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        return int(database.execute("SELECT COUNT(*) FROM Cache").fetchone()[0])
    finally:
        database.close()


def key_of(row: Row, trusts: bool) -> Any:
    return row.key if row.raw else unpickled(row.key, trusts)


def value_of(row: Row, trusts: bool) -> Any:
    if row.filename is None:
        return unpickled(row.value, trusts) if row.mode == PICKLE else row.value
    # The name is another program's: no file outside of the directory is read.
    path = (row.directory / row.filename).resolve()
    if not path.is_relative_to(row.directory.resolve()):
        raise ValueError("its file is outside of the directory")
    raw = path.read_bytes()
    if row.mode == TEXT:
        return raw.decode()
    return unpickled(raw, trusts) if row.mode == PICKLE else raw


class Queues:
    """The first and the last number of each queue that was imported."""

    def __init__(self) -> None:
        self._ends: dict[str | None, tuple[int, int]] = {}

    def note(self, key: Any) -> None:
        prefix: str | None = None
        number = key
        if isinstance(key, str) and (parts := re.fullmatch(r"(.*)-(\d{15})", key, re.DOTALL)):
            prefix, number = parts[1], int(parts[2])
        if type(number) is int and abs(number - QUEUE_START) < QUEUE_NEAR:
            first, end = self._ends.get(prefix, (number, number + 1))
            self._ends[prefix] = (min(first, number), max(end, number + 1))

    def keep(self, cache: Cache) -> None:
        for prefix, ends in self._ends.items():
            cache._note(QUEUE + _keys.encode(prefix), b"%d %d" % ends)


def imported(directory: Path, cache: Cache, trusts: bool, progress: bool) -> tuple[int, Counter[str]]:
    """How many entries were taken over, and why others were not."""
    found = databases(directory)
    whole = sum(map(count, found))
    done, left_out, queues = 0, Counter[str](), Queues()
    seen, shown_at = 0, 0.0
    for path in found:
        for row in rows(path):
            seen += 1
            if progress and time.monotonic() > shown_at:
                shown_at = time.monotonic() + SHOWN_EVERY
                print(f"\rimporting {seen} of {whole} ({100 * seen // max(1, whole)} %)", end="", file=sys.stderr, flush=True)
            expire = None if row.expire_time is None else row.expire_time - time.time()
            if expire is not None and expire <= 0:
                left_out["have ended"] += 1
                continue
            try:
                key = key_of(row, trusts)
                cache.set(key, value_of(row, trusts), expire, tag=row.tag)
            except FileNotFoundError:
                left_out["have no file any more"] += 1
            except pickle.UnpicklingError as error:
                left_out[f"cannot be read: {error}"] += 1
            except (TypeError, ValueError) as error:
                left_out[f"cannot be kept: {error}"] += 1
            else:
                done += 1
                queues.note(key)
    queues.keep(cache)
    if progress:
        print(file=sys.stderr)
    return done, left_out


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m oneread import diskcache",
        description="Takes over the entries of a cache of diskcache's, with what is left of each one's life. The old files stay.",
    )
    parser.add_argument("directory", type=Path, help="the directory of the cache of diskcache's")
    parser.add_argument("--to", type=Path, help="the directory of the new cache [default: the same]")
    parser.add_argument(
        "--pickle", action="store_true", help="read and keep objects of programs, too: that runs what their pickles say"
    )
    parser.add_argument("--ordered", action="store_true", help="the cache is an Index: keep the order of its keys")
    given = parser.parse_args(words)
    if not databases(given.directory):
        print(f"oneread: error: no cache of diskcache's is in {given.directory}: it has no cache.db", file=sys.stderr)
        return 1
    policy = "none" if given.ordered else DEFAULT_SETTINGS["eviction_policy"]
    codec = "pickle" if given.pickle else "plain"
    with Cache(given.to or given.directory, codec=codec, eviction_policy=policy) as cache:
        cache._ordered = given.ordered
        done, left_out = imported(given.directory, cache, given.pickle, os.isatty(2))
        print(f"{done} entries are in the cache in {cache.directory}")
        for why, times in left_out.most_common():
            print(f"{times} are left out: they {why}")
    return 0
