"""The package without any other: what it does with NumPy, it does without."""

import os
import tempfile

import oneread

with tempfile.TemporaryDirectory(prefix="or-", dir="/tmp") as folder:
    with oneread.Server(os.path.join(folder, "s"), keys=100) as server, oneread.Client(server.address) as client:
        assert client.put_many(b"abc", b"123", width=1, value_width=1) == 3
        found = client.contains_many(b"axc", width=1)
        assert isinstance(found, bytearray) and list(found) == [1, 0, 1]
        values = bytearray(3)
        assert client.get_many_into(b"axc", values, width=1) == 2 and values == b"1\x003"
    table = oneread.LocationIndex.table()
    with oneread.Server(os.path.join(folder, "l"), keys=100, **table) as server, oneread.Client(server.address) as client:
        index = oneread.LocationIndex(client)
        index.put(bytes(16), [(1, 2, 3, 4)], width=16)
        count, found = index.locate_many(bytes(32), width=16)
        assert count == 2 and isinstance(found, bytearray)
        address, number, length, endpoint, owner, tier, is_there = next(oneread.FOUND.iter_unpack(found))
        assert (endpoint, tier, address, length, owner, is_there) == (1, 2, 3, 4, 0, True)
        assert index.revalidate(bytes(32), found, width=16) == index.contains_many(bytes(32), width=16) == b"\1\1"
    table = oneread.PlacementIndex.table()
    with oneread.Server(os.path.join(folder, "p"), keys=1000, **table) as server, oneread.Client(server.address) as client:
        index = oneread.PlacementIndex(client)
        holder = index.holder("worker")
        index.add(holder, bytes(16), width=16)
        longest, lengths = index.match_prefix(bytes(48), width=16)
        assert longest == 3 and lengths == {holder.name: 3}
hashes = oneread.block_hashes(range(1, 11), 4)
assert hashes.typecode == "Q" and list(hashes) == [14643705804678351452, 4945711292740353085]
print("it works alone")
