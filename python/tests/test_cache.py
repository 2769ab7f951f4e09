"""`oneread.cache`: caches, deques and ordered dicts in directories."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dicts import begin, is_running, outcome, said, say, shm, within

import oneread
import oneread.cache as dc
from oneread.cache.recipes import EARLY

__all__ = ["shm"]

# As long as no test takes.
LONG = 3_600


@pytest.fixture
def cache(shm: Path, tmp_path: Path) -> Iterator[dc.Cache]:
    with dc.Cache(tmp_path / "cache", lives=0.1) as cache:
        yield cache


def pid_of(cache: dc.Cache) -> int:
    return int(cache._open().client.server_stats()["pid"])


def test_entries_survive_the_server_and_a_reboot(shm: Path, tmp_path: Path) -> None:
    values: dict[Any, Any] = {"text": "a", 1: [1, {"b": b"c"}], None: 1.5, "k" * 1000: (1, 2), ("t", 1.5): "ü"}
    with dc.Cache(tmp_path / "c", lives=0) as cache:
        for key, value in values.items():
            cache.set(key, value, tag="t", expire=LONG)
        cache.incr("n", 41)
        pid = pid_of(cache)
    within(60, lambda: not is_running(pid), "the server ends with the last")
    # What is in memory goes with the machine.
    shutil.rmtree(next(shm.glob("oneread-*")))
    with dc.Cache(tmp_path / "c", lives=0) as cache:
        assert {key: cache[key] for key in cache} == {**values, "n": 41}
        assert cache.incr("n") == 42 and cache.evict("t") == len(values)


def test_a_killed_server_loses_nothing(shm: Path, tmp_path: Path) -> None:
    with dc.Cache(tmp_path / "c", lives=0.1) as cache:
        cache["a"] = 1
        os.kill(pid_of(cache), signal.SIGKILL)
        assert cache["a"] == 1
        cache["b"] = 2
    holder = begin(
        """
        import os, sys, oneread.cache
        cache = oneread.cache.Cache(sys.argv[1], lives=0.1)
        cache["c"] = 3
        print(cache._open().client.server_stats()["pid"], flush=True)
        sys.stdin.readline()
        """,
        str(tmp_path / "c"),
    )
    pid = int(said(holder))
    os.kill(pid, signal.SIGKILL)
    holder.kill()
    holder.communicate()
    with dc.Cache(tmp_path / "c", lives=0.1) as cache:
        assert sorted(cache) == ["a", "b", "c"], "nobody was there, and no snapshot was written"


def test_a_log_survives_a_power_cut(shm: Path, tmp_path: Path) -> None:
    with dc.Cache(tmp_path / "c", durable="always") as cache:
        for n in range(200):
            cache.set(n, str(n), tag="t" if n % 2 else None)
        assert cache.evict("t") == 100 and cache.incr("n", 41) == 41
        with pytest.raises(oneread.Incompatible, match="durable="):
            dc.Cache(tmp_path / "c", durable="1s")
        pid = pid_of(cache)
        os.kill(pid, signal.SIGKILL)
        within(60, lambda: not is_running(pid), "it is killed")
        # What is in memory goes with the machine. No snapshot was written.
        shutil.rmtree(next(shm.glob("oneread-*")))
    # Whoever opens it: the log goes on.
    with dc.Cache(tmp_path / "c", lives=0.1) as cache:
        expected: dict[Any, Any] = {n: str(n) for n in range(0, 200, 2)}
        assert {key: cache[key] for key in cache} == expected | {"n": 41}
        log = cache._open().client.log()
        assert log is not None and log["durable"] == log["next"]
    with pytest.raises(ValueError, match="durable='2s'.*'1s'.*'always'"):
        dc.Cache(tmp_path / "d", durable="2s")  # type: ignore[arg-type]
    assert not (tmp_path / "d").exists()
    with dc.FanoutCache(tmp_path / "f", durable="1s", lives=0.1) as fanout:
        deque = fanout.deque("work")
        deque.append(1)
        for cache in (fanout, deque.cache):
            assert cache._open().client.log() is not None
        deque.cache.close()


def test_a_log_begins_with_what_a_cache_has(shm: Path, tmp_path: Path) -> None:
    with dc.Cache(tmp_path / "c", lives=0) as cache:
        cache["a"] = 1
        pid = pid_of(cache)
        assert cache._open().client.log() is None
    within(60, lambda: not is_running(pid), "the server ends with the last")
    with dc.Cache(tmp_path / "c", durable="always", lives=0) as cache:
        cache["b"] = 2
        pid = pid_of(cache)
        os.kill(pid, signal.SIGKILL)
        within(60, lambda: not is_running(pid), "it is killed")
        shutil.rmtree(next(shm.glob("oneread-*")))
    with dc.Cache(tmp_path / "c", lives=0) as cache:
        assert cache["a"] == 1 and cache["b"] == 2


def test_a_copy_of_the_directory_is_another_cache(shm: Path, tmp_path: Path) -> None:
    with dc.Cache(tmp_path / "one", lives=0.1) as cache:
        cache["a"] = 1
    shutil.copytree(tmp_path / "one", tmp_path / "two", ignore=shutil.ignore_patterns("*.lock"))
    with dc.Cache(tmp_path / "two", lives=0.1) as copy, dc.Cache(tmp_path / "one", lives=0.1) as cache:
        copy["b"] = 2
        assert sorted(copy) == ["a", "b"] and sorted(cache) == ["a"]
        shutil.rmtree(tmp_path / "two")
    with dc.Cache(tmp_path / "two", lives=0.1) as anew:
        assert len(anew) == 0, "the directory was removed"


def test_two_processes_share_it(shm: Path, cache: dc.Cache) -> None:
    cache["a"] = [1]
    cache.set("ends", 0, expire=LONG)
    other = begin(
        """
        import sys, oneread.cache
        with oneread.cache.Cache(sys.argv[1]) as cache:
            for _ in range(500):
                cache.incr("n")
                cache.incr("ends")
                cache.push("x")
            print(cache["a"])
        """,
        cache.directory,
    )
    for _ in range(500):
        cache.incr("n")
        cache.incr("ends")
        cache.push("y", side="front")
    assert outcome(other) == "[1]" and cache["n"] == cache["ends"] == 1000, "each is counted"
    items = [cache.pull()[1] for _ in range(1000)]
    assert sorted(items) == ["x"] * 500 + ["y"] * 500 and cache.pull() == (None, None)


def test_a_get_needs_no_server(shm: Path, cache: dc.Cache) -> None:
    cache["key"] = "value"
    pid, got = pid_of(cache), []
    assert cache.get("key") == "value"
    # One that is stopped answers nothing.
    os.kill(pid, signal.SIGSTOP)
    try:
        getting = threading.Thread(target=lambda: got.extend([cache.get("key"), cache["key"], cache.get("none", "no")]))
        getting.start()
        getting.join(60)
        assert got == ["value", "value", "no"]
    finally:
        os.kill(pid, signal.SIGCONT)


def test_ends_and_tags(shm: Path, cache: dc.Cache) -> None:
    begun = time.time()
    assert cache.set("a", 1, expire=LONG, tag="t") and cache.set("b", 2)
    value, ends, tag = cache.get("a", expire_time=True, tag=True)
    assert (value, tag) == (1, "t") and begun + LONG <= ends <= time.time() + LONG
    assert cache.touch("a", 2 * LONG) and cache.get("a", expire_time=True)[1] >= begun + 2 * LONG
    assert cache.touch("a") and cache.get("a", expire_time=True, tag=True) == (1, None, "t")
    assert cache.incr("a", 4) == 5 and cache.get("a", tag=True) == (5, "t")
    assert cache.touch("b", LONG) and cache.get("b", expire_time=True)[1] >= begun + LONG
    assert cache.touch("a", 0) and "a" not in cache and not cache.touch("a") and not cache.delete("a")
    # It has ended, so another may be first.
    assert cache.add("b", 3) is False and cache.touch("b", 0) and cache.add("b", 3, expire=LONG) and cache["b"] == 3
    life = cache._open().client.life(b"b")
    assert life is not None and life.ends_in is not None and life.ends_in > LONG - 60, "the table has the new end"
    assert cache.incr("n", 1.5, default=1) == 2.5 and cache.incr("n") == 3.5 and cache.decr("n", 0.5) == 3.0
    with pytest.raises(KeyError):
        cache.incr("none", default=None)
    cache["text"] = "x"
    with pytest.raises(TypeError, match="no number"):
        cache.incr("text")


def test_what_another_codec_wrote_is_a_miss(shm: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with dc.Cache(tmp_path / "c", lives=0.1) as plain, dc.Cache(tmp_path / "c", codec="pickle") as pickled:
        plain["p"], pickled["q"], plain["n"] = "Sabc", [1], 5
        assert pickled.get("p") is None and plain.get("q", 7) == 7 and pickled["n"] == 5
        assert "the value of 'p'" in caplog.text and "counts as absent" in caplog.text
        with pytest.raises(TypeError, match="codec='pickle'"):
            plain["o"] = object
        pickled["o"] = Path("a")
        assert pickled["o"] == Path("a")
    own = (pickle.dumps, pickle.loads)
    with dc.Cache(tmp_path / "own", codec=own, lives=0.1) as cache:
        cache["a"] = Path("b")
        assert cache["a"] == Path("b") and cache.incr("n") == 1 and cache.incr("n") == 2


def test_what_cannot_be_says_so(shm: Path, cache: dc.Cache) -> None:
    for call in (cache.transact, dc.Deque.fromcache(cache).transact, lambda: cache.disk, lambda: dc.Cache(disk=dc.JSONDisk)):
        with pytest.raises(NotImplementedError):
            call()
    with pytest.raises(ValueError, match="tags and ends"):
        dc.Cache(codec="raw")
    with pytest.raises(TypeError, match="no setting"):
        dc.Cache(colour="red")


def test_a_deque_keeps_its_order(shm: Path, tmp_path: Path) -> None:
    deque = dc.Deque("abc", tmp_path / "d")
    deque.appendleft("z")
    deque.rotate(1)
    assert list(deque) == ["c", "z", "a", "b"] and deque[1] == "z" and deque[-2] == "a" and len(deque) == 4
    del deque[1]
    assert list(deque) == ["c", "a", "b"] and deque[1] == "a" and list(reversed(deque)) == ["b", "a", "c"]
    other = pickle.loads(pickle.dumps(deque))
    assert other == ["c", "a", "b"] and other.pop() == "b" and deque.popleft() == "c" and list(deque) == ["a"]
    deque.maxlen = 2
    deque += "xyz"
    assert deque == "yz" and deque.count("y") == 1
    deque.cache.close()
    other.cache.close()


def test_queues_give_each_value_once(shm: Path, cache: dc.Cache) -> None:
    pulled: list[Any] = []
    guard = threading.Lock()

    def work(name: int) -> None:
        for n in range(100):
            cache.push((name, n), side="front" if n % 3 == 0 else "back")
            _, value = cache.pull(side="back" if n % 2 else "front")
            if value is not None:
                with guard:
                    pulled.append(value)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while (value := cache.pull()[1]) is not None:
        pulled.append(value)
    assert sorted(pulled) == [(name, n) for name in range(4) for n in range(100)]
    assert len(cache) == 0


def test_a_push_that_comes_late_is_in_the_queue_once(shm: Path, cache: dc.Cache) -> None:
    """Another process has put an item, and its note has not been made; or the queue has gone on since."""
    assert cache.push("a") == 500_000_000_000_000
    cache[500_000_000_000_001] = "late"
    assert cache.push("b") == 500_000_000_000_002, "the late one was helped in"
    assert [cache.pull()[1] for _ in range(3)] == ["a", "late", "b"]
    shared = cache._open()
    cache.push("c")
    stored = cache._joined(None, cache._payload("dead", False), None, b"")
    placed, _ = shared._placed(400)
    shared.client.put(placed, stored)
    assert not cache._is_pushed(None, 400, placed, stored) and 400 not in cache, "it is taken back"
    assert cache._is_pushed(None, 400, placed, stored), "it was pulled"


def test_an_index_keeps_its_order(shm: Path, tmp_path: Path) -> None:
    index = dc.Index(str(tmp_path / "i"), [("b", 1), ("a", 2)])
    index["c"] = 3
    index["b"] = 4
    assert list(index.items()) == [("b", 4), ("a", 2), ("c", 3)] and list(reversed(index)) == ["c", "a", "b"]
    other = pickle.loads(pickle.dumps(index))
    assert other == index and other.popitem() == ("c", 3) and index.popitem(last=False) == ("b", 4)
    assert index.setdefault("a", 9) == 2 and index.pop("a") == 2 and len(index) == 0 and index.pop("a", None) is None
    index.cache.close()
    other.cache.close()


def test_results_are_kept(shm: Path, cache: dc.Cache) -> None:
    calls: list[Any] = []

    @cache.memoize(expire=LONG, tag="r")
    def work(*args: Any, **named: Any) -> Any:
        calls.append((args, named))
        return len(calls)

    assert work(1, [2, {"a": {3}}], b=4) == work(1, [2, {"a": {3}}], b=4) == 1 and work(1) == 2
    assert cache.evict("r") == 2 and work(1) == 3
    early: list[int] = []

    @dc.memoize_stampede(cache, LONG, beta=1e12)
    def slow(n: int) -> int:
        early.append(n)
        time.sleep(0.01)
        return n

    assert slow(1) == slow(1) == 1
    within(60, lambda: len(early) > 1 or slow(1) != 1, "it is computed again before its end")
    for thread in threading.enumerate():
        if thread.name == EARLY:
            thread.join(60)


def test_it_evicts_where_it_is_full(shm: Path, tmp_path: Path) -> None:
    value = os.urandom(256 << 10)
    with dc.Cache(tmp_path / "c", memory="16MiB", lives=0.1) as cache:
        for n in range(200):
            cache[n] = value
        assert 0 < len(cache) < 200 and cache[199] == value
    with dc.Cache(tmp_path / "n", memory="16MiB", eviction_policy="none", lives=0.1) as cache, pytest.raises(oneread.Full):
        for n in range(200):
            cache[n] = value


def test_django_takes_it(shm: Path, tmp_path: Path) -> None:
    django_conf = pytest.importorskip("django.conf")
    backend = "oneread.cache.djangocache.DjangoCache"
    caches = {"default": {"BACKEND": backend, "LOCATION": str(tmp_path / "c"), "OPTIONS": {"lives": 0.1}, "TIMEOUT": LONG}}
    django_conf.settings.configure(CACHES=caches)
    from django.core.cache import cache  # type: ignore[import-not-found, import-untyped, unused-ignore]

    cache.set("a", Path("b"))
    assert cache.get("a") == Path("b") and cache.get("a", version=2) is None and cache.get_many(["a", "b"]) == {"a": Path("b")}
    assert not cache.add("a", 1) and cache.add("n", 1) and cache.incr("n", 4) == 5 and cache.decr("n") == 4
    with pytest.raises(ValueError, match="not found"):
        cache.incr("none")
    assert cache.touch("a", 2 * LONG) and not cache.touch("none") and "a" in cache and cache.delete("a") and not cache.delete("a")
    cache.set("ended", 1, timeout=0)
    assert cache.get("ended", "gone") == "gone"
    cache.set_many({"x": 1, "y": 2})
    assert cache.get_or_set("x", 9) == 1 and cache.incr_version("y") == 2 and cache.get("y", version=2) == 2
    cache.set("t", 1, tag="tag")
    assert cache.evict("tag") == 1
    assert cache.memoize()(full)(1) == 2 and cache.directory == str(tmp_path / "c")
    cache.clear()
    assert cache.get("x") is None
    cache.close()
    cache._cache.close()


def full(n: int) -> int:
    return n + 1


def test_flask_caching_takes_it(shm: Path, tmp_path: Path) -> None:
    flask = pytest.importorskip("flask")
    flask_caching = pytest.importorskip("flask_caching")
    app = flask.Flask(__name__)
    options = {"lives": 0.1}
    config = {"CACHE_TYPE": "oneread.contrib.flask_caching.OnereadCache", "CACHE_DIR": str(tmp_path / "c"), "CACHE_OPTIONS": options}
    cache = flask_caching.Cache(app, config=config)
    calls: list[int] = []

    @app.route("/")  # type: ignore[untyped-decorator, unused-ignore]
    @cache.cached(timeout=LONG)  # type: ignore[untyped-decorator, unused-ignore]
    def page() -> str:
        calls.append(1)
        return f"page {len(calls)}"

    with app.test_client() as client:
        assert client.get("/").text == client.get("/").text == "page 1"
    with app.app_context():
        cache.set("a", Path("b"), timeout=0)
        assert cache.get("a") == Path("b") and cache.add("a", 1) is False and cache.has("a")
        assert cache.set_many({"x": 1, "y": 2}) and cache.get_many("x", "y", "z") == [1, 2, None]
        assert cache.delete("a") and cache.get("a") is None and cache.clear() and cache.get("x") is None
        app.extensions["cache"][cache]._cache.close()


COLUMNS = "rowid INTEGER PRIMARY KEY, key BLOB, raw INTEGER, expire_time REAL, tag BLOB, mode INTEGER, filename TEXT, value BLOB"


def test_a_cache_of_diskcache_is_imported(shm: Path, tmp_path: Path) -> None:
    """Its rows as diskcache writes them: values in the row, in files, pickled; and what cannot be taken over."""
    old = tmp_path / "old"
    old.mkdir()
    (old / "text.val").write_text("long text")
    (tmp_path / "secret").write_text("not to be read")
    rows: list[tuple[Any, ...]] = [
        ("text", 1, None, "t", 1, None, "short"),
        (b"bytes", 1, time.time() + LONG, None, 1, None, b"b"),
        (pickle.dumps(("t", 1)), 0, None, None, 4, None, pickle.dumps({"a": [1, None]})),
        ("file", 1, None, None, 3, "text.val", None),
        (500_000_000_000_000, 1, None, None, 1, None, "first"),
        (500_000_000_000_001, 1, None, None, 1, None, "second"),
        ("ended", 1, 1.0, None, 1, None, 1),
        ("gone", 1, None, None, 2, "gone.val", None),
        ("outside", 1, None, None, 3, "../secret", None),
        ("code", 1, None, None, 4, None, pickle.dumps(Path("a"))),
    ]
    with sqlite3.connect(old / "cache.db") as database:
        database.execute(f"CREATE TABLE Cache ({COLUMNS})")
        columns = "key, raw, expire_time, tag, mode, filename, value"
        database.executemany(f"INSERT INTO Cache ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    database.close()
    new = str(tmp_path / "new")
    command = [sys.executable, "-m", "oneread", "import", "diskcache", str(old), "--to", new]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    assert said.startswith("6 entries are in the cache") and said.count("1 are left out") == 4, said
    assert "have ended" in said and "no file" in said and "outside of the directory" in said and "--pickle" in said
    with dc.Cache(new, lives=0.1) as cache:
        assert cache.get("text", tag=True) == ("short", "t") and cache["file"] == "long text"
        assert cache[("t", 1)] == {"a": [1, None]} and len(cache) == 6
        ends = cache.get(b"bytes", expire_time=True)[1]
        assert ends is not None and time.time() + LONG - 120 < ends <= time.time() + LONG
        assert cache.push("third") == 500_000_000_000_002 and [cache.pull()[1] for _ in range(3)] == ["first", "second", "third"]
    said = subprocess.run([*command, "--pickle"], check=True, capture_output=True, text=True, timeout=120).stdout
    assert said.startswith("7 entries"), said
    wrong = subprocess.run([*command[:5], new], capture_output=True, text=True, timeout=120)
    assert wrong.returncode == 1 and "no cache.db" in wrong.stderr


def test_every_holder_may_close_it_twice(shm: Path, cache: dc.Cache) -> None:
    cache.close()
    cache.close()
    cache["a"] = 1
    assert cache["a"] == 1, "it is opened again"
    fanout = dc.FanoutCache(Path(cache.directory) / "f", lives=0.1)
    with fanout.cache("x", lives=0.1) as inner, fanout:
        inner["b"] = 2
        assert len(fanout) == 0 and fanout.size_limit == 2**27 and pickle.loads(pickle.dumps(fanout)).directory == fanout.directory
