"""Lookups from Python, beside what is used for them now: `python bench/table.py`.

One run, one thread, in rounds: in each, every contender is asked for random keys of its own, and another begins. Then it
is asked for the same keys again, which are in the processor's caches now. A figure is the median of the rounds. Then what oneread costs besides: puts, long values, a SharedDict, and eight
processes. `--json` and `--picture` (SVG; needs matplotlib) write what was measured. The machine should be idle: the
load is written down, too.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from contenders import ALL, KEY, VALUE, Contender, List, keys_of, made

import oneread

SIZES = (1, 128, 1_000, 10_000)


def seconds(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def median(values: list[float]) -> float:
    return statistics.median(values)


def one_by_one(get: Callable[[bytes], Any], keys: list[bytes]) -> float:
    """The time for one of these keys, the loop over them not counted."""

    def gets() -> None:
        for key in keys:
            get(key)

    def nothing() -> None:
        for key in keys:
            pass

    return max(seconds(gets) - seconds(nothing), 0.0) / len(keys)


def lookups(contenders: list[Contender], keys: Any, rounds: int) -> list[dict[str, dict[str, float]]]:
    """Of keys that nobody has asked for lately, and of the same keys again."""
    rng = np.random.default_rng(2)
    first: dict[str, dict[int, list[float]]] = {c.name: {size: [] for size in SIZES} for c in contenders}
    again: dict[str, dict[int, list[float]]] = {c.name: {size: [] for size in SIZES} for c in contenders}
    for nth in range(rounds):
        for size in SIZES:
            # Another begins in each round.
            for contender in contenders[nth % len(contenders) :] + contenders[: nth % len(contenders)]:
                if size > contender.most:
                    continue
                # What one has asked for is in the caches of those that have it in the same memory.
                asked = rng.choice(keys, max(size, 200))
                if size == 1:
                    listed = asked.tolist()
                    took = [one_by_one(contender.get, listed) for _ in range(4)]
                else:
                    given = contender.prepare(asked[:size])
                    took = [seconds(lambda: contender.many(given)) for _ in range(4)]
                first[contender.name][size].append(took[0])
                again[contender.name][size].append(median(took[1:]))
    return [
        {name: {str(size): median(took) for size, took in by_size.items() if took} for name, by_size in times.items()}
        for times in (first, again)
    ]


def puts(contenders: list[Contender], rounds: int) -> dict[str, dict[str, float]]:
    """One of a new key, and a thousand, a key."""
    found: dict[str, dict[str, float]] = {}
    for contender in contenders:
        if type(contender).put is Contender.put and "put" not in vars(contender):
            continue
        one, many = [], []
        for _ in range(rounds):
            new = [os.urandom(KEY) for _ in range(1_000)]
            values = [os.urandom(VALUE) for _ in new]
            one.append(seconds(lambda: [contender.put(k, v) for k, v in zip(new[:100], values)]) / 100)
            many.append(seconds(lambda: contender.put_many(new, values)) / len(new))
        found[contender.name] = {"one": median(one), "of 1,000": median(many)}
    return found


def long_values(client: oneread.Client, rounds: int) -> dict[str, float]:
    """64 KiB into a buffer, beside a copy of as many bytes from memory as large."""
    count, length = 256, 64 << 10
    value = os.urandom(length)
    for n in range(count):
        client.put(b"long%d" % n, value)
    source, target = np.zeros((count, length), np.uint8) + 1, np.empty(length, np.uint8)
    gets, copies = [], []
    for _ in range(rounds):
        order = np.random.default_rng().permutation(count).tolist()
        gets.append(seconds(lambda: [client.get_into(b"long%d" % n, target) for n in order]) / count)
        copies.append(seconds(lambda: [np.copyto(target, source[n]) for n in order]) / count)
    return {"get_into": median(gets), "memcpy": median(copies)}


def shared_dict(rounds: int) -> dict[str, float]:
    name = f"bench-{os.getpid()}"
    with oneread.SharedDict(name) as shared:
        shared.update({f"user:{n}": {"id": n, "name": "somebody"} for n in range(1_000)})
        keys = [f"user:{n}" for n in range(1_000)]
        gets = [one_by_one(shared.__getitem__, keys) for _ in range(rounds)]
        value = {"id": 1, "name": "somebody"}
        puts = [seconds(lambda: [shared.put(key, value) for key in keys]) / len(keys) for _ in range(rounds)]
        raw = [shared.client.get(shared.raw_key(key)) for key in keys]
        unpickled = [one_by_one(shared.loads, raw) for _ in range(rounds)]  # type: ignore[arg-type]
    return {"get": median(gets), "put": median(puts), "of it pickle.loads": median(unpickled)}


def memory() -> dict[str, int]:
    """The memory of this process in KiB: its own, and what it shares."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {what: int(lines[what].split()[0]) for what in ("RssAnon", "RssShmem")}


def reader(address: str, key_count: int, begin: Any, for_seconds: float, told: Any) -> None:
    client = oneread.Client(address)
    given = np.random.default_rng(os.getpid()).choice(keys_of(key_count), 10_000)
    into = np.empty((10_000, VALUE), np.uint8)
    client.get_many_into(given, into)
    begin.wait()
    done, begun = 0, time.perf_counter()
    while (took := time.perf_counter() - begun) < for_seconds:
        client.get_many_into(given, into)
        done += len(given)
    told.put((done / took, memory()))


def processes(address: str, key_count: int, count: int, for_seconds: float) -> tuple[float, list[dict[str, int]]]:
    """How many keys a second so many processes look up together, and their memory."""
    # New ones: they have nothing of this process's memory.
    context = multiprocessing.get_context("spawn")
    begin, told = context.Barrier(count), context.Queue()
    given = (address, key_count, begin, for_seconds, told)
    children = [context.Process(target=reader, args=given) for _ in range(count)]
    for child in children:
        child.start()
    all_told = [told.get(timeout=60 + for_seconds) for _ in children]
    for child in children:
        child.join()
    return sum(rate for rate, _ in all_told), [of for _, of in all_told]


def scaling(address: str, key_count: int, for_seconds: float) -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0))
    alone, _ = processes(address, key_count, 1, for_seconds)
    together, of = processes(address, key_count, 8, for_seconds)
    share = together / alone / cores
    return {"cores": cores, "alone": alone, "eight": together, "of the cores": share, "memory KiB": of}


def told_time(took: float | None) -> str:
    if took is None:
        return "-"
    unit, by = ("ms", 1e3) if took >= 1e-3 else ("us", 1e6)
    return f"{took * by:.3g} {unit}"


def show(result: dict[str, Any]) -> None:
    for what, of in [("keys a call", "lookups"), ("the same again", "again")]:
        print("\n" + "  ".join([f"{what:24}"] + [f"{size:>10,}" for size in SIZES]))
        for name, by_size in result[of].items():
            print("  ".join([f"{name:24}"] + [f"{told_time(by_size.get(str(size))):>10}" for size in SIZES]))
    print(f"\n{'puts':24}  {'one':>10}  {'of 1,000':>10}")
    for name, took in result["puts"].items():
        print(f"{name:24}  {told_time(took['one']):>10}  {told_time(took['of 1,000']):>10}")
    long, shared, eight = result["long values"], result["SharedDict"], result["processes"]
    print(f"\n64 KiB into a buffer: {told_time(long['get_into'])}, {long['get_into'] / long['memcpy']:.2f} of memcpy")
    print("SharedDict: " + ", ".join(f"{what} {told_time(took)}" for what, took in shared.items()))
    own = max(of["RssAnon"] for of in eight["memory KiB"]) >> 10
    print(
        f"8 processes on {eight['cores']} cores: {eight['of the cores']:.2f} of the cores' single rate; "
        f"each has up to {own} MiB of its own, Python and NumPy included"
    )
    print("\nload " + " ".join(f"{load:.2f}" for load in result["load"]) + " at the start, " + result["machine"])
    for name, why in result["missing"].items():
        print(f"left out: {name} ({why})")


def draw(result: dict[str, Any], path: str) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, both = pyplot.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    for axes, of in zip(both, ("lookups", "again")):
        for name, by_size in result[of].items():
            sizes = [int(size) for size in by_size]
            a_key = [1e6 * took / size for size, took in zip(sizes, by_size.values())]
            style = {"linewidth": 2.5} if name.startswith("oneread") else {"linewidth": 1.2, "linestyle": "--"}
            axes.plot(sizes, a_key, marker="o", label=name, **style)
        axes.set(xscale="log", yscale="log", xlabel="keys a call")
        axes.grid(True, which="major", alpha=0.3)
    both[0].set(ylabel="µs a key", title=f"keys at random, out of {result['keys']:,}")
    both[1].set_title("the same keys again")
    both[1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each run of several processes")
    parser.add_argument("--rivals", help="names, with commas between: " + ", ".join(kind.name for kind in ALL[2:]))
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--picture", metavar="FILE")
    given = parser.parse_args()
    load = os.getloadavg()
    keys = keys_of(given.keys)
    names = None if given.rivals is None else given.rivals.split(",")
    contenders, missing, folder = made(keys, names)
    with folder:
        try:
            table = contenders[0]
            assert isinstance(table, List)
            address = table.server.address
            first, again = lookups(contenders, keys, given.rounds)
            result = {
                "keys": given.keys,
                "load": load,
                "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
                "missing": missing,
                "lookups": first,
                "again": again,
                "puts": puts(contenders, given.rounds),
                "long values": long_values(table.client, given.rounds),
                "SharedDict": shared_dict(given.rounds),
                "processes": scaling(address, given.keys, given.seconds),
            }
        finally:
            for contender in reversed(contenders):
                contender.close()
    show(result)
    if given.json:
        Path(given.json).write_text(json.dumps(result, indent=1) + "\n")
    if given.picture:
        draw(result, given.picture)


if __name__ == "__main__":
    main()
