"""The indexes for caches of LLM engines: buffers in, arrays out, and errors that name what is wrong."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from native import outcome, python, served, until

import oneread
from oneread import FOUND, Location

np = pytest.importorskip("numpy")


@contextmanager
def locations(**options: Any) -> Iterator[tuple[oneread.Client, oneread.LocationIndex]]:
    with served(**{**oneread.LocationIndex.table(), **options}) as (_, client):
        yield client, oneread.LocationIndex(client)


@contextmanager
def placements(holders: int = 256, grouped: bool = False) -> Iterator[oneread.PlacementIndex]:
    with served(**oneread.PlacementIndex.table(holders, grouped=grouped)) as (_, client):
        yield oneread.PlacementIndex(client)


def prompt(blocks: int, width: int = 16, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (blocks, width), np.uint8)


def at(endpoint: int, blocks: int) -> list[Location]:
    return [Location(endpoint, 1, 4096 * block, 4096) for block in range(blocks)]


@pytest.mark.parametrize("width", [8, 16, 32, 36])
def test_locations_come_as_records(width: int) -> None:
    with locations() as (_, index):
        endpoint = index.endpoint("10.0.0.7:7400")
        assert index.endpoint_name(endpoint) == "10.0.0.7:7400" and index.endpoint_name(endpoint + 1) is None
        digests = prompt(10, width)
        assert index.put(digests[:7], at(endpoint, 7)) == 7
        count, found = index.locate_many(digests)
        assert count == 7 and found.dtype.itemsize == FOUND.size == 32
        assert found["is_there"].tolist() == [True] * 7 + [False] * 3
        assert found["address"][:7].tolist() == [4096 * block for block in range(7)]
        assert set(found["endpoint"][:7]) == {endpoint} and set(found["tier"][:7]) == {1}
        # These digests as bytes, and as many buffers; into the memory of the caller.
        memory = bytearray(10 * FOUND.size)
        assert index.locate_many(digests.tobytes(), width=width, out=memory) == (7, memory)
        assert memory == found.tobytes()
        records = list(FOUND.iter_unpack(memory))
        assert records[3][0] == 3 * 4096 and records[3][-1] is True and records[9] == (0, 0, 0, 0, 0, 0, False)
        listed = index.locate_many([row.tobytes() for row in digests])
        assert listed[0] == 7 and (listed[1] == found).all()
        # What was found names what is removed, and only that.
        assert index.remove(digests[:2], found[:2]) == 2 and index.remove(digests[:2], found[:2]) == 0


def test_prefixes() -> None:
    with locations() as (_, index):
        digests = prompt(300)
        there = np.ones(300, bool)
        there[200] = there[297] = False
        index.put(digests[there], at(1, 298))
        assert index.longest_prefix(digests) == index.longest_prefix(digests, search="exact") == 200
        assert index.longest_prefix(digests[:150], search="prefix_closed") == 150
        assert index.longest_prefix(digests, search=2) == 300 and index.longest_prefix(digests, search=3) == 297
        count, found = index.locate_prefix(digests)
        assert count == 200 and found["is_there"].tolist() == [True] * 200 + [False] * 100
        assert (index.contains_many(digests) == there).all()
        out = bytearray(b"\7" * 300)
        assert index.contains_many(digests, out=out) is out and list(out) == there.tolist()


def test_more_blocks_than_are_looked_for_with_the_lock() -> None:
    with locations(keys=10_000) as (_, index):
        digests = prompt(5000)
        index.put(digests[:4000], at(1, 4000))
        count, found = index.locate_many(digests)
        assert count == 4000 and index.longest_prefix(digests) == 4000
        assert index.contains_many(digests).sum() == 4000
        assert index.revalidate(digests, found).sum() == 4000


def test_texts_are_hashed_with_a_secret() -> None:
    with locations() as (client, index):
        other = oneread.LocationIndex(client, secret=bytes(range(16)))
        keys = ["model/a", "model/b" * 20]
        index.put(keys, at(1, 2))
        assert list(index.contains_many(keys)) == [True, True] and not other.contains_many(keys).any()
        with pytest.raises(TypeError, match="digest 1 is of type bytes, and the first one of type str"):
            index.contains_many(["a", b"12345678"])  # type: ignore[arg-type]
        with pytest.raises(oneread.Invalid, match="secret is 3 bytes"):
            oneread.LocationIndex(client, secret=b"abc")


def test_what_was_fetched_is_revalidated() -> None:
    with locations() as (_, index):
        digests = prompt(4)
        index.put(digests[:3], at(1, 3))
        _, found = index.locate_many(digests)
        assert index.put(digests[1:2], [(1, 1, 9 * 4096, 4096)]) == 0
        index.remove(digests[2:3], at(1, 3)[2:])
        assert list(index.revalidate(digests, found)) == [True, False, False, False]
        out = bytearray(b"\7\7\7\7")
        assert index.revalidate(digests, found.tobytes(), out=out) is out and out == b"\1\0\0\0"
        # What is there stays, if that is asked for.
        assert index.put(digests, at(2, 4), replace=False) == 2
        assert index.locate_many(digests)[1]["endpoint"].tolist() == [1, 1, 2, 2]


def test_an_owner_takes_its_blocks_along() -> None:
    with locations() as (_, index):
        digests = prompt(5)
        engine = index.as_owner(7, absent_for=60.0)
        engine.put(digests, at(1, 5))
        assert index.locate_many(digests)[1]["owner"].tolist() == [7] * 5
        assert index.remove_owner(7) and not index.contains_many(digests).any()


@pytest.mark.parametrize("grouped", [False, True])
def test_who_has_how_long_a_prefix(grouped: bool) -> None:
    with placements(96, grouped) as index:
        assert index.is_grouped is grouped and index.holders_max == 96
        a, b = index.holder("worker a"), index.holder("worker b")
        assert a != b and index.holder("worker a") == a and hash(a) == hash(index.holder("worker a"))
        assert {(holder.number, holder.name) for holder in index.holders()} == {
            (a.number, "worker a"),
            (b.number, "worker b"),
        }
        digests = prompt(40)
        assert index.add(a, digests) == (5 if grouped else 40)
        index.add(b, digests[:16])
        longest, lengths = index.match_prefix(digests)
        assert longest == 40 and list(lengths.items()) == [("worker a", 40), ("worker b", 16)]
        assert index.match_prefix(digests.tobytes(), width=16) == (40, lengths)
        index.add(b, digests, start=16)
        assert index.match_prefix(digests)[1]["worker b"] == 40
        index.remove(b, digests, start=8)
        assert index.match_prefix(digests)[1]["worker b"] == 8
        if grouped:
            with pytest.raises(oneread.Invalid, match="groups"):
                index.holders_of(digests)
        else:
            assert index.holders_of(digests[6:10]) == [["worker a", "worker b"]] * 2 + [["worker a"]] * 2


def test_a_holder_that_was_dropped_has_nothing() -> None:
    with placements() as index:
        a = index.holder("a")
        digests = prompt(20)
        index.add(a, digests)
        assert index.drop_holder(a) and not index.drop_holder(a)
        assert index.match_prefix(digests)[0] == 0 and index.holders() == []
        with pytest.raises(oneread.HolderGone, match="register it again"):
            index.add(a, digests)
        seen = freed = 0
        while not (cleaned := index.clean(8)).is_done:
            seen, freed = seen + cleaned.entries, freed + cleaned.freed
        assert seen >= 20 and freed == 1


@pytest.mark.parametrize("grouped", [False, True])
def test_a_cleared_worker_keeps_its_name(grouped: bool) -> None:
    with served(**oneread.PlacementIndex.table(grouped=grouped)) as (_, client):
        index, router = oneread.PlacementIndex(client), oneread.PlacementIndex(client)
        first, blocks, others = index.holder("engine"), prompt(80), prompt(80, seed=1)
        index.add(first, blocks)
        assert router.match_prefix(blocks) == (80, {"engine": 80})
        # It is cleared, as by another process, and what it had in the sets is another one's after a walk.
        index.drop_holder("engine")
        again = index.holder("engine")
        index.add(again, others)
        while not index.clean().is_done:
            pass
        index.add(index.holder("other"), blocks)
        assert router.match_prefix(blocks) == (80, {"other": 80})
        assert router.match_prefix(others) == (80, {"engine": 80})
        assert again.number == first.number and again != first
        with pytest.raises(oneread.HolderGone, match="engine"):
            router.add(first, blocks)
        # Who knows only the first registration drops the worker all the same.
        assert router.drop_holder(first) and not router.drop_holder("engine")
        assert index.match_prefix(others) == (0, {}) and [one.name for one in index.holders()] == ["other"]


def test_whatever_is_a_digest_is_taken() -> None:
    numbers = [0, 1, 2**63, 2**64 - 1]
    array8 = np.array(numbers, np.uint64)
    with placements() as index:
        index.add(index.holder("a"), array8)
        for same in (
            numbers,
            tuple(numbers),
            iter(numbers),
            array("Q", numbers),
            [0, 1, -(2**63), -1],
            array8.astype(np.int64),
            array8.astype(">u8"),
            array8.astype(object),
            list(array8),
            [np.uint64(number) for number in numbers],
            [number.to_bytes(8, sys.byteorder) for number in numbers],
        ):
            assert index.match_prefix(same) == (4, {"a": 4}), same
        texts = ["model/a", "model/ä", ""]
        index.add(index.holder("b"), texts)
        for same in (tuple(texts), iter(texts), np.array(texts), np.array(texts, object)):
            assert index.match_prefix(same) == (3, {"b": 3}), same
        for wrong, why in (
            ([1, 2**64], "digest 1 is a number of more than 64 bits; give its bytes"),
            ([1, -(2**63) - 1], "digest 1 is a number of more than 64 bits"),
            ([1, b"12345678"], "digest 1 is of type bytes, and the first one of type int; give one kind"),
            ([b"12345678", "a"], "digest 1 is of type str, and the first one of type bytes"),
            ([1, True], "digest 1 is of type bool"),
            ("model/a", "give a list, also of one"),
            (7, "give a list, also of one"),
            ([1.5], "float"),
            (array8.astype(float), "floats, which hold no number of 64 bits; give an array of uint64"),
            (array8.astype(np.uint32), "fewer than 64 bits; give an array of uint64"),
            ([bytes(4)], "4 were given; give numbers 64 bits"),
        ):
            with pytest.raises((TypeError, ValueError, OverflowError), match=why):
                index.match_prefix(wrong)
    with locations() as (_, blocks):
        assert blocks.put(numbers, at(1, 4)) == 4 and blocks.longest_prefix(array8) == 4


def test_hashes_are_those_of_others() -> None:
    tokens = list(range(1, 11))
    # What `dynamo._core.compute_block_hash_for_seq` of the wheel ai-dynamo-runtime 1.6.1 gives.
    for lora, salt, expected in (
        (None, None, [14643705804678351452, 16777012769546811212]),
        ("adapter", None, [5402321046179341001, 14483578958650678965]),
        (None, "tenant", [17621909411505482860, 2865997321390064198]),
        ("adapter", "tenant", [18236049043930474413, 17511390760979262066]),
    ):
        assert oneread.block_hashes(tokens, 4, salt, lora, local=True).tolist() == expected
    rolling = oneread.block_hashes(tokens, 4)
    assert rolling.dtype == np.uint64 and rolling.tolist() == [14643705804678351452, 4945711292740353085]
    assert oneread.block_hashes(tokens, 4, scheme="rfc1403", seed=1337).tolist() == rolling.tolist()
    for same in (tuple(tokens), array("I", tokens), np.array(tokens, np.int64), np.array(tokens, ">u4")):
        assert (oneread.block_hashes(same, 4) == rolling).all()
    with placements() as index:
        index.add(index.holder("a"), rolling)
        assert index.match_prefix(oneread.block_hashes(tokens[:4] + [0] * 4, 4)) == (1, {"a": 1})
    for options, why in (
        ({"scheme": "sha256"}, "there are: dynamo, rfc1403"),
        ({"scheme": "rfc1403"}, "needs the seed"),
        ({"scheme": "rfc1403", "seed": 1, "lora": "a"}, "have no salt and no lora"),
        ({"seed": 1}, "has a seed of its own"),
        ({"block_size": 0}, "block_size: blocks have 0 tokens"),
    ):
        with pytest.raises(oneread.Invalid, match=why):
            oneread.block_hashes(tokens, **{"block_size": 4, **options})
    with pytest.raises(OverflowError) as error:
        oneread.block_hashes([1, -1], 1)
    assert "token 1" in error.value.__notes__[0]


def test_events_of_an_engine_are_taken_in() -> None:
    with placements() as index:
        stream = oneread.EventStream(index, index.holder("engine"))
        number = stream.holder.number
        # As engines publish them: numbers of 64 bits.
        blocks = np.arange(1, 11, dtype=np.uint64)
        assert stream.take(5, [("stored", blocks), ("removed", blocks[8:])]) == (10, 2, False, 0)
        assert index.match_prefix(blocks)[1] == {"engine": 8}
        assert stream.take(5, [("removed", blocks)]).is_late
        assert stream.take(8, [("stored", blocks.tobytes())], width=8) == oneread.EventOutcome(2, 0, False, 2)
        before = stream.holder
        assert stream.take(9, [("cleared",), ("stored", blocks[:1])]).added == 1
        assert stream.holder != before and stream.holder.name == "engine" and stream.holder.number == number
        assert index.match_prefix(blocks)[0] == 1
        index.drop_holder(stream.holder)
        with pytest.raises(oneread.HolderGone):
            stream.take(10, [("stored", blocks)])
        stream.clear()
        assert stream.take(10, [("stored", blocks)]).added == 10
        # The engine begins again, with its numbers, too.
        stream.restarted()
        assert index.match_prefix(blocks)[0] == 0 and stream.holder.name == "engine"
        assert stream.take(0, [("stored", blocks)]) == (10, 0, False, 0)
        assert stream.take(10, []).missed == 9
        child = os.fork()
        if child == 0:
            try:
                stream.take(11, [])
            except oneread.Closed:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(oneread.Invalid, match="there are: stored, removed, cleared") as error:
            stream.take(11, [("stored", blocks), ("gone", blocks)])  # type: ignore[list-item]
        assert "event 1" in error.value.__notes__
    with placements(96, grouped=True) as index, pytest.raises(oneread.Invalid, match="groups"):
        oneread.EventStream(index, index.holder("engine"))


def test_wrong_input_is_named() -> None:
    with locations() as (_, index):
        with pytest.raises(oneread.Invalid, match="12 were given"):
            index.contains_many(bytes(24), width=12)
        with pytest.raises(ValueError, match="no multiple of 16"):
            index.contains_many(bytes(24), width=16)
        with pytest.raises(TypeError, match="say how long each is"):
            index.contains_many(bytes(24))
        with pytest.raises(oneread.Invalid, match="digest 1 has 16 bytes and the first one 8"):
            index.contains_many([bytes(8), bytes(16)])
        with pytest.raises(BufferError, match="gaps"):
            index.contains_many(prompt(8)[::2])
        digests = prompt(2)
        with pytest.raises(oneread.Invalid, match="2 digests and 1 of"):
            index.put(digests, at(1, 1))
        with pytest.raises(oneread.Invalid, match="location 1 is of a block that is not there"):
            index.put(digests[:1], at(1, 1))
            index.remove(digests, index.locate_many(digests)[1])
        with pytest.raises(OverflowError) as error:
            index.put(digests, [(1, 1, 0, 1), (1, 1, 0, 1 << 32)])
        assert "location 1" in error.value.__notes__
        with pytest.raises(ValueError, match="out has 63 bytes, and 64 are needed"):
            index.locate_many(digests, out=bytearray(63))
        with pytest.raises(ValueError, match="out does not begin at a multiple of 8"):
            index.locate_many(digests, out=memoryview(bytearray(65))[1:])
        with pytest.raises(BufferError, match="read-only"):
            index.locate_many(digests, out=bytes(64))
        with pytest.raises(oneread.Invalid, match="there are: exact"):
            index.longest_prefix(digests, search="longest")  # type: ignore[arg-type]
        with pytest.raises(oneread.Invalid, match="1 to 200 bytes"):
            index.endpoint("")
        assert index.locate_many(b"")[0] == index.put([], []) == index.longest_prefix([]) == 0
    with served(value_max=64) as (_, client):
        with pytest.raises(oneread.Incompatible, match="keeps no lives of entries; make one with `LocationIndex"):
            oneread.LocationIndex(client)
        with pytest.raises(oneread.Incompatible, match="is not marked"):
            oneread.PlacementIndex(client)
    with placements() as placement, pytest.raises(TypeError, match="str"):
        placement.drop_holder(3)  # type: ignore[arg-type]
    with pytest.raises(oneread.Closed):
        index.contains_many(digests)


def test_a_full_table_names_the_blocks() -> None:
    with locations(slots=64) as (_, index):
        digests = prompt(500)
        with pytest.raises(oneread.Full) as error:
            index.put(digests, at(1, 500))
        there = index.contains_many(digests)
        assert error.value.rejected == np.flatnonzero(~there).tolist() and 0 < there.sum() <= 64


def test_threads_and_children_have_handles_of_their_own() -> None:
    with locations() as (_, index):
        digests = prompt(100)
        index.put(digests, at(1, 100))
        counts: list[int] = []

        def look() -> None:
            counts.extend(index.locate_many(digests)[0] for _ in range(50))

        threads = [threading.Thread(target=look) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counts == [100] * 400
        assert index.stats()["get"]["hits"] >= 40_000
        child = os.fork()
        if child == 0:
            os._exit(0 if index.locate_many(digests)[0] == 100 and index.put(digests, at(2, 100)) == 0 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert set(index.locate_many(digests)[1]["endpoint"]) == {2}


def test_lookups_go_on_while_the_server_is_suspended(tmp_path: Any) -> None:
    server = python(
        """
        import sys, oneread
        with oneread.Server(sys.argv[1], keys=1000, **oneread.LocationIndex.table()) as server:
            print(server.address, flush=True)
            sys.stdin.read()
        """,
        str(tmp_path / "s"),
    )
    assert server.stdout is not None
    with oneread.Client(server.stdout.readline().strip()) as client:
        index = oneread.LocationIndex(client)
        digests = prompt(50)
        index.put(digests, at(1, 50))
        os.kill(server.pid, 19)
        state = f"/proc/{server.pid}/stat"
        until(lambda: Path(state).read_text().rpartition(")")[2].split()[0] == "T")
        try:
            assert index.longest_prefix(digests) == 50
        finally:
            os.kill(server.pid, 18)
    outcome(server, "")


@pytest.mark.parametrize("holders", [0, 4_097, 65_535, 70_000])
def test_a_table_has_as_many_holders_as_an_index_can(holders: int) -> None:
    for grouped in (False, True):
        with pytest.raises(oneread.Invalid, match=f"holders is {holders}; give 1 to 4096"):
            oneread.PlacementIndex.table(holders, grouped=grouped)


@pytest.mark.parametrize("grouped", [False, True])
def test_closed_holders_are_jumped_over(grouped: bool) -> None:
    with placements(96, grouped) as index:
        digests = prompt(1000)
        closed, other = index.holder("closed", prefix_closed=True), index.holder("other")
        assert closed.prefix_closed and not other.prefix_closed
        index.add(closed, digests[:700])
        index.add(other, digests[:90])
        assert index.match_prefix(digests) == (700, {"closed": 700, "other": 90})
        # Who says less counts.
        assert not index.holder("closed").prefix_closed
        assert not index.holder("closed", prefix_closed=True).prefix_closed
        assert index.match_prefix(digests) == (700, {"closed": 700, "other": 90})


def test_a_server_makes_the_table_of_an_index() -> None:
    with served(index="location") as (_, client):
        assert oneread.LocationIndex(client).longest_prefix([1]) == 0
        with pytest.raises(oneread.Incompatible, match="is not marked as one of holders"):
            oneread.PlacementIndex(client)
    with served(index="grouped", holders=300) as (_, client):
        index = oneread.PlacementIndex(client)
        assert (index.holders_max, index.is_grouped) == (300, True)
    with served(index="placement", bytes_max=64 << 20) as (_, client):
        index = oneread.PlacementIndex(client)
        assert (index.holders_max, index.is_grouped) == (1_024, False)
    for options, why in [
        ({"index": "holders"}, "there are: location, placement, grouped"),
        ({"index": "location", "holders": 7}, "leave them out"),
        ({"holders": 7}, "give index, too"),
        ({"index": "placement", "holders": 4_097}, "give 1 to 4096"),
    ]:
        with pytest.raises(oneread.Invalid, match=why):
            oneread.Server(**options)  # type: ignore[arg-type]


WORKER = """
import sys
import oneread

index = oneread.PlacementIndex(oneread.Client(sys.argv[1]))
holder = index.holder(sys.argv[2], absent_for=1)
assert holder.is_present and holder.goes_by_itself
index.add(holder, list(range(1, 10)))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("grouped", [False, True])
def test_a_worker_that_dies_goes_by_itself(grouped: bool) -> None:
    blocks = list(range(1, 10))
    with served(**oneread.PlacementIndex.table(96, grouped=grouped, owners=True)) as (server, client):
        router = oneread.PlacementIndex(client)
        workers = {name: python(WORKER, server.address, name) for name in ("dies", "says nothing", "suspended")}
        try:
            for worker in workers.values():
                assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
            assert router.match_prefix(blocks) == (9, dict.fromkeys(workers, 9))
            (seen,) = [one for one in router.holders() if one.name == "dies"]
            assert seen.goes_by_itself and not seen.is_present
            workers["suspended"].send_signal(signal.SIGSTOP)
            workers["dies"].kill()
            others = {"says nothing": 9, "suspended": 9}
            until(lambda: router.match_prefix(blocks)[1] == others)
            with pytest.raises(oneread.HolderGone, match="dies"):
                router.add(seen, blocks)
            assert router.drop_absent() == 1 and router.drop_absent() == 0
            workers["suspended"].send_signal(signal.SIGCONT)
            assert router.match_prefix(blocks)[1] == others
        finally:
            for worker in workers.values():
                worker.kill()
                worker.communicate()
        until(lambda: router.match_prefix(blocks)[1] == {})


def test_nobody_goes_while_the_server_is_away() -> None:
    server = python(
        """
        import sys, tempfile, oneread
        with tempfile.TemporaryDirectory(prefix="or-", dir="/tmp") as folder:
            with oneread.Server(folder + "/s", keys=1000, **oneread.PlacementIndex.table(owners=True)) as server:
                print(server.address, flush=True)
                sys.stdin.read()
        """
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        index, blocks = oneread.PlacementIndex(oneread.Client(address)), list(range(1, 10))
        silent, dead = index.holder("silent", absent_for=1), index.holder("dead", absent_for=1)
        index.add(silent, blocks)
        index.add(dead, blocks)
        server.send_signal(signal.SIGSTOP)
        # While nobody looks, it dies, and is away for longer than it may be.
        del dead
        time.sleep(2)
        assert index.match_prefix(blocks) == (9, {"silent": 9, "dead": 9})
        server.send_signal(signal.SIGCONT)
        until(lambda: index.match_prefix(blocks) == (9, {"silent": 9}))
        assert silent.is_present
    finally:
        server.kill()
        server.communicate()


def test_holders_go_by_themselves_in_tables_with_owners() -> None:
    with placements() as index, pytest.raises(oneread.Incompatible, match=r"PlacementIndex.table\(owners=True\)"):
        index.holder("a", absent_for=1)
    with served(index="placement", owners=True) as (_, client):
        holder = oneread.PlacementIndex(client).holder("a", prefix_closed=True, absent_for=3600)
        assert holder.prefix_closed and holder.is_present
        with pytest.raises(ValueError, match="absent_for"):
            oneread.PlacementIndex(client).holder("a", absent_for=-1)
