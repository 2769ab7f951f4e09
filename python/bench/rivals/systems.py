"""The systems: where their servers begin, how blocks are put, and how they are looked for.

Each object is made in the first process and sent to the others, so it has plain attributes only before `connect`.
What is looked for is prepared before a lookup's time begins, and what it answers is checked after it has ended.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Client as Call
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

from blocks import WIDE, WIDE_BLOCKS, WIDE_WORKERS, addresses, digests8, digests16

LOCATION = struct.Struct("<QIII")


def until(call: Callable[[], Any], seconds: float) -> Any:
    """What a call returns when it does not raise any more."""
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except Exception:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


class System:
    name = ""
    # What is asked: "locations" (where is each block), "placements" (how long a prefix has each worker).
    question = "locations"
    # Who is stopped, and who is killed: "server", "writer" or "reader".
    stops = kills = "server"
    # Whether a worker of its own sees that an owner has died, and removes what it had.
    has_owners = False

    def __init__(self, folder: Path, away: float, blocks: int) -> None:
        self.folder, self.away, self.blocks = folder, away, blocks

    def check(self) -> None:
        """Raises if it is not installed."""

    def command(self) -> list[str] | None:
        """What starts the server."""
        return None

    def files(self) -> list[Path]:
        """Those that hold the index, in memory."""
        return []

    # In other processes:

    def load(self) -> None:
        """Imports what it needs: that is not counted as an index' memory."""

    def connect(self, owner: int | None) -> None: ...

    def prepare(self, numbers: Any) -> Any: ...

    def look(self, given: Any) -> Any: ...

    def put(self, numbers: Any) -> None:
        """Blocks of the owner that is connected."""

    def remove(self, numbers: Any) -> None: ...

    def remove_owner(self, owner: int, numbers: Any) -> None:
        """An owner is dead: what it had has to go."""


class Locations(System):
    def states(self, answer: Any, numbers: Any) -> Any:
        """1 for each block that is there and where it was put, 0 for one that is not there, -1 otherwise."""
        raise NotImplementedError


class Placements(System):
    question = "placements"

    def put_wide(self) -> None:
        """The prompt of which many workers have a part."""

    def lengths(self, answer: Any) -> dict[str, int]:
        """How long a prefix each worker has, by its name, but for those that have none."""
        raise NotImplementedError


def serve_command(folder: Path, table: Any) -> list[str]:
    command = [sys.executable, "-m", "oneread", "serve", "--at", f"shm:{folder / 'oneread.sock'}"]
    command += ["--region", str(folder / "region"), "--max-memory", "8GiB"]
    if "index" in table:
        return command + ["--index", table["index"], "--holders", str(table["holders"])]
    return command + ["--index", "location"]


class Oneread(Locations):
    name = "oneread"
    has_owners = True

    def command(self) -> list[str]:
        import oneread

        return serve_command(self.folder, oneread.LocationIndex.table())

    def files(self) -> list[Path]:
        return [self.folder / "region"]

    def load(self) -> None:
        import oneread  # noqa: F401

    def connect(self, owner: int | None) -> None:
        import oneread

        client = until(lambda: oneread.Client(f"shm:{self.folder / 'oneread.sock'}", timeout=10), 120)
        self.index = oneread.LocationIndex(client)
        self.record = self.index.locate_many(b"", width=16)[1].dtype
        if owner is not None:
            index = self.index
            # What an earlier owner with this number had may have to go first.
            self.index = until(lambda: index.as_owner(owner, absent_for=self.away), 120)
            self.endpoint = self.index.endpoint("10.0.0.1:7400")

    def prepare(self, numbers: Any) -> Any:
        import numpy as np

        return digests16(numbers), np.zeros(len(numbers), self.record)

    def look(self, given: Any) -> Any:
        return self.index.locate_many(given[0], out=given[1])

    def states(self, answer: Any, numbers: Any) -> Any:
        import numpy as np

        found = answer[1]
        right = found["address"] == addresses(numbers)
        return np.where(found["is_there"], np.where(right, 1, -1), 0)

    def put(self, numbers: Any) -> None:
        places = [(self.endpoint, 1, address, 4096) for address in addresses(numbers).tolist()]
        self.index.put(digests16(numbers), places)

    def remove(self, numbers: Any) -> None:
        places = [(self.endpoint, 1, address, 4096) for address in addresses(numbers).tolist()]
        self.index.remove(digests16(numbers), places)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Mooncake(Locations):
    """The master answers whether a block is there: its quicker call, `batch_is_exist`. Where each one is, is another
    one, `batch_get_replica_desc`. An owner is a process whose memory it has been given. Objects have one byte."""

    name = "Mooncake"
    has_owners = True

    def __init__(self, folder: Path, away: float, blocks: int) -> None:
        super().__init__(folder, away, blocks)
        self.port, self.metrics = free_port(), free_port()

    def check(self) -> None:
        from mooncake.store import MooncakeDistributedStore  # noqa: F401

        self.command()

    def command(self) -> list[str]:
        import mooncake

        master = Path(str(mooncake.__file__)).with_name("mooncake_master")
        if not os.access(master, os.X_OK):
            raise ImportError(f"{master} is no program")
        ports = ["-rpc_port", str(self.port), "-metrics_host", "127.0.0.1", "-metrics_port", str(self.metrics)]
        return [str(master), *ports, "-rpc_address", "127.0.0.1", "-client_ttl", str(round(self.away))]

    def load(self) -> None:
        os.environ["MC_STORE_MEMCPY"] = "1"
        from mooncake.store import MooncakeDistributedStore  # noqa: F401

    def connect(self, owner: int | None) -> None:
        from mooncake.store import MooncakeDistributedStore, ReplicateConfig

        memory = 0 if owner is None else max(64 << 20, 128 * self.blocks)

        def made() -> None:
            self.store = MooncakeDistributedStore()
            address = f"127.0.0.1:{self.port}"
            state = self.store.setup("127.0.0.1", "P2PHANDSHAKE", memory, 64 << 20, "tcp", "", address)
            if state != 0:
                raise ConnectionError(f"setup says {state}")

        until(made, 120)
        self.config = ReplicateConfig()
        self.config.preferred_segment = self.store.get_hostname()

    def prepare(self, numbers: Any) -> Any:
        return [row.hex() for row in digests16(numbers).view("V16").ravel().tolist()]

    def look(self, given: Any) -> Any:
        return self.store.batch_is_exist(given)

    def states(self, answer: Any, numbers: Any) -> Any:
        if len(answer) != len(numbers) or min(answer) < 0:
            raise ConnectionError(f"batch_is_exist says {min(answer)}")
        return answer

    def put(self, numbers: Any) -> None:
        state = self.store.put_batch(self.prepare(numbers), [b"x"] * len(numbers), self.config)
        if state != 0:
            raise RuntimeError(f"put_batch says {state}")

    def remove(self, numbers: Any) -> None:
        self.store.batch_remove(self.prepare(numbers), force=True)


class Redis(Locations):
    """Over a Unix socket, with the first server of these that is installed. Its log of changes restores it. Nobody but
    us knows that an owner has died, so who is told removes what it had."""

    name = "Redis"
    commands = ("valkey-server", "redis-server")

    def check(self) -> None:
        import redis  # noqa: F401

        self.command()

    def command(self) -> list[str]:
        command = next(filter(None, map(shutil.which, self.commands)), None)
        if command is None:
            raise ImportError(f"none of {', '.join(self.commands)} is installed")
        kept = ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec", "--dir", str(self.folder)]
        return [command, "--port", "0", "--unixsocket", str(self.folder / "redis.sock"), *kept]

    def load(self) -> None:
        import redis  # noqa: F401

    def connect(self, owner: int | None) -> None:
        import redis

        self.client = redis.Redis(unix_socket_path=str(self.folder / "redis.sock"), socket_timeout=10)
        until(self.client.ping, 120)

    def prepare(self, numbers: Any) -> Any:
        return digests16(numbers).view("V16").ravel().tolist()

    def look(self, given: Any) -> Any:
        return self.client.mget(given)

    def states(self, answer: Any, numbers: Any) -> Any:
        return [
            0 if value is None else 1 if LOCATION.unpack(value)[0] == address else -1
            for value, address in zip(answer, addresses(numbers).tolist(), strict=True)
        ]

    def put(self, numbers: Any) -> None:
        places = (LOCATION.pack(address, 1, 1, 4096) for address in addresses(numbers).tolist())
        self.client.mset(dict(zip(self.prepare(numbers), places)))

    def remove(self, numbers: Any) -> None:
        self.client.unlink(*self.prepare(numbers))

    def remove_owner(self, owner: int, numbers: Any) -> None:
        for first in range(0, len(numbers), 1_000):
            self.remove(numbers[first : first + 1_000])


class Lmdb(Locations):
    """A file that all map, here in memory. It has no server: a process that writes is stopped and killed instead."""

    name = "LMDB"
    stops = kills = "writer"

    def check(self) -> None:
        import lmdb  # noqa: F401

    def files(self) -> list[Path]:
        return [self.folder / "lmdb" / "data.mdb"]

    def load(self) -> None:
        import lmdb  # noqa: F401

    def connect(self, owner: int | None) -> None:
        import lmdb

        self.env = lmdb.open(str(self.folder / "lmdb"), map_size=8 << 30, sync=False, readahead=False)

    prepare = Redis.prepare
    states = Redis.states

    def look(self, given: Any) -> Any:
        with self.env.begin() as txn:
            get = txn.get
            return [get(key) for key in given]

    def put(self, numbers: Any) -> None:
        places = (LOCATION.pack(address, 1, 1, 4096) for address in addresses(numbers).tolist())
        with self.env.begin(write=True) as txn, txn.cursor() as cursor:
            cursor.putmulti(zip(self.prepare(numbers), places))

    def remove(self, numbers: Any) -> None:
        with self.env.begin(write=True) as txn:
            for key in self.prepare(numbers):
                txn.delete(key)

    remove_owner = Redis.remove_owner


def worker_of(owner: int) -> str:
    """A worker's name: of each owner of above two, who has blocks that come and go."""
    return {1: "keeper", 2: "doomed"}.get(owner, "churn")


class Router(Placements):
    name = "oneread"
    grouped = False

    def table(self) -> Any:
        import oneread

        return oneread.PlacementIndex.table(grouped=self.grouped)

    def command(self) -> list[str]:
        return serve_command(self.folder, self.table())

    def files(self) -> list[Path]:
        return [self.folder / "region"]

    def load(self) -> None:
        import oneread  # noqa: F401

    def connect(self, owner: int | None) -> None:
        import oneread

        client = until(lambda: oneread.Client(f"shm:{self.folder / 'oneread.sock'}", timeout=10), 120)
        self.index = oneread.PlacementIndex(client)
        if owner is not None:
            self.holder = self.index.holder(worker_of(owner))

    def prepare(self, numbers: Any) -> Any:
        return digests8(numbers)

    def look(self, given: Any) -> Any:
        return self.index.match_prefix(given)

    def lengths(self, answer: Any) -> dict[str, int]:
        return answer[1]

    def put(self, numbers: Any) -> None:
        self.index.add(self.holder, digests8(numbers))

    def remove(self, numbers: Any) -> None:
        self.index.remove(self.holder, digests8(numbers))

    def put_wide(self) -> None:
        import numpy as np

        digests = digests8(WIDE_BLOCKS + np.arange(WIDE))
        for k in range(WIDE_WORKERS):
            self.index.add(self.index.holder(f"w{k}"), digests[: (k + 1) * WIDE // WIDE_WORKERS])

    def remove_owner(self, owner: int, numbers: Any) -> None:
        self.index.drop_holder(worker_of(owner))


class GroupedRouter(Router):
    name = "oneread, groups"
    grouped = True

    def table(self) -> Any:
        import oneread

        # 128 holders are enough for those here.
        return oneread.PlacementIndex.table(128, grouped=True)


class Dynamo(Placements):
    """A radix tree in each process that asks, kept up by events: a copy of everything. Its events come over a socket
    here, and who publishes waits until they were taken in. It has no server: who publishes is stopped, and who asks is
    killed, because that process has the index."""

    name = "Dynamo"
    stops, kills = "writer", "reader"

    def check(self) -> None:
        from dynamo._core import RadixTree  # noqa: F401

    def load(self) -> None:
        from dynamo._core import RadixTree  # noqa: F401

    def connect(self, owner: int | None) -> None:
        from dynamo._core import RadixTree

        self.number, self.address = 0, str(self.folder / "dynamo.sock")
        self.owner, self.call = owner, None
        if owner is None:
            self.tree = RadixTree()
            Path(self.address).unlink(missing_ok=True)
            listener = Listener(self.address, "AF_UNIX")
            threading.Thread(target=self.serve, args=(listener,), daemon=True).start()

    def serve(self, listener: Any) -> None:
        while True:
            threading.Thread(target=self.take, args=(listener.accept(),), daemon=True).start()

    def take(self, call: Any) -> None:
        try:
            while True:
                worker, event = call.recv()
                if event is None:
                    self.tree.remove_worker(worker)
                else:
                    self.tree.apply_event(worker, event)
                call.send(None)
        except (EOFError, OSError):
            pass

    def publish(self, worker: int, event: Any) -> None:
        if event is not None:
            self.number += 1
            event = json.dumps({"event_id": self.number, "data": event, "dp_rank": 0}).encode()
        for is_last in (False, True):
            try:
                if self.call is None:
                    self.call = until(lambda: Call(self.address, "AF_UNIX"), 60)
                self.call.send((worker, event))
                self.call.recv()
                return
            except (EOFError, OSError):
                # Another process asks now.
                self.call = None
                if is_last:
                    raise

    def stored(self, worker: int, hashes: list[int]) -> None:
        blocks = [{"block_hash": each, "tokens_hash": each} for each in hashes]
        self.publish(worker, {"stored": {"parent_hash": None, "blocks": blocks}})

    def prepare(self, numbers: Any) -> Any:
        return digests8(numbers).tolist()

    def look(self, given: Any) -> Any:
        return self.tree.find_matches(given).scores

    def lengths(self, answer: Any) -> dict[str, int]:
        def name(worker: int) -> str:
            return f"w{worker - 1000}" if worker >= 1000 else worker_of(worker)

        return {name(worker): length for (worker, _), length in answer.items()}

    def put(self, numbers: Any) -> None:
        assert self.owner is not None
        self.stored(self.owner, self.prepare(numbers))

    def remove(self, numbers: Any) -> None:
        assert self.owner is not None
        self.publish(self.owner, {"removed": {"block_hashes": self.prepare(numbers)}})

    def put_wide(self) -> None:
        import numpy as np

        hashes = self.prepare(WIDE_BLOCKS + np.arange(WIDE))
        for k in range(WIDE_WORKERS):
            self.stored(1000 + k, hashes[: (k + 1) * WIDE // WIDE_WORKERS])

    def remove_owner(self, owner: int, numbers: Any) -> None:
        self.publish(owner, None)


ALL: list[type[System]] = [Oneread, Mooncake, Redis, Lmdb, Router, GroupedRouter, Dynamo]
