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
    index = oneread.Index(keys=10, backing="huge")
    assert_type(index.get(b"key", b""), bytes)
    assert_type(len(index), int)
