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
print("it works alone")
