"""Each call once, and with numbers that nobody means: those are taken, or refused by an exception that names them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from native import outcome, python

PROGRAM = """
    import math, resource, tempfile
    # What is taken at its word is refused by the system.
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    import oneread
    from oneread import Client, Index, LocationIndex, PlacementIndex, Server

    COUNTS = [0, 1, 2**31, 2**63, 2**64 - 1, 2**64, -1]
    TIMES = [0.0, 2.0**31, 2.0**63, 2.0**64, -1.0, math.nan, math.inf, 10**400]
    folder = tempfile.mkdtemp(prefix="or-", dir="/tmp")
    number = 0

    def serve(**options):
        global number
        number += 1
        sized = options.keys() & {"keys", "slots", "bytes_max"}
        Server(f"{folder}/{number}", **({} if sized else {"keys": 100}), **options).stop()

    def index(**options):
        Index(**({} if options.keys() & {"keys", "slots", "bytes_max"} else {"keys": 100}), **options)

    server = Server(folder + "/s", keys=1000, life=True, owners=True)
    client = Client(server.address)
    feed, alone, growing = client.changes(), Index(keys=100, life=True), Index(bytes_max=1 << 26)
    others = [Server(folder + "/l", keys=100, **LocationIndex.table()),
              Server(folder + "/p", keys=1000, **PlacementIndex.table(owners=True))]
    blocks, owners = LocationIndex(Client(others[0].address)), PlacementIndex(Client(others[1].address))
    holder, digest = owners.holder("a"), [bytes(16)]
    stream = oneread.EventStream(owners, holder)

    def option(make, values, *names, **others):
        return [(name, lambda value, name=name: make(**{name: value}, **others), values) for name in names]

    table = ["keys", "slots", "bytes_max", "key_max", "value_max", "inline_max", "heap_bytes"]
    calls = [
        *option(serve, COUNTS, *table, "clients_max", "clients_per_peer", "unread_bytes_max", "mailbox_bytes_max"),
        *option(serve, COUNTS, "feed_bytes", "workers", "client_bytes_max", "starts_percent"),
        *option(serve, COUNTS, "segment_slots", bytes_max=1 << 26),
        *option(serve, TIMES, "grace", "ttl", "half_open", "start_within_max"),
        *option(serve, TIMES, "snapshots_every", snapshots=folder + "/snapshot"),
        *option(index, COUNTS, *table), *option(index, COUNTS, "segment_slots", bytes_max=1 << 26),
        *option(index, TIMES, "grace", "ttl"),
        *option(lambda **options: Client(server.address, **options).close(), COUNTS, "hint_bytes", "owner", "region"),
        *option(lambda **options: Client(server.address, **options).close(), TIMES, "timeout", "get_timeout", "lease"),
        *option(lambda **options: Client(server.address, owner=7, **options).close(), TIMES, "absent_for"),
        ("ttl", lambda value: client.put(b"t", b"", ttl=value), TIMES),
        ("ttl", lambda value: client.put_many([b"t"], [b""], ttl=value), TIMES),
        ("ttl", lambda value: alone.put(b"t", b"", ttl=value), TIMES),
        ("ttl", lambda value: blocks.put(digest, [(1, 0, 0, 1)], ttl=value), TIMES),
        ("within", lambda value: client.put_abort(client.put_start(b"s", 3, within=value)), TIMES),
        ("absent_for", lambda value: client.owner(8, absent_for=value).close(), TIMES),
        ("timeout", feed.poll, [0.0, *TIMES[2:]]),
        ("length", lambda value: client.put_abort(client.put_start(b"s", value)), COUNTS),
        ("delta", lambda value: client.add(b"n", value, initial=0), COUNTS),
        ("initial", lambda value: client.add(b"m", 0, initial=value), COUNTS),
        ("len_max", lambda value: client.append(b"a", b"x", len_max=value), COUNTS),
        ("width", lambda value: client.get_many(b"abcd", width=value), COUNTS),
        ("width", lambda value: client.contains_many(b"", width=value), COUNTS),
        ("value_width", lambda value: client.put_many([b"a"] * 8, b"abcdefgh", value_width=value), COUNTS),
        ("number", client.remove_owner, COUNTS), ("number", lambda value: client.owner(value).close(), COUNTS),
        ("keys", client.grow_for, COUNTS), ("keys", growing.grow_for, COUNTS),
        ("numbers", lambda value: client.revalidate([b"a"], [value]), COUNTS),
        ("start", lambda value: client.changes(start=(value, value, value)).close(), COUNTS),
        ("number", blocks.as_owner, COUNTS), ("number", blocks.endpoint_name, COUNTS),
        ("location", lambda value: blocks.put(digest, [(value, 0, 0, 1)]), COUNTS),
        ("location", lambda value: blocks.put(digest, [(1, value, 0, 1)]), COUNTS),
        ("location", lambda value: blocks.put(digest, [(1, 0, value, value)]), COUNTS),
        ("holders", PlacementIndex.table, COUNTS),
        ("absent_for", lambda value: owners.holder("b", absent_for=value), TIMES), ("entries", owners.clean, COUNTS),
        ("start", lambda value: owners.add(holder, digest, start=value), COUNTS),
        ("start", lambda value: owners.remove(holder, digest, start=value), COUNTS),
        ("number", lambda value: stream.take(value, []), COUNTS),
        ("level", oneread.log_level, COUNTS),
    ]
    # How the library says what an option of this name is about.
    words = {
        "bytes_max": "for a table that grows|of shared memory", "segment_slots": "slots of a segment",
        "keys": "region", "slots": "region", "ttl": "to live", "timeout": "within", "length": "bytes long",
        "len_max": "bound of this append", "start": "generation", "absent_for": "owner", "number": "owner",
    }
    for name, call, values in calls:
        for value in values:
            try:
                call(value)
            except (oneread.OnereadError, ValueError, OverflowError, TypeError) as error:
                text = " ".join([str(error), *getattr(error, "__notes__", [])])
                if not any(word in text for word in [name, *words.get(name, name).split("|")]):
                    print(f"{name}={value if value != 10**400 else '1e400'}: {error!r} {text}")
    print("done")
"""


def test_extreme_numbers_are_taken_or_refused_by_name() -> None:
    assert outcome(python(PROGRAM)) == "done\n"


def test_every_call_once() -> None:
    """What valgrind looks at (docs/TESTING.md)."""
    command = [sys.executable, str(Path(__file__).with_name("every_call.py"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done
