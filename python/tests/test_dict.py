"""`SharedDict`: a dict, in several processes."""

from __future__ import annotations

import datetime as dt
import os
import pickle
import re
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from dicts import begin, outcome, say, said, shm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oneread
from oneread import SharedDict
from oneread._keys import decode, encode

__all__ = ["shm"]

ZONES = [dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30)), dt.timezone(dt.timedelta(hours=-9))]
PLAIN = st.one_of(
    st.text(max_size=12),
    st.binary(max_size=300),
    st.integers(),
    st.none(),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False),
    st.datetimes(),
    st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1), timezones=st.sampled_from(ZONES)),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.uuids(),
)
KEYS = st.recursive(
    PLAIN,
    lambda parts: st.one_of(st.lists(parts, max_size=3).map(tuple), st.frozensets(parts, max_size=3)),
    max_leaves=6,
)


@given(KEYS, KEYS)
def test_a_key_is_its_bytes_and_no_other_key_has_them(one: Any, other: Any) -> None:
    assert decode(encode(one)) == one
    assert (encode(one) == encode(other)) == (one == other)
    assert encode(one), "no key is empty"


@pytest.mark.parametrize("key", [1, 1.5, 0.1, -7])
def test_equal_numbers_are_one_key(key: Any) -> None:
    assert encode(key) == encode(Decimal(key)) == encode(float(key))
    assert encode(True) == encode(1.0) == encode(Decimal("1.00")) == encode(1)
    assert encode(Decimal("0.1")) != encode(0.1), "they differ, as in a dict"


def test_what_is_no_key_is_said_to_be_none(shm: Path) -> None:
    with SharedDict("keys") as shared:
        for key in (["a"], {"a": 1}, {1}, bytearray(b"a"), object()):
            with pytest.raises(TypeError, match="a key is a str"):
                shared[key] = 1  # type: ignore[index]
            with pytest.raises(TypeError):
                shared[("part", key)]  # type: ignore[index]
        assert len(shared) == 0
    with SharedDict("short", key_max=16) as shared, pytest.raises(oneread.KeyTooLong, match="its hash 17"):
        shared["k" * 17] = 1


def test_keys_of_any_length_are_kept(shm: Path) -> None:
    with SharedDict("long") as shared:
        long: list[Any] = ["k" * 256, "k" * 70_000, b"b" * 300, ("t", "k" * 300), (None, 1.5, frozenset({1, "k" * 300}))]
        for nth, key in enumerate(long):
            assert key not in shared and shared.get(key, "none") == "none"
            shared[key] = nth
            assert shared[key] == nth and key in shared
        shared["short"] = "s"
        assert dict(shared.items()) == {**{key: nth for nth, key in enumerate(long)}, "short": "s"}
        assert set(shared) == {*long, "short"} and len(shared) == 6
        assert shared.get_many(long) == [0, 1, 2, 3, 4]
        shared.update({key: [nth] for nth, key in enumerate(long)})
        assert shared.setdefault(long[0], 9) == [0] and shared.pop(long[0]) == [0] and long[0] not in shared
        assert shared.setdefault(long[0], 9) == 9 and shared.add(long[0], 10) is False
        assert shared.incr(long[0]) == 10 and shared.incr(long[0], -11) == -1 and shared[long[0]] == -1
        assert shared.incr("n" * 300, 2, initial=5) == 7
        with pytest.raises(oneread.Invalid, match="no decimal text"):
            shared.incr(long[1])
        with pytest.raises(oneread.Invalid, match="out of 64 bits"):
            shared.incr(long[0], -(2**63))
        del shared[long[1]]
        with shared.changes(start="keys") as feed:
            seen = {}
            while (change := next(feed)).kind != "joined":
                seen[change.key] = change.value
            assert seen == dict(shared.items())
        # Another key of the same hash is another key.
        placed, before = shared._placed(long[2])
        assert before is not None
        shared.client.put(placed, shared._stored(b"another", b"1"))
        assert shared.get(long[2]) is None


def test_numbers_are_decimal_text_for_every_door(shm: Path) -> None:
    for codec in ("pickle", "plain", "msgpack", "raw"):
        with SharedDict(f"numbers-{codec}", codec=codec) as shared:
            assert shared.incr("n") == 1 and shared.incr("n", 41) == 42 and shared.incr("m", -3, initial=1) == -2
            assert shared.client.get(b"n") == b"42"
            assert shared["n"] == (b"42" if codec == "raw" else 42)
            shared["n"] = b"7" if codec == "raw" else 7
            assert shared.incr("n") == 8 and shared.client.incr(b"n") == 9
            shared.client.put(b"n", b"-5")
            assert shared.incr("n", initial=None) == -4
            with pytest.raises(KeyError):
                shared.incr("none", initial=None)
            assert "none" not in shared
            shared["text"] = b"x"
            with pytest.raises(oneread.Invalid, match="no decimal text"):
                shared.incr("text")
            shared.client.put(b"n", b"%d" % (2**63 - 1))
            with pytest.raises(oneread.Invalid, match="out of"):
                shared.incr("n")


def test_an_end_is_set_without_the_value(shm: Path) -> None:
    with SharedDict("ends") as shared:
        assert shared.add("a", [1]) and not shared.add("a", [2]) and shared["a"] == [1]
        assert shared.ttl("a") is None and not shared.touch("none") and not shared.expire("none", 5)
        assert shared.expire("a", 1000)
        left = shared.ttl("a")
        assert left is not None and 900 < left <= 1001 and shared["a"] == [1]
        assert shared.touch("a") and shared.ttl("a") is None
        with pytest.raises(KeyError):
            shared.ttl("none")
        with pytest.raises(oneread.Invalid):
            shared.expire("a", 0)
        assert shared.incr("hits", ttl=1000) == 1 and shared.incr("hits", ttl=5000) == 2
        left = shared.ttl("hits")
        assert left is not None and left <= 1001, "who is there keeps its end"


def test_keys_that_begin_so_are_cleared(shm: Path) -> None:
    with SharedDict("prefix") as shared:
        keys: list[Any] = ["a:1", "a:" + "x" * 300, "b", "", b"a:1", b"a" * 300, 1, ("a:", 1)]
        shared.update(dict.fromkeys(keys, 0))
        shared.clear(prefix="a:")
        assert set(shared) == set(keys[2:])
        shared.clear(prefix=b"a")
        assert set(shared) == {"b", "", 1, ("a:", 1)}
        shared.clear(prefix="")
        assert set(shared) == {1, ("a:", 1)}


VALUES_KEPT: list[Any] = [
    *(None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**63, -(2**4000), 10**4000, 1.5, float("inf"), "", "ü", b"", b"\0"),
    *("0", "-", b"0", [], (), {}, set(), frozenset(), [1, [2, (3, {4: {"5": b"6"}})]], {(1, "a"): {1, 2}, None: 1.5}),
    *(dt.datetime(2026, 1, 2, 3, 4, 5, 6), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.date(2026, 1, 2), dt.time(1, 2)),
    *(dt.timedelta(-1, 2, 3), Decimal("0.10"), Decimal("NaN"), UUID(int=7), [UUID(int=7), frozenset({dt.date(2026, 1, 1)})]),
]


def test_plain_values_come_back_as_they_were(shm: Path) -> None:
    with SharedDict("plain", codec="plain") as shared:
        for value in VALUES_KEPT:
            shared["v"] = value
            found = shared["v"]
            assert type(found) is type(value) and repr(found) == repr(value), value
            raw = shared.client.get(b"v")
            assert raw is not None
            is_number = type(value) is int and -(2**63) <= value < 2**63
            assert (raw[:1] in b"-+0123456789") == is_number, "what is no number does not begin so"

        class Own:
            pass

        deep: Any = []
        for _ in range(600):
            deep = [deep]
        for value, why in [
            (Own(), "codec='pickle'"),
            ([Own()], "codec='pickle'"),
            (bytearray(b"a"), "bytearray"),
            (deep, "within values"),
            ("\ud800", "surrogates"),
        ]:
            with pytest.raises((TypeError, ValueError), match=why):
                shared["v"] = value
        for raw in (b"", b"Q", b"l", b"l\1\0\0\0", b"s\xff\xff\xff\xff", b"NN", b"-", b"1x", b"S\xff", b"m\1\0\0\0l\0\0\0\0N"):
            shared.client.put(b"v", raw)
            with pytest.raises(oneread.Undecoded):
                shared["v"]


def test_arrays_are_plain_values(shm: Path) -> None:
    np = pytest.importorskip("numpy")
    with SharedDict("arrays", codec="plain") as shared:
        for array in [
            np.arange(6, dtype=np.int16).reshape(2, 3),
            np.asfortranarray(np.arange(6.0).reshape(2, 3)),
            np.zeros((0, 4), ">f4"),
            np.array(7, np.uint64),
            np.array(["2026-01-01"], "datetime64[D]"),
        ]:
            shared["a"] = [array]
            (found,) = shared["a"]
            assert found.dtype == array.dtype and found.shape == array.shape and (found == array).all()
            assert found.flags.f_contiguous == array.flags.f_contiguous and found.flags.writeable
        with pytest.raises(TypeError, match="objects"):
            shared["a"] = np.array([object()])


def test_pickle_reads_only_what_it_wrote(shm: Path) -> None:
    """Text of another codec may be a stranger's. `S` is an operation of pickle's, too."""
    with SharedDict("codecs") as shared:
        for raw in (b"Sabc", b"cos\nsystem\n(S'false'\ntR.", b"B" + pickle.dumps(1)):
            shared.client.put(b"v", raw)
            with pytest.raises(oneread.Undecoded, match="has not written this"):
                shared["v"]


def test_it_is_a_dict(shm: Path) -> None:
    with SharedDict("dict") as shared:
        entries: dict[Any, Any] = {"a": 1, b"a": [2], 1: None, ("a", 1): {"x": "y"}, "": b"", "ü": 1.5}
        shared.update(entries, named=7)
        entries["named"] = 7
        assert len(shared) == len(entries) and shared == entries
        assert set(shared) == set(entries) and set(shared.keys()) == set(entries)
        assert sorted(map(repr, shared.values())) == sorted(map(repr, entries.values()))
        assert dict(shared.items()) == entries
        assert shared.get_many(["a", "no", 1], default="?") == [1, "?", None]
        assert "a" in shared and "b" not in shared and shared.get("b") is None and shared.get("b", 3) == 3
        with pytest.raises(KeyError, match="'b'"):
            shared["b"]
        with pytest.raises(KeyError):
            del shared["b"]
        with pytest.raises(KeyError):
            shared.pop("b")
        assert shared.pop("b", None) is None and shared.pop("a") == 1 and "a" not in shared
        assert shared.setdefault("a", 5) == 5 and shared.setdefault("a", 6) == 5
        assert shared[True] is None, "True is 1, as in a dict"
        for _ in range(len(shared)):
            key, value = shared.popitem()
            assert entries.pop(key) == value or key == "a"
        with pytest.raises(KeyError):
            shared.popitem()
        shared["a"] = 1
        shared.clear()
        assert len(shared) == 0 and not list(shared) and repr(shared) == "SharedDict('dict')"


def test_values_are_looked_at_while_they_go(shm: Path) -> None:
    with SharedDict("values") as shared:
        shared.update({1: "a", 2: "b", 3: "c"})
        assert "b" in shared.values() and "d" not in shared.values()

        class Removes:
            def __eq__(self, other: object) -> bool:
                shared.clear()
                return False

        assert Removes() not in shared.values() and not shared


OTHER = """
    import pickle, sys
    from oneread import SharedDict
    shared = SharedDict(sys.argv[1], create=False)
    print("open", flush=True)
    for line in sys.stdin:
        what, *given = pickle.loads(bytes.fromhex(line))
        try:
            told = (True, getattr(shared, what)(*given))
        except KeyError:
            told = (False, None)
        print(pickle.dumps(told).hex(), flush=True)
"""


def asked(process: subprocess.Popen[str], *call: Any) -> Any:
    say(process, pickle.dumps(call).hex())
    return pickle.loads(bytes.fromhex(said(process)))


SOME = st.sampled_from(["a", b"a", 1, ("a", 1), "b", ""])
VALUES = st.one_of(st.none(), st.integers(), st.binary(max_size=300), st.lists(st.text(max_size=4), max_size=3))
CALLS = st.one_of(
    st.tuples(st.just("__setitem__"), SOME, VALUES),
    st.tuples(st.sampled_from(["__getitem__", "__delitem__", "__contains__", "pop", "get"]), SOME),
    st.tuples(st.just("setdefault"), SOME, VALUES),
    st.tuples(st.just("update"), st.dictionaries(SOME, VALUES, max_size=4)),
    st.tuples(st.sampled_from(["__len__", "clear"])),
)


def test_two_processes_see_what_one_dict_would_hold(shm: Path) -> None:
    with SharedDict("model") as shared:
        other = begin(OTHER, "model")
        assert said(other) == "open"

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(st.tuples(st.booleans(), CALLS), max_size=20))
        def follow(calls: list[tuple[bool, tuple[Any, ...]]]) -> None:
            model: dict[Any, Any] = {}
            shared.clear()
            for in_other, (what, *given) in calls:
                try:
                    expected = (True, getattr(model, what)(*given))
                except KeyError:
                    expected = (False, None)
                if in_other:
                    assert asked(other, what, *given) == expected
                    continue
                try:
                    told = (True, getattr(shared, what)(*given))
                except KeyError:
                    told = (False, None)
                assert told == expected
            assert dict(shared.items()) == model

        follow()
        other.stdin.close()  # type: ignore[union-attr]
        assert other.wait(60) == 0


@pytest.mark.parametrize("codec", ["pickle", "msgpack", "raw", (lambda v: v[::-1], lambda raw: raw[::-1])])
def test_values_go_through_the_codec(shm: Path, codec: Any) -> None:
    with SharedDict("codec", codec=codec) as shared:
        shared["a"] = b"some bytes"
        assert shared["a"] == b"some bytes" and shared.get("a") == b"some bytes"
        with SharedDict("codec", codec=codec) as again:
            assert list(again.values()) == [b"some bytes"]
        if codec == "raw":
            assert shared.client.get(shared.raw_key("a")) == b"some bytes"
            shared["a"] = memoryview(bytearray(b"buffer"))
            assert shared["a"] == b"buffer"
            with pytest.raises(TypeError):
                shared["a"] = 5
        if isinstance(codec, tuple):
            with pytest.raises(oneread.OnereadError, match="codec of its maker's"):
                SharedDict("codec")
        other = "raw" if codec != "raw" else "pickle"
        with pytest.raises(oneread.Incompatible, match=f"codec='.*', asked for was '{other}'"):
            SharedDict("codec", codec=other)
    with pytest.raises(ValueError, match="no codec 'json'"):
        SharedDict("codec", codec="json")


class Stubborn:
    def __reduce__(self) -> Any:
        raise RuntimeError("it does not want to")


def test_a_value_that_does_not_pickle_changes_nothing(shm: Path) -> None:
    with SharedDict("stubborn") as shared:
        shared["a"] = 1
        with pytest.raises(RuntimeError, match="does not want"):
            shared["a"] = Stubborn()
        with pytest.raises(RuntimeError):
            shared.update({"a": 2, "b": Stubborn()})
        with pytest.raises(RuntimeError):
            shared.setdefault("c", Stubborn())
        assert dict(shared.items()) == {"a": 1}


def test_one_of_many_processes_gets_an_entry(shm: Path) -> None:
    program = """
        import sys
        from oneread import SharedDict
        shared = SharedDict("queue", create=False)
        print(sum(shared.pop(n, None) is not None for n in range(500)), shared.setdefault("first", int(sys.argv[1])))
    """
    with SharedDict("queue") as shared:
        shared.update({n: "work" for n in range(500)})
        told = [outcome(p).split() for p in [begin(program, str(n)) for n in range(3)]]
        assert sum(int(count) for count, _ in told) == 500
        assert {int(first) for _, first in told} == {shared["first"]}


def test_a_child_made_by_fork_uses_it_on(shm: Path) -> None:
    with SharedDict("fork") as shared:
        shared["parent"] = 1
        pid = os.fork()
        if pid == 0:
            try:
                shared["child"] = shared["parent"] + 1
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert shared["child"] == 2


def test_it_goes_to_other_processes_by_name(shm: Path) -> None:
    with SharedDict("pickled", memory="64MiB", ttl=100) as shared:
        shared["a"] = 1
        program = """
            import pickle, sys
            shared = pickle.loads(bytes.fromhex(sys.argv[1]))
            shared["a"] += 1
        """
        outcome(begin(program, pickle.dumps(shared).hex()))
        assert shared["a"] == 2


def test_entries_end_after_their_time(shm: Path) -> None:
    from dicts import within

    with SharedDict("ttl", ttl=0.2) as shared:
        shared["a"] = 1
        shared.put("b", 1, ttl=100)
        shared.put_many({"c": 1}, ttl=0.2)
        shared.setdefault("d", 1)
        assert set(shared) >= {"b"}
        within(10, lambda: set(shared) == {"b"}, "all but b end")
        assert "a" not in shared and "b" in shared


def test_a_full_dict_says_so_or_makes_room(shm: Path) -> None:
    value = os.urandom(64 << 10)
    with SharedDict("full", memory="16MiB", value_max="64KiB", codec="raw") as shared:
        with pytest.raises(oneread.Full):
            for n in range(1_000):
                shared[n] = value
    with SharedDict("cache", memory="16MiB", value_max="64KiB", codec="raw", evict="s3-fifo") as shared:
        for n in range(1_000):
            shared[n] = value
        assert 0 < len(shared) < 1_000
        with pytest.raises(oneread.ValueTooLong):
            shared["a"] = value + value


def test_threads_use_one_dict(shm: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with SharedDict("threads") as shared, ThreadPoolExecutor(4) as pool:

        def work(first: int) -> int:
            for n in range(first, first + 200):
                shared[n] = n
            return sum(shared[n] for n in range(first, first + 200))

        assert sum(pool.map(work, range(0, 1_600, 200))) == sum(range(1_600))


def test_its_counts_are_a_dict(shm: Path) -> None:
    with SharedDict("counts") as shared:
        shared["a"] = 1
        for _ in range(3):
            shared.get("a")
        counts = oneread.metrics()["counts"]
        assert counts["get"]["hits"] == 3 and counts["changes"]["puts"] == 1 and counts["host"]["hits"] == 3
        # The question is a request.
        again = shared.stats()
        assert counts.pop("requests") != again.pop("requests") and counts == again
    assert "counts" not in oneread.metrics()


GONE = b"\x80\x04cgone_module\nWork\n."


def test_what_cannot_be_read_is_named_and_stays(shm: Path) -> None:
    with SharedDict("unread") as shared:
        shared.update({n: n for n in range(4)})
        shared.client.put(SharedDict.raw_key("job:1"), GONE)
        calls: list[Any] = [
            lambda: shared["job:1"],
            lambda: shared.get("job:1"),
            lambda: shared.pop("job:1", None),
            lambda: shared.setdefault("job:1", 1),
            lambda: shared.get_many([1, "job:1", 2]),
        ]
        for call in calls:
            with pytest.raises(oneread.Undecoded, match="'job:1', .*'unread' cannot be read: ModuleNotFound") as told:
                call()
            assert told.value.key == "job:1" and isinstance(told.value.__cause__, ModuleNotFoundError)
            assert shared.client.get(SharedDict.raw_key("job:1")) == GONE, "it is still there"
        named: list[Any] = []
        assert shared.get_many([1, "job:1", 2, 9], 7, undecoded=lambda error: named.append(error.key)) == [1, None, 2, 7]
        assert named == ["job:1"]
        # Others are taken, and it is left.
        assert sorted(shared.popitem()[0] for _ in range(4)) == [0, 1, 2, 3]
        with pytest.raises(oneread.Undecoded):
            shared.popitem()
        del shared["job:1"]
        with pytest.raises(KeyError):
            shared.popitem()


class Interrupts:
    """Its value is read while the program is interrupted."""

    reads = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Interrupts.read, ()

    @staticmethod
    def read() -> Any:
        Interrupts.reads += 1
        raise KeyboardInterrupt


def test_an_interrupted_get_is_interrupted(shm: Path) -> None:
    with SharedDict("interrupted", codec="pickle") as shared:
        shared["a"] = Interrupts()
        with pytest.raises(KeyboardInterrupt):
            shared.get("a")
        assert Interrupts.reads == 1, "it is not read again"


@pytest.mark.parametrize("codec", ["plain", "pickle", "msgpack", (str.encode, bytes.decode)])
def test_a_text_finds_what_was_put(shm: Path, codec: Any) -> None:
    texts = ["", "S", "E", "Etagged", "7", "-1", "\x80", "x" * 3_000]
    others = [0, -1, 2**63 - 1, -(2**63), 2**63, 1.5, b"E", b"\x80\x05", True, None, [1, {"a": ["E"]}], {"E": 1}]
    name = codec if isinstance(codec, str) else "own"
    with SharedDict("texts", codec=codec) as shared:
        for value in texts if name == "own" else texts + others if name != "msgpack" else [*texts, *others[:3]]:
            shared["key"] = value
            got = shared.get("key")
            assert got == shared["key"] == shared.get_many(["key"])[0] == value and type(got) is type(value)
        assert shared.get("absent") is None and shared.get("absent", 7) == 7
        with pytest.raises(KeyError):
            shared["absent"]
        if name != "own":
            shared.put("tagged", "value", tag="t")
            assert shared.get("tagged") == "value" and shared.tag("tagged") == "t"


def test_a_loop_goes_on_behind_what_cannot_be_read(shm: Path) -> None:
    def all_of(entries: Any) -> tuple[list[Any], list[Any]]:
        shown, unread = [], []
        while True:
            try:
                shown.append(next(entries))
            except oneread.Undecoded as error:
                unread.append(error.key)
            except StopIteration:
                return shown, unread

    with SharedDict("loops") as shared:
        shared.update({n: str(n) for n in range(300)})
        for n in range(3):
            shared.client.put(SharedDict.raw_key(f"bad {n}"), GONE)
        # A key that no dict has written.
        shared.client.put(b"\xf9raw", b"")
        bad = {"bad 0", "bad 1", "bad 2", b"\xf9raw"}
        items, unread = all_of(iter(shared.items()))
        assert sorted(items) == [(n, str(n)) for n in range(300)] and set(unread) == bad and len(unread) == 4
        values, unread = all_of(iter(shared.values()))
        assert sorted(values, key=int) == [str(n) for n in range(300)] and set(unread) == bad
        keys, unread = all_of(iter(shared))
        assert set(keys) == {*range(300), "bad 0", "bad 1", "bad 2"} and unread == [b"\xf9raw"]
        # A feed, too.
        changes = shared.changes()
        shared.client.put(SharedDict.raw_key("bad 3"), GONE)
        shared["good"] = 1
        with pytest.raises(oneread.Undecoded) as told:
            next(changes)
        assert told.value.key == "bad 3"
        assert next(changes) == oneread.DictChange("came", "good", 1)


@pytest.mark.parametrize("size", ["8MiB", "4MiB", "64MiB", 8 << 20])
def test_a_memory_that_is_too_small_says_which_is_not(shm: Path, size: Any) -> None:
    try:
        with SharedDict("sizes", memory=size) as shared:
            shared["a"] = 1
    except oneread.OnereadError as error:
        needed = re.search(r"need (\d+) bytes", str(error))
        assert needed is not None and "`value_max=`" in str(error), error
        for enough in (int(needed[1]), f"{int(needed[1]) / (1 << 20)!r}MiB"):
            with SharedDict("sizes", memory=enough) as shared:
                shared["a"] = 1
    else:
        assert size == "64MiB"


def test_sizes_are_whole_bytes() -> None:
    from oneread.shared import byte_count

    for size, count in [("1.5GiB", 3 << 29), ("8.01MiB", 8_399_094), ("7", 7), (" 2 kib", 2048), ("3B", 3), (5, 5)]:
        assert byte_count(size) == count
    for bad in ("", "MiB", "-1", "1e9", "1.MiB", "2MB", "nan"):
        with pytest.raises(ValueError, match="no size"):
            byte_count(bad)
