"""What the table of `table.py` compares: oneread, and what is used for the same now.

Each is made with a million keys, and looks keys up one by one or many at once. Rivals come from the extra `bench`
(`pip install 'oneread[bench]'`); one that is not installed is left out, and said to be.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import oneread

KEY, VALUE = 16, 32


def keys_of(count: int) -> Any:
    """Keys at random, as one array of 16 bytes each."""
    return np.frombuffer(np.random.default_rng(1).bytes(KEY * count), dtype=f"V{KEY}")


def pairs(keys: Any) -> Iterator[tuple[bytes, bytes]]:
    for key in keys.tolist():
        yield key, key + key


class Contender:
    """One row. `get` looks for one key, `many` for all of an array; `prepare` makes of an array what `many` takes,
    untimed."""

    name = ""
    # The most keys that are asked for at once: what takes too long for a table of many rounds.
    most = 1 << 30

    def __init__(self, keys: Any, folder: Path) -> None: ...

    def get(self, key: bytes) -> Any:
        raise NotImplementedError

    def prepare(self, keys: Any) -> Any:
        return keys.tolist()

    def many(self, keys: Any) -> Any:
        get = self.get
        return [get(key) for key in keys]

    def put(self, key: bytes, value: bytes) -> None:
        raise NotImplementedError

    def put_many(self, keys: list[bytes], values: list[bytes]) -> None:
        for key, value in zip(keys, values):
            self.put(key, value)

    def close(self) -> None: ...


class List(Contender):
    name = "oneread, list"

    def __init__(self, keys: Any, folder: Path) -> None:
        self.server = oneread.Server(f"shm:{folder / 'oneread.sock'}", bytes_max=4 << 30)
        self.client = oneread.Client(self.server.address)
        for part in np.array_split(keys, max(1, len(keys) // 10_000)):
            listed = part.tolist()
            self.client.put_many(listed, [key + key for key in listed])
        self.get = self.client.get
        self.many = self.client.get_many
        self.put = self.client.put
        self.put_many = self.client.put_many

    def close(self) -> None:
        self.client.close()
        self.server.stop()


class Buffer(Contender):
    """A table; keys are one array, and so are values."""

    name = "oneread, buffer"

    def __init__(self, keys: Any, folder: Path) -> None:
        self.client = oneread.Client(f"shm:{folder / 'oneread.sock'}")
        self.get = self.client.get

    def prepare(self, keys: Any) -> Any:
        return keys, np.empty((len(keys), VALUE), dtype=np.uint8)

    def many(self, keys: Any) -> Any:
        return self.client.get_many_into(*keys)

    def close(self) -> None:
        self.client.close()


class Dict(Contender):
    name = "dict of its own"

    def __init__(self, keys: Any, folder: Path) -> None:
        self.dict = dict(pairs(keys))
        self.get = self.dict.get
        self.put = self.dict.__setitem__


class Lmdb(Contender):
    name = "LMDB"

    def __init__(self, keys: Any, folder: Path) -> None:
        import lmdb

        self.env = lmdb.open(str(folder / "lmdb"), map_size=4 << 30, sync=False, readahead=False)
        with self.env.begin(write=True) as txn, txn.cursor() as cursor:
            cursor.putmulti(pairs(keys))

    def get(self, key: bytes) -> Any:
        with self.env.begin(buffers=True) as txn:
            return bytes(txn.get(key))

    def many(self, keys: Any) -> Any:
        with self.env.begin() as txn:
            get = txn.get
            return [get(key) for key in keys]

    def put(self, key: bytes, value: bytes) -> None:
        with self.env.begin(write=True) as txn:
            txn.put(key, value)

    def put_many(self, keys: list[bytes], values: list[bytes]) -> None:
        with self.env.begin(write=True) as txn, txn.cursor() as cursor:
            cursor.putmulti(zip(keys, values))

    def close(self) -> None:
        self.env.close()


class Redis(Contender):
    """Over a Unix socket, with the first server of these that is installed."""

    name = "Redis"
    commands = ("valkey-server", "redis-server")

    def __init__(self, keys: Any, folder: Path) -> None:
        import redis

        command = next(filter(None, map(shutil.which, self.commands)), None)
        if command is None:
            raise ImportError(f"none of {', '.join(self.commands)} is installed")
        socket = str(folder / "redis.sock")
        options = ["--port", "0", "--unixsocket", socket, "--save", "", "--dir", str(folder)]
        self.server = subprocess.Popen([command, *options], stdout=subprocess.DEVNULL)
        end = time.monotonic() + 30
        while not os.path.exists(socket):
            if time.monotonic() > end:
                self.server.kill()
                raise RuntimeError("the server does not begin")
            time.sleep(0.01)
        self.client = redis.Redis(unix_socket_path=socket)
        for part in np.array_split(keys, max(1, len(keys) // 10_000)):
            self.client.mset(dict(pairs(part)))
        self.get = self.client.get
        self.many = self.client.mget

    def put(self, key: bytes, value: bytes) -> None:
        self.client.set(key, value)

    def put_many(self, keys: list[bytes], values: list[bytes]) -> None:
        self.client.mset(dict(zip(keys, values)))

    def close(self) -> None:
        self.client.close()
        self.server.terminate()
        self.server.wait()


class Ultra(Contender):
    """A copy in each process, kept up by a log in shared memory."""

    name = "UltraDict"

    def __init__(self, keys: Any, folder: Path) -> None:
        from UltraDict import UltraDict

        self.dict = UltraDict(dict(pairs(keys)), buffer_size=1 << 20, full_dump_size=64 + 128 * len(keys))

    def get(self, key: bytes) -> Any:
        return self.dict[key]

    def put(self, key: bytes, value: bytes) -> None:
        self.dict[key] = value

    def close(self) -> None:
        self.dict.close(unlink=True)


class DiskCache(Contender):
    name = "diskcache"
    most = 1_000

    def __init__(self, keys: Any, folder: Path) -> None:
        import diskcache

        self.cache = diskcache.Cache(str(folder / "diskcache"), size_limit=1 << 40, cull_limit=0)
        with self.cache.transact():
            for key, value in pairs(keys):
                self.cache[key] = value
        self.get = self.cache.get

    def put(self, key: bytes, value: bytes) -> None:
        self.cache[key] = value

    def close(self) -> None:
        self.cache.close()


class Manager(Contender):
    """A dict in a process of `multiprocessing`'s, asked over a socket."""

    name = "Manager().dict()"
    most = 1_000

    def __init__(self, keys: Any, folder: Path) -> None:
        self.manager = multiprocessing.Manager()
        self.dict = self.manager.dict(dict(pairs(keys)))
        self.get = self.dict.get

    def put(self, key: bytes, value: bytes) -> None:
        self.dict[key] = value

    def close(self) -> None:
        self.manager.shutdown()


ALL: list[type[Contender]] = [List, Buffer, Dict, Lmdb, Redis, Ultra, DiskCache, Manager]


def made(
    keys: Any, names: list[str] | None
) -> tuple[list[Contender], dict[str, str], tempfile.TemporaryDirectory[str]]:
    """All that can be made here, those that cannot with the reason, and the folder that they are in."""
    folder = tempfile.TemporaryDirectory(dir="/dev/shm", prefix="oneread-bench-")
    contenders, missing = [], {}
    for kind in ALL:
        if names is not None and kind.name not in names and not kind.name.startswith("oneread"):
            continue
        begun = time.monotonic()
        try:
            contenders.append(kind(keys, Path(folder.name)))
        except Exception as error:
            if kind in (List, Buffer):
                raise
            missing[kind.name] = f"{type(error).__name__}: {error}"
        print(f"{kind.name}: made in {time.monotonic() - begun:.1f} s", file=sys.stderr)
    return contenders, missing, folder
