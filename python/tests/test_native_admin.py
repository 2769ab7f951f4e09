"""What a program has a server do beside puts: grow, shrink, snapshots."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from native import served, until

import oneread

GROWS: dict[str, Any] = {"bytes_max": 256 << 20, "segment_slots": 1 << 12, "key_max": 16, "value_max": 16}


def test_a_table_grows_ahead_and_shrinks() -> None:
    with served(**GROWS) as (server, client):
        at_first = client.growth()
        assert at_first["segments"] == 1 and at_first["bytes_max"] > at_first["bytes_backed"] > 0
        index = oneread.Index(**GROWS)
        index.grow_for(20_000)
        client.grow_for(20_000)
        until(lambda: client.growth()["segments"] == index.growth()["segments"] >= 4)
        ahead = server.growth()
        client.put_many([b"%d" % n for n in range(ahead["segments"] * 1000)], [b""] * (ahead["segments"] * 1000))
        # No put has split one.
        assert server.growth()["segments"] == ahead["segments"]
        client.clear()

        def is_small() -> bool:
            client.shrink()
            return client.growth()["segments"] == 1

        until(is_small)
        assert server.growth()["merges"] >= ahead["segments"] - 1
    with served(slots=64) as (server, client):
        assert not any(server.growth().values()) and client.grow_for(1 << 40) == client.shrink() == client.growth()


def test_an_index_grows_ahead_and_shrinks() -> None:
    index = oneread.Index(**GROWS)
    assert index.growth()["segments"] == 1
    index.grow_for(20_000)
    segments = index.growth()["segments"]
    assert segments >= 4 and len(index) == 0

    def is_small() -> bool:
        index.shrink()
        index.tidy()
        return index.growth()["segments"] == 1

    until(is_small)
    assert oneread.Index(slots=64).shrink() == 0
    for wrong in [-1, 1 << 64]:
        with pytest.raises(OverflowError):
            index.grow_for(wrong)


def test_snapshots(tmp_path: Path) -> None:
    file = tmp_path / "snapshot"
    with served(snapshots=file) as (server, client):
        before = client.snapshot_status()
        assert before.is_on and before.every is None and before.asked == 0 and before.saved_at is None
        client.put_many([b"a", b"b"], [b"1", b"2"])
        begun = time.time()
        asked = client.ask_for_snapshot().asked
        assert asked == 1
        until(lambda: client.snapshot_status().finished >= asked)
        made = client.snapshot_status()
        assert made.saved == made.finished == 1 and made.keys == 2 and made.failure is None
        assert made.bytes == file.stat().st_size
        assert made.saved_at is not None and begun - 1 < made.saved_at < time.time() + 1
        client.put(b"c", b"3")
        again = server.ask_for_snapshot()
        assert again is not None and again.asked == 2
        until(lambda: client.snapshot_status().finished >= 2)
        assert server.snapshot_status() == client.snapshot_status() and client.snapshot_status().keys == 3
        # The copy of the file is as of now: the last snapshot, at the end, does not have this key.
        copy = tmp_path / "copy"
        copy.write_bytes(file.read_bytes())
        client.put(b"d", b"4")
    with served(restore=copy) as (_, client):
        assert sorted(client.scan()) == [b"a", b"b", b"c"]
    with served(restore=file) as (_, client):
        assert sorted(client.scan()) == [b"a", b"b", b"c", b"d"]


def test_a_snapshot_that_fails_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with served(snapshots=folder / "snapshot", snapshots_every=3600) as (server, client):
        assert client.snapshot_status().every == 3600
        shutil.rmtree(folder)
        client.put(b"a", b"1")
        asked = client.ask_for_snapshot().asked
        until(lambda: client.snapshot_status().finished >= asked)
        failed = client.snapshot_status()
        assert failed.saved < failed.finished and failed.failure is not None and "No such file" in failed.failure
        folder.mkdir()  # for the one at the end
    with served() as (server, client):
        assert server.snapshot_status() is None and server.ask_for_snapshot() is None
        assert client.ask_for_snapshot() == client.snapshot_status()
        assert not client.snapshot_status().is_on
