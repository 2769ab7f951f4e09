"""Clusters: an etcd and nodes, each a process of its own, the nodes by the command that the package has."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native import outcome, python, until
from test_native_processes import in_child, stop

import oneread
from oneread import ClusterChange, ClusterChanges, ClusterClient

HAS_ETCD = shutil.which("etcd") is not None
if not HAS_ETCD and os.environ.get("ONEREAD_NO_SKIP"):
    raise RuntimeError("etcd is not installed (apt-get install etcd-server)")
needs_etcd = pytest.mark.skipif(not HAS_ETCD, reason="etcd is not installed; on Debian: apt-get install etcd-server")

SECRET = "a secret for tests"
ABSENT = "http://127.0.0.1:1"


def free_port() -> int:
    """A port that nobody has: below those that the system gives to whoever asks for any."""
    for n in range(10_000):
        port = 10_000 + (os.getpid() * 37 + time.monotonic_ns() // 1000 + n) % 20_000
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("there is no free port")


class Etcd:
    """An etcd of one member."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder / "etcd", f"http://127.0.0.1:{free_port()}"
        peer = f"http://127.0.0.1:{free_port()}"
        self.log = open(folder / "etcd.log", "w")
        words = ["--data-dir", str(self.folder), "--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        words += ["--initial-cluster", f"default={peer}"]
        self.process = subprocess.Popen(["etcd", *words], stdout=self.log, stderr=self.log)
        self.is_up = False

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


class Cluster:
    """A cluster of nodes in processes."""

    def __init__(self, etcd: Etcd, folder: Path, name: str, *init: str) -> None:
        self.etcd, self.folder, self.name = etcd, folder, name
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.secret = folder / "secret"
        self.secret.touch(0o600)
        self.secret.write_text(SECRET + "\n")
        made = self.command("cluster", "init", name, "--shards", "8", *init)
        assert made.returncode == 0, made.stderr

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "oneread", *words, "--etcd", self.etcd.url, "--secret-file", str(self.secret)]

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.words(*words), capture_output=True, text=True, timeout=60)

    def start(self, node: str) -> None:
        at = f"shm:{self.folder / node}.sock"
        words = self.words("serve", "--cluster", self.name, "--node-name", node, "--at", at, "--max-memory", "256MiB")
        words.append("--life")
        with open(self.folder / f"{node}.log", "ab") as log:
            self.nodes[node] = subprocess.Popen(words, stdout=log, stderr=log)

    def log(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()}" for path in self.folder.glob("*.log"))

    def end(self, node: str) -> None:
        process = self.nodes.pop(node)
        process.kill()
        process.wait()

    def client(self, **options: Any) -> ClusterClient:
        return ClusterClient(self.name, etcd=[self.etcd.url], **{"secret": SECRET, "timeout": 60} | options)

    def status(self) -> Any:
        told = self.command("cluster", "status", self.name, "--json")
        assert told.returncode == 0, told.stderr
        return json.loads(told.stdout)

    def primary(self, shard: int) -> str:
        """The name of a shard's primary."""
        status = self.status()
        primary = status["shards"][shard]["primary"]
        return next(node["name"] for node in status["nodes"] if node["node"] == primary)

    def until_copied(self, copies: int) -> None:
        """Waits until each shard has so many copies."""

        def is_so() -> bool:
            shards = self.status()["shards"]
            assert all(node.poll() is None for node in self.nodes.values()), self.log()
            return len(shards) == 8 and all(len(shard["in_sync"]) == copies for shard in shards)

        until(is_so)

    def stop(self) -> None:
        for node in list(self.nodes):
            self.end(node)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="or-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def etcd(folder: Path) -> Iterator[Etcd]:
    etcd = Etcd(folder)
    try:
        # It answers: there is no such cluster.
        def is_up() -> bool:
            assert etcd.process.poll() is None, (folder / "etcd.log").read_text()
            try:
                ClusterClient("none", etcd=etcd.url)
            except oneread.Invalid:
                return True
            except oneread.OnereadError:
                return False
            return False

        until(is_up)
        yield etcd
    finally:
        etcd.stop()


@pytest.fixture(scope="module")
def cluster(etcd: Etcd, folder: Path) -> Iterator[Cluster]:
    """Two nodes, and each has all."""
    cluster = Cluster(etcd, folder, "pair")
    try:
        cluster.start("alpha")
        cluster.start("beta")
        cluster.until_copied(2)
        yield cluster
    finally:
        cluster.stop()


@needs_etcd
def test_every_call(cluster: Cluster) -> None:
    with cluster.client() as client:
        assert client.get(b"a") is None and client.get(b"a", 7) == 7 and b"a" not in client
        assert client.put(b"a", b"1") is None
        assert client.get(b"a") == b"1" and b"a" in client and client.has_lease(b"a")
        assert client.get_advisory(b"a") == b"1" and client.get_advisory(b"none", 5) == 5
        assert client.insert(b"b", b"2") and not client.insert(b"b", b"3") and client.get(b"b") == b"2"
        assert client.compare_and_swap(b"b", b"2", b"4") and not client.compare_and_swap(b"b", b"2", b"5")
        assert not client.compare_and_swap(b"none", b"", b"5") and client.get(b"none") is None
        assert client.get(b"b") == b"4" and client.remove(b"b") and not client.remove(b"b")
        client.put(bytearray(b"long"), np.arange(100_000, dtype=np.uint32))
        assert client.get(memoryview(b"long")) == np.arange(100_000, dtype=np.uint32).tobytes()
        client.put(b"empty", b"")
        assert client.get(b"empty") == b"" and b"empty" in client
        assert (client.name, client.key_max, client.value_max, client.shards) == ("pair", 255, 1 << 20, 8)
        assert {client.shard_of(b"%d" % n) for n in range(200)} == set(range(8))
        assert repr(client) == f'oneread.ClusterClient("pair", etcd=["{cluster.etcd.url}"])'
        assert cluster.command("cluster", "get", "pair", "a").stdout == "1\n"
    for call in [lambda: client.get(b"a"), lambda: client.put(b"a", b""), lambda: client.get_many([b"a"])]:
        with pytest.raises(oneread.Closed):
            call()
    client.close()


@needs_etcd
def test_entries_end(cluster: Cluster) -> None:
    with cluster.client() as client, client.changes(prefix=b"ttl:") as changes:
        changes.poll()
        client.put(b"ttl:put", b"", ttl=0.2)
        assert client.insert(b"ttl:insert", b"", ttl=0.2) and not client.insert(b"ttl:insert", b"", ttl=100)
        assert not client.update(b"ttl:update", b"", ttl=0.2) and client.insert(b"ttl:update", b"")
        assert client.update(b"ttl:update", b"", ttl=0.2)
        keys = [b"ttl:%d" % n for n in range(100)]
        client.put_many(keys, keys, ttl=0.2)
        left: dict[bytes, str | None] = {}
        while len(left) < 103:
            change = next(changes)
            if change.kind == "left":
                left[change.key] = change.cause
        assert set(left.values()) == {"expired"}
        assert client.get_many([*keys, b"ttl:put", b"ttl:insert", b"ttl:update"]) == [None] * 103
        for wrong in [0, 1e9]:
            with pytest.raises(oneread.Invalid, match="ten years"):
                client.put(b"ttl:put", b"", ttl=wrong)
            with pytest.raises(oneread.Invalid, match="ten years"):
                client.put_many(keys, keys, ttl=wrong)
        for wrong in [-1, float("nan"), float("inf")]:
            with pytest.raises(ValueError):
                client.put(b"ttl:put", b"", ttl=wrong)
        assert client.get(b"ttl:put") is None and client.get(keys[0]) is None


@needs_etcd
def test_entries_go_with_their_owner(cluster: Cluster) -> None:
    with cluster.client() as client, client.changes(prefix=b"owned:") as changes:
        changes.poll()
        keys = [b"owned:%d" % n for n in range(100)]
        owner = client.owner(7, absent_for=60)
        owner.put_many(keys, keys)
        assert owner.insert(b"owned:insert", b"") and owner.update(b"owned:0", b"new")
        assert client.compare_and_swap(b"owned:0", b"new", b"newer")
        client.put(b"owned:1", b"nobody's")
        with pytest.raises(oneread.Refused, match="another session"):
            client.owner(7)

        def refused() -> None:
            with pytest.raises(oneread.Refused, match="another session"):
                owner.put(b"owned:child", b"")

        in_child(refused)
        assert client.remove_owner(7) and not client.remove_owner(7)
        assert [n for n, value in enumerate(client.get_many(keys)) if value is not None] == [1]
        left = 0
        while left < 100:
            change = next(changes)
            if change.kind == "left":
                assert change.cause == "owner_gone"
                left += 1
        with pytest.raises(oneread.Refused, match="owner 7 was removed"):
            owner.put(b"owned:2", b"")
        with client.owner(7, absent_for=2) as again:
            again.put(b"owned:2", b"")
        until(lambda: client.get(b"owned:2") is None)
        for number, absent_for in [(0, 10), (65_535, 10), (1, 0.1), (1, 1e9)]:
            with pytest.raises(oneread.Invalid):
                client.owner(number, absent_for=absent_for)
        with pytest.raises(oneread.Invalid):
            client.remove_owner(0)
        # Other shards may still have it.
        until(lambda: cluster.command("cluster", "remove-owner", "pair", "7").stdout == "absent\n")


@needs_etcd
def test_the_sample_of_the_docs_runs(cluster: Cluster) -> None:
    page = (Path(__file__).parents[2] / "docs" / "PYTHON.md").read_text()
    sample = page.partition("```py\n")[2].partition("```")[0]
    connect = 'oneread.ClusterClient("demo", etcd=["http://127.0.0.1:2379"])'
    assert connect in sample
    exec(sample.replace(connect, "connect()"), {"connect": cluster.client})
    assert cluster.command("cluster", "get", "pair", "leader").stdout == "18\n"


@needs_etcd
def test_batches(cluster: Cluster) -> None:
    keys = [b"batch:%d" % n for n in range(10_000)]
    with cluster.client() as client:
        assert client.put_many(keys, (key[::-1] for key in keys)) is None
        assert client.get_many([*keys, b"absent"]) == [*(key[::-1] for key in keys), None]
        ids, rows = np.arange(1, 3001, dtype=np.uint64), np.arange(6000, dtype=np.uint32).reshape(3000, 2)
        client.put_many(ids, rows)
        assert b"".join(client.get_many(ids)) == rows.tobytes()
        assert client.get_many(b"abcd", width=2) == [None, None] and client.get_many([]) == []
        client.put_many([], [])
        # The last one counts, also in one batch.
        client.put_many([b"twice"] * 10, [b"%d" % n for n in range(10)])
        assert client.get(b"twice") == b"9"


@needs_etcd
def test_scans(cluster: Cluster) -> None:
    entries = {b"scan:%d" % n: b"%d" % n * 300 for n in range(1500)} | {b"scan:\0\xff": b""}
    with cluster.client() as client:
        client.put_many(entries.keys(), entries.values())

        # Not from the nodes' other copies. A shard that is moved meanwhile, to the node that is first for it, is shown again.
        def is_once() -> bool:
            return sorted(client.scan(prefix=b"scan:")) == sorted(entries)

        until(is_once)
        assert dict(client.scan(prefix=memoryview(b"scan:"), values=True)) == entries
        assert {bytes(key) for key in client.scan()} >= set(entries)
        assert set(client.scan(prefix=b"scan:149")) == {b"scan:149", *(b"scan:149%d" % n for n in range(10))}
        # The other one, from the first to the last.
        scan = client.scan(prefix=b"scan:", values=True)
        assert iter(scan) is scan and isinstance(scan, oneread.ClusterScan)
        first = next(scan)
        assert dict([first, *scan]) == entries and next(scan, None) is None
        for none in [b"nothing", b"x" * 300]:
            assert list(client.scan(prefix=none)) == []
        with pytest.raises(TypeError, match="encode"):
            client.scan(prefix="text")
        for wrong in [lambda: client.scan(b"scan:"), lambda: client.scan(cursor=b"")]:
            with pytest.raises(TypeError):
                wrong()
        with ThreadPoolExecutor(8) as pool:
            shared = client.scan(prefix=b"scan:", values=True)
            parts = list(pool.map(lambda _: list(shared), range(8)))
        assert dict(pair for part in parts for pair in part) == entries
        begun = client.scan()
    for closed in [begun, client.scan()]:
        with pytest.raises(oneread.Closed):
            next(closed)
    # What has ended stays so.
    assert next(scan, None) is None


@needs_etcd
def test_a_scan_belongs_to_its_process(cluster: Cluster) -> None:
    with cluster.client() as client:
        client.put_many(keys := [b"forked:%d" % n for n in range(100)], keys)
        scan = client.scan(prefix=b"forked:")
        seen = {next(scan)}

        def child() -> None:
            with pytest.raises(oneread.Closed, match="begin another one"):
                next(scan)
            assert set(client.scan(prefix=b"forked:")) == set(keys)

        in_child(child)
        assert seen | set(scan) == set(keys)


@needs_etcd
def test_a_scan_waits_and_goes_on(etcd: Etcd, folder: Path) -> None:
    """A node that does not answer: other threads run, Ctrl-C ends the wait, and what the scan has shown is not lost."""
    place = folder / "scanned"
    place.mkdir()
    cluster = Cluster(etcd, place, "scanned", "--replicas", "1")
    # More than a reply has.
    entries = {(b"%d" % n, b"%d" % n * 100) for n in range(3000)}
    try:
        cluster.start("alpha")
        cluster.until_copied(1)
        program = python(
            """
            import signal, sys, oneread
            signal.signal(signal.SIGINT, signal.default_int_handler)
            client = oneread.ClusterClient("scanned", etcd=sys.argv[1], secret=sys.argv[2], timeout=3600)
            client.put_many(keys := [b"%d" % n for n in range(3000)], [key * 100 for key in keys])
            scan = client.scan(values=True)
            seen = {next(scan)}
            print("ready", flush=True)
            sys.stdin.readline()
            print("calls", flush=True)
            try:
                seen.update(scan)
            except KeyboardInterrupt:
                print("interrupted", len(seen) < 3000, flush=True)
            sys.stdin.readline()
            seen.update(scan)
            print(dict(seen) == {key: key * 100 for key in keys})
            """,
            etcd.url,
            SECRET,
        )
        assert program.stdin is not None and program.stdout is not None
        assert program.stdout.readline() == "ready\n", program.communicate(timeout=60)
        with cluster.client(timeout=2) as client:
            scan = client.scan(values=True)
            seen = {next(scan)}
            stop(cluster.nodes["alpha"])
            program.stdin.write("\n")
            program.stdin.flush()
            assert program.stdout.readline() == "calls\n"

            def wait() -> None:
                with pytest.raises(oneread.Unavailable, match="shard"):
                    seen.update(scan)

            waiting = threading.Thread(target=wait)
            waiting.start()
            # Each sleep takes the interpreter's lock back.
            turns = 0
            while waiting.is_alive():
                time.sleep(0.01)
                turns += 1
            assert turns > 20 and seen < entries
            begun = time.monotonic()
            program.send_signal(signal.SIGINT)
            assert program.stdout.readline() == "interrupted True\n", program.communicate(timeout=60)
            assert time.monotonic() - begun < 30
            cluster.nodes["alpha"].send_signal(signal.SIGCONT)

            # It may take longer than the client's time until the node serves again.
            def goes_on() -> bool:
                try:
                    seen.update(scan)
                except oneread.Unavailable:
                    return False
                return True

            until(goes_on)
            assert seen == entries
        assert outcome(program, "\n") == "True\n"
    finally:
        cluster.stop()


def heard(changes: ClusterChanges, count: int) -> list[ClusterChange]:
    """The next ones, of which each comes within a minute."""
    found = []
    while len(found) < count:
        change = changes.poll(60)
        assert change is not None, found
        found.append(change)
    return found


def shown(changes: ClusterChanges) -> dict[bytes, bytes | None]:
    """The keys that are shown until all were."""
    keys: dict[bytes, bytes | None] = {}
    while (change := heard(changes, 1)[0]).kind != "joined":
        assert change.kind == "key" and change.key is not None and change.shard == changes.shard_of(change.key)
        keys[change.key] = change.value
    return keys


@needs_etcd
def test_changes(cluster: Cluster) -> None:
    with cluster.client() as client:
        before = {b"feed:%d" % n: b"%d" % n for n in range(300)}
        client.put_many(before.keys(), before.values())
        with client.changes(start="keys", prefix=b"feed:", values=True) as changes:
            assert isinstance(changes, ClusterChanges) and iter(changes) is changes
            assert shown(changes) == before and changes.poll() is None and changes.poll(0.01) is None
            client.put(b"other", b"")
            client.put(b"feed:new", b"1")
            client.put(b"feed:new", b"2")
            client.remove(b"feed:new")
            shard = client.shard_of(b"feed:new")
            assert changes.shard_of(b"feed:new") == shard
            came, replaced, left = heard(changes, 3)
            assert came[:4] == ("came", b"feed:new", b"1", shard) and came.cause is None
            assert replaced[:4] == ("replaced", b"feed:new", b"2", shard) and replaced.number > came.number
            assert left[:4] == ("left", b"feed:new", None, shard) and left.cause == "removed"
            assert came.epoch == left.epoch > 0
            # All keys again, or those of a shard, which is named by its number.
            changes.resync()
            assert shown(changes) == before
            changes.resync(shard)
            assert shown(changes) == {key: value for key, value in before.items() if client.shard_of(key) == shard}
            with pytest.raises(oneread.Invalid, match="shard is 8; the cluster has 8"):
                changes.resync(8)
            with pytest.raises(OverflowError):
                changes.resync(-1)
        for closed in [changes.poll, changes.fileno, changes.resync, lambda: changes.position, lambda: next(changes)]:
            with pytest.raises(oneread.Closed):
                closed()
        changes.close()
        assert changes.shard_of(b"feed:new") == shard
        # Without values, from now on.
        with client.changes() as changes:
            client.put(b"feed:late", b"1")
            assert next(changes)[:3] == ("came", b"feed:late", None)
        for wrong, named in [("then", "now, keys"), (b"", "start"), (b"{}", "cluster"), (b"then", "position")]:
            with pytest.raises(oneread.Invalid, match=named):
                client.changes(start=wrong)  # type: ignore[arg-type]
        for mistaken in [{"start": 7}, {"prefix": "text"}, {"cursor": b""}]:
            with pytest.raises(TypeError):
                client.changes(**mistaken)  # type: ignore[arg-type]


@needs_etcd
def test_a_position_is_kept_for_another_process(cluster: Cluster) -> None:
    with cluster.client() as client:
        changes = client.changes(prefix=b"kept:")
        client.put_many(keys := [b"kept:%d" % n for n in range(200)], keys)
        first = [change.key for change in heard(changes, 70)]
        # With a thread that hears more than it has given.
        changes.fileno()
        first += [change.key for change in heard(changes, 30)]
        time.sleep(0.2)
        position = changes.position
        assert isinstance(position, bytes)
        changes.close()
        program = python(
            """
            import sys, oneread
            client = oneread.ClusterClient("pair", etcd=sys.argv[1], secret=sys.argv[2])
            changes = client.changes(start=bytes.fromhex(sys.argv[3]), prefix=b"kept:")
            print([changes.poll(60).key for _ in range(100)])
            """,
            cluster.etcd.url,
            SECRET,
            position.hex(),
        )
        rest = eval(outcome(program))
        assert sorted(first + rest) == sorted(keys)
        # Of one shard, from before the first change that a node keeps.
        told = json.loads(position)
        told["shards"][3] = {"epoch": 0, "number": 0}
        with client.changes(start=json.dumps(told).encode(), prefix=b"kept:") as changes:
            third = [key for key in keys if client.shard_of(key) == 3]
            others = [key for key in rest if client.shard_of(key) != 3]
            again = heard(changes, 1 + len(third) + len(others))
            gap, *behind = [change for change in again if change.shard == 3]
            assert (gap.kind, gap.key, gap.cause) == ("gap", None, None) and behind[0].epoch >= gap.epoch > 0
            assert [change.key for change in behind] == third
            assert sorted(change.key or b"" for change in again if change.shard != 3) == sorted(others)
            changes.resync(3)
            assert sorted(shown(changes)) == sorted(third)
        told["cluster"] ^= 1
        with pytest.raises(oneread.Invalid, match="another cluster"):
            client.changes(start=json.dumps(told).encode())


@needs_etcd
def test_a_descriptor_says_when_there_are_changes_of_a_cluster(cluster: Cluster) -> None:
    with cluster.client() as client:
        changes = client.changes(prefix=b"fd:")
    # It has connections of its own.
    with changes, cluster.client() as client:
        fd = changes.fileno()
        assert fd == changes.fileno() and select.select([fd], [], [], 0.02)[0] == []
        for n in range(3):
            client.put(b"fd:a", b"%d" % n)
            assert select.select([fd], [], [], 60)[0] == [fd] == select.select([fd], [], [], 0)[0]
            assert heard(changes, 1)[0].key == b"fd:a"
            assert changes.poll() is None and select.select([fd], [], [], 0.02)[0] == []
        # Keys that are asked for come anew; changes that wait do not go.
        before = changes.position
        client.put(b"fd:b", b"")
        select.select([fd], [], [], 60)
        changes.resync()
        changes.resync()
        assert changes.position == before
        told = []
        while not told or told[-1].kind != "joined":
            told += heard(changes, 1)
        assert [change.key for change in told if change.kind == "came"] == [b"fd:b"]
        assert sorted(change.key for change in told if change.kind == "key") == [b"fd:a", b"fd:b"]
        assert changes.poll(0.1) is None and changes.position != before
        changes.resync(client.shard_of(b"fd:a"))
        assert b"fd:a" in shown(changes)
        # More than ever wait, and all in order.
        numbers = [b"%d" % n for n in range(6000)]
        changes = client.changes(prefix=b"many", values=True)
        changes.fileno()
        client.put_many([b"many"] * 6000, numbers)
        assert [change.value for change in heard(changes, 6000)] == numbers
        changes.close()


@needs_etcd
def test_threads_share_the_changes_of_a_cluster(cluster: Cluster) -> None:
    with cluster.client() as client, ThreadPoolExecutor(8) as pool:
        changes = client.changes(prefix=b"shared:")
        client.put_many(keys := [b"shared:%d" % n for n in range(800)], keys)
        parts = list(pool.map(lambda _: heard(changes, 100), range(8)))
        assert sorted(change.key or b"" for part in parts for change in part) == sorted(keys)
        # Who waits is told that it is closed.
        waiting = [pool.submit(next, changes) for _ in range(3)]
        time.sleep(0.1)
        changes.close()
        for thread in waiting:
            assert isinstance(thread.exception(60), oneread.Closed)


@needs_etcd
def test_coroutines_hear_the_changes_of_a_cluster(cluster: Cluster) -> None:
    async def follow(client: ClusterClient, count: int) -> list[bytes | None]:
        found = []
        async with oneread.changes_async(client, prefix=b"async:", values=True) as changes:
            ready.release()
            async for change in changes:
                assert change.kind == "came" and change.key == change.value
                found.append(change.key)
                if len(found) == count:
                    break
        return found

    async def main() -> None:
        with cluster.client() as client:
            followers = [asyncio.create_task(follow(client, 500)) for _ in range(3)]
            for _ in followers:
                await ready.acquire()
            keys = [b"async:%d" % n for n in range(500)]
            await asyncio.to_thread(client.put_many, keys, keys)
            for found in await asyncio.wait_for(asyncio.gather(*followers), 60):
                assert sorted(found) == sorted(keys)
            # Who is cancelled loses nothing.
            changes = oneread.changes_async(client, prefix=b"cancelled:")
            waiting = asyncio.create_task(anext(changes))
            await asyncio.sleep(0.1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            position = changes.position
            client.put(b"cancelled:a", b"")
            assert (await asyncio.wait_for(anext(changes), 60)).key == b"cancelled:a"
            async with oneread.changes_async(client, start=position, prefix=b"cancelled:") as others:
                assert (await asyncio.wait_for(anext(others), 60)).key == b"cancelled:a"
            changes.resync(client.shard_of(b"cancelled:a"))
            assert (await asyncio.wait_for(anext(changes), 60))[:2] == ("key", b"cancelled:a")
            assert (await asyncio.wait_for(anext(changes), 60)).kind == "joined"
            waiting = asyncio.create_task(anext(changes))
            await asyncio.sleep(0.1)
            changes.close()
            with pytest.raises(StopAsyncIteration):
                await asyncio.wait_for(waiting, 60)

    ready = asyncio.Semaphore(0)
    asyncio.run(main())


@needs_etcd
@pytest.mark.parametrize("has_thread", [False, True])
def test_the_changes_of_a_cluster_belong_to_their_process(cluster: Cluster, has_thread: bool) -> None:
    with cluster.client() as client:
        feeds = [client.changes(prefix=b"fork:")]
        changes = feeds[0]
        position = changes.position
        if has_thread:
            changes.fileno()
        client.put(key := b"fork:%d" % has_thread, b"")

        def child() -> None:
            for call in [changes.poll, changes.fileno, changes.resync, lambda: changes.position, lambda: next(changes)]:
                with pytest.raises(oneread.Closed, match="fork.*begin another one"):
                    call()
            changes.close()
            feeds.clear()
            gc.collect()
            with client.changes(start=position, prefix=b"fork:") as own:
                assert heard(own, 1)[0].key == key

        for _ in range(3):
            in_child(child)
        assert heard(changes, 1)[0].key == key
        changes.close()


@needs_etcd
@pytest.mark.parametrize("begin", ["", "changes.fileno()"])
def test_ctrl_c_ends_a_wait_for_changes(cluster: Cluster, begin: str) -> None:
    program = python(
        f"""
        import signal, sys, threading, oneread
        signal.signal(signal.SIGINT, signal.default_int_handler)
        client = oneread.ClusterClient("pair", etcd=sys.argv[1], secret=sys.argv[2])
        changes = client.changes(prefix=b"interrupted")
        {begin}
        print("calls", flush=True)
        try:
            next(changes)
        except KeyboardInterrupt:
            client.put(b"interrupted", b"")
            print(changes.poll(60).key)
        # It ends while a thread waits.
        threading.Thread(target=next, args=(changes,), daemon=True).start()
        """,
        cluster.etcd.url,
        SECRET,
    )
    assert program.stdout is not None and program.stdout.readline() == "calls\n", program.communicate(timeout=60)
    time.sleep(0.3)
    begun = time.monotonic()
    program.send_signal(signal.SIGINT)
    assert outcome(program) == "b'interrupted'\n"
    assert time.monotonic() - begun < 30


@needs_etcd
def test_what_is_wrong_is_refused_before_anything_is_done(cluster: Cluster) -> None:
    with cluster.client() as client:
        for key in [b"", b"k" * 256]:
            for call in [client.get, client.get_advisory, client.remove, client.__contains__]:
                with pytest.raises(oneread.KeyTooLong, match="1 to 255"):
                    call(key)
        with pytest.raises(oneread.ValueTooLong):
            client.put(b"a-long", bytes((1 << 20) + 1))
        with pytest.raises(oneread.Invalid, match="oneread"):
            client.put(b"\0oneread\0x", b"")
        with pytest.raises(oneread.KeyTooLong, match="key 1") as wrong:
            client.put_many([b"wrong:0", b""], [b"", b""])
        assert wrong.value.position == 1 and client.get(b"wrong:0") is None
        with pytest.raises(oneread.ValueTooLong, match="key 2") as wrong:
            client.put_many([b"wrong:0", b"x", b"y"], [b"", b"", bytes(2 << 20)])
        assert wrong.value.position == 2 and client.get(b"wrong:0") is None
        with pytest.raises(oneread.KeyTooLong) as wrong:
            client.get_many([b"a", b"b", b""])
        assert wrong.value.position == 2
        with pytest.raises(ValueError, match="one for each"):
            client.put_many([b"a"], [])
        for call in [lambda: client.get("text"), lambda: client.put(b"a", 7), lambda: client.get_many("ab")]:
            with pytest.raises(TypeError):
                call()


@needs_etcd
def test_what_cannot_be_connected_to_says_so(cluster: Cluster, folder: Path) -> None:
    url = cluster.etcd.url
    with pytest.raises(oneread.Invalid, match="etcd has no cluster nobody: make it by `oneread cluster init nobody`"):
        ClusterClient("nobody", etcd=[url])
    begun = time.monotonic()
    with pytest.raises((oneread.Disconnected, oneread.Timeout), match=ABSENT):
        ClusterClient("pair", etcd=[ABSENT])
    assert time.monotonic() - begun < 30
    # One member that answers is enough.
    with ClusterClient("pair", etcd=f"{ABSENT},{url}", secret=SECRET) as client:
        assert client.shards == 8
    for options, named in [
        ({"etcd": []}, "no endpoint"),
        ({"etcd": ["nowhere"]}, "nowhere"),
        ({"etcd": ["https://127.0.0.1:1"]}, "https"),
        ({"etcd": 7}, "iterable"),
        ({"etcd": [7]}, "etcd"),
        ({"name": "a/b"}, "no name of a cluster"),
        ({"secret": ""}, "secret is empty"),
        ({"secret": "s" * 300}, "at most 256"),
        ({"etcd_user": "u"}, "etcd_password"),
        ({"etcd_cert": "c", "etcd_key": "k"}, "etcd_ca"),
        ({"etcd_cert": "c"}, "etcd_key"),
        ({"etcd": ["https://127.0.0.1:1"], "etcd_ca": folder / "none.pem"}, "none.pem"),
        ({"timeout": -1}, "timeout"),
        ({"tls_cert": "c", "tls_key": "k"}, "tls_ca"),
        ({"nope": 1}, "ClusterClient has no argument nope"),
    ]:
        with pytest.raises((oneread.OnereadError, TypeError), match=named):
            ClusterClient(**{"name": "pair", "etcd": [url]} | options)
    with pytest.raises(oneread.OnereadError, match="user|auth"):
        ClusterClient("pair", etcd=[url], etcd_user="somebody", etcd_password="p")


@needs_etcd
def test_a_wrong_secret(cluster: Cluster) -> None:
    for secret in ["another", None]:
        with cluster.client(secret=secret, timeout=1) as client:
            with pytest.raises(oneread.NotDone, match="secret"):
                client.put(b"a", b"")
            with pytest.raises(oneread.NotDone, match="0 of 3 changes were made") as refused:
                client.put_many([b"a", b"b", b"c"], [b""] * 3)
            assert refused.value.rejected == [0, 1, 2] and refused.value.unknown == []
            assert isinstance(refused.value, TimeoutError)


@needs_etcd
def test_threads_share_a_client(cluster: Cluster) -> None:
    for exactly_once in [False, True]:
        with cluster.client(exactly_once=exactly_once) as client, ThreadPoolExecutor(24) as pool:
            client.put(b"count", b"0")

            def work(thread: int) -> int:
                keys = [b"threads:%d:%d" % (thread, n) for n in range(20)]
                for key in keys:
                    client.put(key, key)
                    assert client.get(key) == key
                while not client.compare_and_swap(b"count", seen := client.get(b"count"), b"%d" % (int(seen) + 1)):
                    pass
                return sum(value == key for key, value in zip(keys, client.get_many(keys)))

            assert list(pool.map(work, range(24))) == [20] * 24
            assert client.get(b"count") == b"24"


@needs_etcd
def test_calls_let_other_threads_run(cluster: Cluster) -> None:
    with cluster.client(secret="another", timeout=2) as client:
        waiting = threading.Thread(target=lambda: pytest.raises(oneread.NotDone, client.put, b"a", b""))
        waiting.start()
        # Each sleep takes the interpreter's lock back.
        turns = 0
        while waiting.is_alive():
            time.sleep(0.01)
            turns += 1
        assert turns > 20


@needs_etcd
@pytest.mark.parametrize("exactly_once", [False, True])
def test_forks(cluster: Cluster, exactly_once: bool) -> None:
    client = cluster.client(exactly_once=exactly_once)
    client.put(b"parent", b"1")
    stop = threading.Event()

    def use() -> None:
        n = 0
        while not stop.is_set():
            client.put(b"busy", b"%d" % n)
            client.get(b"parent")
            n += 1

    # Children have other lanes: with the same one, the second's changes would be taken for the first's.
    def child(number: int) -> None:
        assert client.get(b"parent") == b"1"
        for n in range(10):
            assert client.insert(b"child:%d:%d:%d" % (exactly_once, number, n), b"x")
        in_child(lambda: client.put(b"grandchild:%d:%d" % (exactly_once, number), b"3"))

    threads = [threading.Thread(target=use) for _ in range(2)]
    [thread.start() for thread in threads]
    try:
        for number in range(3):
            in_child(lambda: child(number))
    finally:
        stop.set()
        [thread.join() for thread in threads]
    keys = [b"child:%d:%d:%d" % (exactly_once, number, n) for number in range(3) for n in range(10)]
    assert client.get_many(keys) == [b"x"] * 30
    assert client.get_many([b"grandchild:%d:%d" % (exactly_once, number) for number in range(3)]) == [b"3"] * 3
    client.close()
    in_child(lambda: pytest.raises(oneread.Closed, client.get, b"parent"))


@needs_etcd
@pytest.mark.parametrize(
    "call", ["client.put(b'a', b'')", "client.put_many([b'a'], [b''])", "connect(silent)", "client.changes()"]
)
def test_ctrl_c_ends_every_wait(cluster: Cluster, call: str) -> None:
    program = python(
        f"""
        import signal, socket, sys, oneread
        signal.signal(signal.SIGINT, signal.default_int_handler)
        listener = socket.create_server(("127.0.0.1", 0))
        silent = "http://127.0.0.1:%d" % listener.getsockname()[1]
        def connect(etcd):
            return oneread.ClusterClient("pair", etcd=etcd, secret="another", timeout=3600, etcd_timeout=3600)
        client = connect(sys.argv[1])
        print("calls", flush=True)
        try:
            {call}
        except KeyboardInterrupt:
            print("interrupted", client.shards)
        """,
        cluster.etcd.url,
    )
    assert program.stdout is not None and program.stdout.readline() == "calls\n"
    time.sleep(0.3)
    begun = time.monotonic()
    program.send_signal(signal.SIGINT)
    assert outcome(program) == "interrupted 8\n"
    assert time.monotonic() - begun < 30


@needs_etcd
def test_a_node_is_killed_and_nothing_is_lost(etcd: Etcd, folder: Path) -> None:
    place = folder / "killed"
    place.mkdir()
    cluster = Cluster(etcd, place, "killed")
    keys = [b"%d" % n for n in range(2000)]
    try:
        cluster.start("alpha")
        cluster.start("beta")
        cluster.until_copied(2)
        with cluster.client(exactly_once=True) as client, cluster.client() as plain:
            client.put_many(keys, keys)
            assert plain.get_many(keys) == keys
            cluster.end("alpha")
            # At once: what the killed one served waits for the other to take over.
            assert plain.get_many(keys) == keys and [plain.get_advisory(key) for key in keys[:50]] == keys[:50]
            client.put_many(keys, [key * 2 for key in keys])
            assert plain.get_many(keys) == [key * 2 for key in keys]
            assert client.insert(b"new", b"1") and plain.compare_and_swap(b"new", b"1", b"2")
            cluster.end("beta")
        # Nobody serves anything: no lease, and no change.
        with cluster.client(timeout=2) as client:
            with pytest.raises(oneread.Unavailable, match="shard") as missing:
                client.get(b"1")
            assert isinstance(missing.value, oneread.Timeout)
            with pytest.raises(oneread.Unavailable):
                client.get_many(keys)
            with pytest.raises(oneread.Unavailable):
                client.get_advisory(b"1")
            with pytest.raises(oneread.NotDone, match="certainly not made"):
                client.put(b"1", b"")
    finally:
        cluster.stop()


@needs_etcd
@pytest.mark.parametrize("has_thread", [False, True])
def test_a_node_is_killed_and_no_change_is_missed(etcd: Etcd, folder: Path, has_thread: bool) -> None:
    name = f"followed-{has_thread}".lower()
    place = folder / name
    place.mkdir()
    cluster = Cluster(etcd, place, name)
    keys = [b"%d" % n for n in range(1000)]
    try:
        cluster.start("alpha")
        cluster.start("beta")
        cluster.until_copied(2)
        with cluster.client(exactly_once=True) as client, client.changes(values=True) as changes:
            if has_thread:
                changes.fileno()
            client.put_many(keys, keys)
            told = heard(changes, 500)
            position = changes.position
            # Nodes' numbers are random: one of the two may serve all shards.
            cluster.end(cluster.primary(0))
            client.put_many(keys, [key * 2 for key in keys])
            for key in keys[:100]:
                assert client.remove(key)
            told += heard(changes, 1600)
            assert changes.poll(1) is None
            assert {change.kind for change in told} == {"came", "replaced", "left"}
            # Each once, and in order: what is there by the last that is told of a key is what is there.
            assert len({(change.shard, change.number) for change in told}) == 2100
            for shard in range(8):
                numbers = [change.number for change in told if change.shard == shard]
                assert numbers == sorted(numbers)
            assert len({change.epoch for change in told if change.shard == 0}) > 1
            values = {change.key: change.value for change in told}
            assert client.get_many(keys) == [values[key] for key in keys] == [None] * 100 + [key * 2 for key in keys[100:]]
            # Another one, from a place before: who serves now tells what the killed one had told.
            with client.changes(start=position, values=True) as others:
                again = heard(others, 1600)

            def place(change: ClusterChange) -> tuple[int | None, int]:
                return change.shard, change.number

            assert sorted(again, key=place) == sorted(told[500:], key=place)
    finally:
        cluster.stop()


@needs_etcd
def test_a_node_that_does_not_answer_leaves_outcomes_unknown(etcd: Etcd, folder: Path) -> None:
    place = folder / "stopped"
    place.mkdir()
    cluster = Cluster(etcd, place, "stopped", "--replicas", "1")
    try:
        cluster.start("alpha")
        cluster.until_copied(1)
        with cluster.client(timeout=60) as client:
            client.put(b"a", b"1")
        with cluster.client(timeout=2) as client:
            client.put(b"a", b"2")
            stop(cluster.nodes["alpha"])
            with pytest.raises(oneread.Unknown, match="may have been made") as unknown:
                client.put(b"a", b"3")
            assert isinstance(unknown.value, TimeoutError) and not isinstance(unknown.value, oneread.NotDone)
            with pytest.raises(oneread.Unknown, match="0 of 2 changes were made, and 2 more may have been") as unknown:
                client.put_many([b"a", b"b"], [b"4", b"4"])
            assert unknown.value.unknown == [0, 1] and unknown.value.rejected == []
            # Its memory may still be there, and is not believed.
            with pytest.raises(oneread.Unavailable):
                client.get(b"a")
            cluster.nodes["alpha"].send_signal(signal.SIGCONT)
        with cluster.client() as client:
            until(lambda: client.get(b"a") in [b"2", b"3", b"4"])
    finally:
        cluster.stop()
