"""`batch_is_exist` of Mooncake's master over loopback TCP, beside the rest of this folder.

pip install mooncake-transfer-engine-non-cuda; mooncake_master --port 50051 &; python mooncake_master.py
"""
import random
import time

from mooncake.store import MooncakeDistributedStore

KEYS = 10_000
store = MooncakeDistributedStore()
assert store.setup("localhost", "P2PHANDSHAKE", 512 << 20, 64 << 20, "tcp", "", "127.0.0.1:50051") == 0
names = [f"key-{n:012d}" for n in range(KEYS)]
for name in names:
    assert store.put(name, b"x" * 32) == 0
for count in (1, 128, 1_000):
    times = []
    for _ in range(500):
        asked = random.choices(names, k=count)
        start = time.perf_counter_ns()
        answers = store.batch_is_exist(asked)
        times.append(time.perf_counter_ns() - start)
        assert answers == [1] * count
    times.sort()
    print(f"{count:5} keys: median {times[250] / 1e3:.1f} us, p99 {times[495] / 1e3:.1f} us")
