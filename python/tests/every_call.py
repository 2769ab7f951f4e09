"""A short program that makes each kind of call once, without NumPy: for valgrind (docs/TESTING.md)."""

import tempfile
from contextlib import suppress

import oneread

folder = tempfile.mkdtemp(prefix="or-", dir="/tmp")
keys = [b"%08d" % n for n in range(150)]
packed, digests = b"".join(keys), [b"%016d" % n for n in range(40)]

with oneread.Server(folder + "/s", keys=200, life=True, owners=True) as server, oneread.Client(server.address) as client:
    assert client.put_many(keys, keys) == 150 and client.put(b"a", b"1", ttl=100) and not client.put(b"a", b"2")
    assert not client.insert(b"a", b"") and client.update(b"a", b"12345678")
    assert client.get(b"a") == b"12345678" and client.get(b"no", 5) == 5 and b"a" in client
    assert client.value_len(b"a") == 8 and client.revalidate([b"a"], [client.life(b"a").number]) == [True]
    assert client.get_into(b"a", bytearray(100)) == 8
    assert client.get_many(keys) == client.get_many(key for key in keys) == keys
    for many in [packed, packed * 20]:
        out, found = bytearray(len(many)), bytearray(len(many) // 8)
        assert client.get_many_into(many, out, width=8, found=found) == len(found) == sum(found) and out == many
        assert sum(client.contains_many(many, width=8)) == len(found)
    assert client.compare_exchange(b"a", b"12345678", b"87654321") and client.add(b"n", 3, initial=1) is not None
    assert client.incr(b"d", 3, initial=-1, ttl=100) == 2 and client.touch(b"d") and client.touch(b"d", ttl=9)
    assert client.or_(b"o", b"\1") and client.and_not(b"o", b"\1") and client.append(b"p", b"xyz") and client.remove(b"p")
    client.put(b"long", bytes(100_000))
    assert client.get(b"long") == bytes(100_000)
    assert client.put_commit(client.put_start(b"t", 3), b"abc") and client.put_abort(client.put_start(b"u", 3))
    assert len(list(client.scan(values=True))) == len(client)
    with client.changes(start="keys", values=True) as feed:
        while next(feed).kind != "joined":
            pass
        assert feed.fileno() >= 0 and client.put(b"f", b"1") and next(feed).kind == "came" and len(feed.position) == 3
        feed.resync()
    for wrong in [
        lambda: client.get(b""),
        lambda: client.get_many([b"a", b""]),
        lambda: client.get_into(b"a", bytearray(1)),
        lambda: client.put(b"a", 5),
        lambda: oneread.Client(folder + "/none"),
    ]:
        with suppress(oneread.OnereadError, TypeError):
            raise SystemExit(f"not refused: {wrong()}")
    owner = client.owner(5)
    owner.put(b"own", b"1")
    assert client.remove_owner(5)
    owner.close()
    print(client.stats(), client.server_stats(), client.growth(), client.snapshot_status(), server.stats(), server.growth())
    client.remove_many(keys[:9])
    client.clear()

index = oneread.Index(keys=200)
assert index.put_many(keys, keys) == 150 and index.get_many(keys) == keys and index.get(keys[0]) == keys[0]
assert index.compare_and_swap(keys[0], keys[0], b"") and index.remove(keys[1])
index.tidy()
assert index.clear() == 149

table = oneread.LocationIndex.table()
with oneread.Server(folder + "/l", keys=100, **table) as server, oneread.Client(server.address) as client:
    blocks = oneread.LocationIndex(client)
    blocks.put(digests, [(blocks.endpoint("e"), 0, n, 1) for n in range(40)])
    count, records = blocks.locate_many(digests)
    assert count == blocks.longest_prefix(digests) == blocks.locate_prefix(digests)[0] == 40
    assert sum(blocks.revalidate(digests, records)) == sum(blocks.contains_many(digests)) == 40
    assert blocks.remove(digests[:3], bytes(records)[:96]) == 3

table = oneread.PlacementIndex.table()
with oneread.Server(folder + "/p", keys=500, **table) as server, oneread.Client(server.address) as client:
    holders = oneread.PlacementIndex(client)
    holder = holders.holder("w")
    assert holders.add(holder, digests) == holders.match_prefix(digests)[0] == len(holders.holders_of(digests)) == 40
    assert holders.remove(holder, digests[30:]) == 10
    stream = oneread.EventStream(holders, holder)
    stream.take(1, [("stored", digests), ("removed", digests[5:]), ("cleared",)])
    stream.restarted()
    holders.drop_holder(stream.holder)
    holders.clean()
print("done")
