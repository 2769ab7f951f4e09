"""`bench/rivals` counts what is wrong, and marks what is best, whoever it is. No rival is needed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dicts import shm

np = pytest.importorskip("numpy")
pytest.importorskip("tabulate")

__all__ = ["shm"]

FOLDER = str(Path(__file__).parent.parent / "bench" / "rivals")


@pytest.fixture
def parts() -> Iterator[tuple[Any, Any, Any]]:
    sys.path.insert(0, FOLDER)
    try:
        import blocks
        import report
        import scenes

        yield blocks, report, scenes
    finally:
        sys.path.remove(FOLDER)
        for name in ("blocks", "report", "scenes", "processes", "systems"):
            sys.modules.pop(name, None)


def test_a_chunk_that_is_being_changed_may_be_there_or_not(parts: Any) -> None:
    blocks, _, _ = parts
    # Chunk 1 is being removed, 2 and 3 are there, 4 is being put.
    now = blocks.Instant(adding=5, added=4, removing=2, removed=1)
    assert [blocks.must_be(chunk, now, now) for chunk in range(6)] == [False, None, True, True, None, False]
    # What has changed between the two instants may have been seen or not.
    later = blocks.Instant(adding=6, added=6, removing=4, removed=4)
    assert [blocks.must_be(chunk, now, later) for chunk in range(7)] == [False] + [None] * 5 + [False]
    assert blocks.agrees([1, 0, 1, 0], [True, False, None, None])
    assert not blocks.agrees([0], [True]) and not blocks.agrees([1], [False]) and not blocks.agrees([-1], [None])


def test_prefixes_are_compared_worker_by_worker(parts: Any) -> None:
    blocks, _, _ = parts
    assert blocks.same_lengths({"a": 5, "b": 3}, {"a": 5, "b": None})
    assert not blocks.same_lengths({"a": 4}, {"a": 5}) and not blocks.same_lengths({}, {"a": 5})
    # Nobody else may have one.
    assert not blocks.same_lengths({"a": 5, "b": 1}, {"a": 5})
    lengths = blocks.wide_lengths(1_000)
    assert len(lengths) == 96 and lengths["w0"] == 39 and lengths["w95"] == 1_000


def test_the_counters_are_seen_by_all_processes(parts: Any, shm: Path) -> None:
    blocks, _, _ = parts
    one, other = blocks.Truth(shm / "truth"), blocks.Truth(shm / "truth")
    one.begin(run=3)
    one.words[:4] = 4, 3, 2, 1
    assert other.now() == blocks.Instant(4, 3, 2, 1)
    assert other.first(2) == blocks.CHURN + 3 * blocks.RUN + 2 * blocks.CHUNK
    digests = blocks.digests16(np.arange(1_000))
    assert digests.shape == (1_000, 16) and len({row.tobytes() for row in digests}) == 1_000
    assert len(set(blocks.digests8(np.arange(1_000)).tolist())) == 1_000


def test_a_stall_counts_and_ends_when_all_is_right_again(parts: Any) -> None:
    _, _, scenes = parts
    none = np.zeros(1_000, bool)
    looked = {"ended": np.arange(1_000) * 0.01, "took": np.full(1_000, 1e-4), "errors": {}}
    looked |= {"wrong": none.copy(), "failed": none.copy(), "dead": none.copy()}
    looked["took"][500] = 3.0
    looked["wrong"][400:600] = True
    told = scenes.summary(looked, begun=0.0, event=2.0)
    assert told["wrong"] == 200 and told["longest"] == 3.0 and told["failed"] == 0
    assert told["right again"] == pytest.approx(3.99)
    looked["failed"][-1] = True
    assert scenes.summary(looked, begun=0.0, event=2.0)["right again"] is None
    # What was wrong before it happened is wrong, and has nothing to do with it.
    looked["failed"][-1] = False
    assert scenes.summary(looked, begun=0.0, event=7.0)["right again"] == 0.0


def test_the_best_is_marked_whoever_it_is(parts: Any) -> None:
    _, report, scenes = parts
    row = {"lookups": 9, "p50": 1e-4, "p99.9": 1e-3, "longest": 2e-3, "failed": 0, "wrong": 0, "lost": 0, "errors": {}}
    slow = {**row, "p50": 2e-4, "p99.9": 5e-3, "wrong": 3}
    figures = {"blocks": 10, "fill seconds": 1.0, "bytes a block": 64.0, "bytes a reader": 1_000}
    one = {"lookups": 9, "p50": 1e-4, "p99.9": 1e-3, "longest": 2e-3, "failed or wrong": 0}
    result = {
        "systems": {"locations: oneread": figures, "locations: other": {**figures, "bytes a block": 32.0}},
        "rounds": {"locations, random: 128": {"oneread": one, "other": {**one, "p50": 5e-5}}},
        "scenes": {
            "quiet": {"locations: oneread": row, "locations: other": row},
            "stopped for 2 s": {
                "locations: oneread": {**slow, "right again": None},
                "locations: other": {**row, "right again": 1.5, "hit": "server"},
            },
        },
        **{"missing": {"locations: third": "ImportError"}, "machine": "m", "load": (0.0,), "versions": ["v 1"]},
        "sizes": {"batch": 128, "pace": 0.002},
    }
    text = report.report(result)
    assert "**32 B**" in text and "**50 µs**" in text and "Left out: locations: third (ImportError)." in text
    assert "random, 128 blocks a call, p50: other has 50 µs, oneread 100 µs" in text
    assert "stopped for 2 s, p99.9: other has 1 ms, oneread 5 ms" in text
    assert "not yet" in text and "other (server)" in text and "| 5.0" in text
    assert "quiet, p99.9" not in text
