"""`SharedDict`: a dict, in several processes."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from dicts import begin, outcome, say, said, shm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oneread
from oneread import SharedDict
from oneread._keys import decode, encode

__all__ = ["shm"]

PLAIN = st.one_of(st.text(max_size=12), st.binary(max_size=12), st.integers())
KEYS = st.recursive(PLAIN, lambda parts: st.lists(parts, max_size=3).map(tuple), max_leaves=6)


@given(KEYS, KEYS)
def test_a_key_is_its_bytes_and_no_other_key_has_them(one: Any, other: Any) -> None:
    assert decode(encode(one)) == one
    assert (encode(one) == encode(other)) == (one == other and repr(one) == repr(other))
    assert encode(one), "no key is empty"


def test_what_is_no_key_is_said_to_be_none(shm: Path) -> None:
    with SharedDict("keys") as shared:
        for key in (None, 1.5, ["a"], {"a": 1}, bytearray(b"a"), object()):
            with pytest.raises(TypeError, match="a key is a str"):
                shared[key] = 1  # type: ignore[index]
            with pytest.raises(TypeError):
                shared[("part", key)]  # type: ignore[index]
        with pytest.raises(oneread.KeyTooLong):
            shared["k" * 70_000] = 1
        assert len(shared) == 0


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
        assert counts["get"]["hits"] == 3 and counts["changes"]["puts"] == 1 and counts == shared.stats()
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
