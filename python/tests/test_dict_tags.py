"""Tags of a `SharedDict`'s entries, and what goes by them."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import pytest
from dicts import shm

import oneread
from oneread import SharedDict

__all__ = ["shm"]

LONG = 3_600


class Level(enum.IntEnum):
    """Its bytes in msgpack were those of a letter, or of a digit."""

    DIGIT = ord("1")
    LETTER = ord("E")


@pytest.mark.parametrize("codec", ["pickle", "plain", "msgpack"])
def test_entries_go_by_their_tag(shm: Path, codec: str) -> None:
    long_key = "k" * 1000
    with SharedDict("tags", codec=codec, ttl=LONG) as shared:
        shared.put("a", [1, "x"], tag="page")
        shared.put(long_key, {"b": 2}, tag="page", ttl=2 * LONG)
        shared.put_many({"c": 3, ("t", 1): "four"}, tag=("other", 1))
        assert shared.add("d", "five", tag="page") and not shared.add("d", "six", tag="other")
        shared["plain"] = "untagged"
        entries = {"a": [1, "x"], long_key: {"b": 2}, "c": 3, ("t", 1): "four", "d": "five", "plain": "untagged"}
        assert dict(shared.items()) == entries
        assert shared.get_many(list(entries)) == list(entries.values()) and shared["a"] == [1, "x"]
        assert [shared.tag(key) for key in ("a", long_key, "c", "plain")] == ["page", "page", ("other", 1), None]
        with pytest.raises(KeyError):
            shared.tag("none")
        # Its end is the table's; a value that is put again has the tag that is said then.
        assert shared.touch("a", ttl=5 * LONG) and shared.tag("a") == "page"
        assert shared.ttl("a") > 4 * LONG  # type: ignore[operator]
        shared["c"] = 30
        assert shared.tag("c") is None
        shared.clear(tag="page", prefix="k")
        assert long_key not in shared and "a" in shared
        shared.clear(tag="page")
        assert set(shared) == {"c", ("t", 1), "plain"}
        shared.clear(tag=("other", 1))
        assert set(shared) == {"c", "plain"}


def test_numbers_behind_tags_are_added_to(shm: Path) -> None:
    with SharedDict("numbers") as shared:
        for key in ("n", "n" * 1000):
            shared.put(key, 40, tag="counts", ttl=LONG)
            assert [shared.incr(key), shared.incr(key, -2)] == [41, 39] and shared[key] == 39
            assert shared.tag(key) == "counts" and shared.ttl(key) is not None
            with pytest.raises(oneread.Invalid, match="64 bits"):
                shared.incr(key, (1 << 63) - 1)
        shared.put("text", "no number", tag="counts")
        with pytest.raises(oneread.Invalid, match="no decimal text"):
            shared.incr("text")
        shared.clear(tag="counts")
        assert not list(shared)


def test_feeds_and_takers_see_the_value_alone(shm: Path) -> None:
    with SharedDict("seen") as shared:
        with shared.changes() as changes:
            shared.put("a", {"b": 1}, tag="t")
            change = next(changes)
            assert (change.kind, change.key, change.value) == ("came", "a", {"b": 1})
        assert shared.setdefault("a", 0) == {"b": 1} and shared.pop("a") == {"b": 1}
        shared.put("c", 1, tag="t")
        assert shared.popitem() == ("c", 1)


def test_codecs_without_a_place_for_tags_refuse_them(shm: Path) -> None:
    raw: Any = (bytes, bytes)
    for name, codec in (("raw", "raw"), ("own", raw)):
        with SharedDict(name, codec=codec) as shared:
            # It begins as what stands before a value does elsewhere.
            shared["a"] = b"E" * 40
            assert shared["a"] == b"E" * 40 and shared.tag("a") is None
            with pytest.raises(ValueError, match="no place for a tag"):
                shared.put("b", b"c", tag="t")
            assert "b" not in shared


def test_what_begins_like_a_tag_is_no_entry_of_anybody(shm: Path) -> None:
    with SharedDict("damaged", codec="plain") as shared:
        shared.client.put(shared.raw_key("cut"), b"E123")
        shared.put("a", 1, tag="t")
        with pytest.raises(oneread.Undecoded, match="cut off"):
            shared["cut"]
        shared.clear(tag="t")
        assert "a" not in shared and "cut" in shared


def test_msgpack_numbers_that_are_more_than_numbers(shm: Path) -> None:
    pytest.importorskip("msgpack")
    with SharedDict("levels", codec="msgpack") as shared:
        for level in Level:
            shared["level"] = level
            assert shared["level"] == int(level) and shared.incr("level") == level + 1
        shared["bool"] = True
        assert shared["bool"] is True
