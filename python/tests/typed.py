"""A program as a type checker sees it. It is not run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import assert_type

import numpy as np

import oneread


def program(path: Path) -> Iterator[str]:
    with oneread.Server(path, keys=1000, ttl=3.0, evict="s3-fifo", start="open_or_create") as server:
        with oneread.Client(server.address, timeout=1.0, requests="mailbox", server_uids=[0]) as client:
            assert_type(client, oneread.Client)
            assert_type(client.put(b"key", bytearray(b"value"), ttl=1), bool)
            assert_type(client.get(b"key"), bytes | None)
            assert_type(client.get(memoryview(b"key"), 7), bytes | int)
            assert_type(client.get_into(b"key", bytearray(8)), int | None)
            assert_type(client.get_many([b"a", b"b"]), list[bytes | None])
            keys = np.zeros((10, 16), np.uint8)
            assert_type(client.get_many_into(keys, np.zeros(10, np.uint64), found=np.zeros(10, np.bool_)), int)
            assert_type(client.put_many(keys, keys), int)
            assert_type(client.add(b"n", initial=1), int | None)
            life = client.life(b"key")
            if life is not None:
                assert_type(life, oneread.Life)
                assert_type(life.ends_in, float | None)
            for change in client.changes(start="keys", values=True):
                assert_type(change, oneread.Change)
                yield change.kind
            try:
                ticket = client.put_start(b"key", 3)
                client.put_commit(ticket, b"abc")
            except oneread.Full as error:
                assert_type(error.position, int | None)
                assert_type(error.rejected, list[int])
    with oneread.Server(path, keys=1000, **oneread.LocationIndex.table()) as server:
        blocks = oneread.LocationIndex(oneread.Client(server.address), secret=bytes(16))
        assert_type(blocks.put(keys, [oneread.Location(1, 0, 0, 4096)] * 10, ttl=1.0), int)
        assert_type(blocks.put(["a text"], [(1, 0, 0, 4096)], replace=False), int)
        count, found = blocks.locate_many(keys, out=bytearray(320))
        assert_type(count, int)
        assert_type(blocks.longest_prefix(keys, search="prefix_closed"), int)
        blocks.revalidate(keys, found)
    with oneread.Server(path, keys=1000, **oneread.PlacementIndex.table(96, grouped=True)) as server:
        holders = oneread.PlacementIndex(oneread.Client(server.address))
        assert_type(holders.holder("a"), oneread.Holder)
        assert_type(holders.add(holders.holder("a"), keys, start=8), int)
        assert_type(holders.clean(), oneread.Cleaned)
    with oneread.ClusterClient("demo", etcd=["http://e:2379"], timeout=1, secret=b"s", exactly_once=True) as cluster:
        assert_type(cluster.get(b"key"), bytes | None)
        assert_type(cluster.get_many(keys), list[bytes | None])
        assert_type(cluster.get_advisory(b"key", 7), bytes | int)
        assert_type(cluster.scan(prefix=b"user:", values=True), oneread.ClusterScan)
        assert_type(cluster.compare_and_swap(b"key", b"a", bytearray(b"b")), bool)
        with cluster.changes(start="keys", prefix=b"user:") as changes:
            assert_type(next(changes), oneread.ClusterChange)
            assert_type(changes.poll(1), oneread.ClusterChange | None)
            changes.resync(changes.shard_of(b"key"))
            assert_type(oneread.changes_async(cluster, start=changes.position), oneread.AsyncChanges[oneread.ClusterChange])
        try:
            cluster.put_many([b"a"], [b"b"])
        except (oneread.NotDone, oneread.Unknown) as error:
            assert_type(error.unknown, list[int])
    index = oneread.Index(keys=10, backing="huge")
    assert_type(index.get(b"key", b""), bytes)
    assert_type(len(index), int)
