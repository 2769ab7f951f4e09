"""`memoize`: of all who ask at once, one computes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from dicts import begin, kill_server, outcome, said, shm, within

import oneread
from oneread import SharedDict, _keys
from oneread.memo import EARLY_THREAD, canonical
from oneread.shared import OPENING

__all__ = ["shm"]

# As long as no test takes.
LONG = 3_600

COMPUTES = """
    import os, sys, time
    import oneread
    shared = oneread.SharedDict("memo")

    @shared.memoize(name="slow")
    def slow(n):
        print("computes", flush=True)
        time.sleep(float(sys.argv[1]))
        return n * n, os.getpid()

    print(slow(7)[0], flush=True)
"""


def test_one_process_computes(shm: Path) -> None:
    with SharedDict("memo") as shared:
        told = [outcome(process).split() for process in [begin(COMPUTES, "0.5") for _ in range(4)]]
        assert all(words[-1] == "49" for words in told)
        assert sum("computes" in words for words in told) == 1
        assert list(shared) == [], "results are no entries"


def test_a_killed_process_lets_another_compute(shm: Path) -> None:
    with SharedDict("memo"):
        first = begin(COMPUTES, "1000")
        assert said(first) == "computes"
        second = begin(COMPUTES, "0")
        with pytest.raises(TimeoutError):
            # It waits as long as the first is there.
            wait_for_line(second, 1.5)
        first.kill()
        begun = time.monotonic()
        assert outcome(second).split() == ["computes", "49"]
        assert time.monotonic() - begun < 30
        first.communicate()


def wait_for_line(process: Any, seconds: float) -> None:
    import select

    if not select.select([process.stdout], [], [], seconds)[0]:
        raise TimeoutError


def test_a_child_made_by_fork_has_locks_of_its_own(shm: Path) -> None:
    with SharedDict("fork") as shared:
        inside, outside = os.pipe()

        @shared.memoize(name="f")
        def f(n: int) -> int:
            if os.getpid() != parent:
                os.write(outside, b"!")
                time.sleep(1000)
            return n

        parent = os.getpid()
        assert f(1) == 1
        child = os.fork()
        if child == 0:
            try:
                f(2)
            finally:
                os._exit(1)
        assert os.read(inside, 1) == b"!"
        os.kill(child, 9)
        os.waitpid(child, 0)
        begun = time.monotonic()
        assert f(2) == 2
        assert time.monotonic() - begun < 30


def test_a_child_opens_what_another_thread_was_opening(shm: Path) -> None:
    @oneread.memoize("opens", name="f")
    def f(n: int) -> int:
        return n

    has, ends = threading.Event(), threading.Event()

    def open_it() -> None:
        for opening in list(OPENING):
            opening.lock.acquire()
        has.set()
        ends.wait(60)

    thread = threading.Thread(target=open_it)
    thread.start()
    has.wait(60)
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(30)
            os._exit(0 if f(1) == 1 else 1)
        finally:
            os._exit(2)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        ends.set()
        thread.join()


def locks(shared: SharedDict) -> list[bytes]:
    """Its locks, and what says that this process has such."""
    return list(shared.client.scan(prefix=_keys.LOCK))


def test_without_a_server_it_starts_one(shm: Path, caplog: pytest.LogCaptureFixture) -> None:
    with SharedDict("served") as shared:
        calls = []

        @shared.memoize(name="f")
        def f(n: int) -> int:
            calls.append(n)
            if n >= 3:
                kill_server(shared)
            if n == 4 and calls.count(4) == 1:
                raise RuntimeError("not yet")
            return n

        assert f(1) == 1
        kill_server(shared)
        assert f(2) == f(2) == 2
        # It goes while a result is computed.
        assert f(3) == f(3) == 3
        with pytest.raises(RuntimeError):
            f(4)
        assert f(4) == f(4) == 4
        kill_server(shared)
        assert f.forget(1)
        assert f(1) == 1
        assert calls == [1, 2, 3, 4, 4, 1]
        within(30, lambda: len(locks(shared)) == 1, "all locks are let go")
    assert "without a lock" not in caplog.text


def test_a_lock_is_had_also_if_nobody_has_said_so(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost:
        """A client whose server goes when it has done what it was asked for."""

        def insert(self, raw: bytes, value: bytes, *, ttl: float | None) -> bool:
            is_put = owner.insert(raw, value, ttl=ttl)
            if is_put:
                gone = oneread.Disconnected("gone")
                gone.maybe_made = True
                raise gone
            return is_put

        def __getattr__(self, name: str) -> Any:
            return getattr(owner, name)

    with SharedDict("lost") as shared:

        @shared.memoize(name="f")
        def f(n: int) -> int:
            assert len(locks(shared)) == 2
            return n

        memo = shared.memo()
        owner = memo.owner()
        monkeypatch.setattr(memo, "_owner", Lost())
        assert f(1) == 1, "it does not wait for itself"
        assert len(locks(shared)) == 1
        monkeypatch.undo()


def test_an_owner_that_the_server_has_given_up_is_another(shm: Path, caplog: pytest.LogCaptureFixture) -> None:
    with SharedDict("owner") as shared:

        @shared.memoize(name="f")
        def f(n: int) -> int:
            assert len(locks(shared)) == 2
            return n

        assert f(1) == 1
        (says,) = locks(shared)
        assert shared.client.remove_owner(int(says[1:]))
        assert f(2) == 2
        assert locks(shared) != [says]
    assert "without a lock" not in caplog.text


def test_locks_stay_where_entries_leave_and_all_is_cleared(shm: Path) -> None:
    with SharedDict("pinned", memory="2MiB", value_max=64, codec="raw", evict="s3-fifo") as shared:

        @shared.memoize(name="f")
        def f() -> bytes:
            # Slots are what it has not enough of.
            for n in range(0, 10_000, 2_000):
                shared.update({m: b"" for m in range(n, n + 2_000)})
            assert len(locks(shared)) == 2 and len(shared) < 8_000
            shared.clear()
            assert len(locks(shared)) == 2 == len(shared)
            return b"done"

        assert f() == b"done" == f()
        assert len(locks(shared)) == 1


def test_one_thread_computes(shm: Path) -> None:
    with SharedDict("threads") as shared, ThreadPoolExecutor(8) as pool:
        computed = []

        @shared.memoize(name="slow")
        def slow(n: int) -> int:
            computed.append(n)
            time.sleep(0.2)
            return n * n

        assert list(pool.map(slow, [3] * 8)) == [9] * 8
        assert computed == [3] and slow.__name__ == "slow"
        counts = shared.stats()["memoize"]
        assert counts["computed"] == 1 and counts["hits"] == 7


def test_an_exception_is_not_kept(shm: Path) -> None:
    with SharedDict("exceptions") as shared:
        calls = []

        @shared.memoize(name="fails_once")
        def fails_once(n: int) -> int:
            calls.append(n)
            if len(calls) == 1:
                raise RuntimeError("not yet")
            return n

        with pytest.raises(RuntimeError, match="not yet"):
            fails_once(1)
        assert fails_once(1) == 1 and fails_once(1) == 1
        assert calls == [1, 1]


def test_tasks_wait_for_one_of_them(shm: Path) -> None:
    with SharedDict("tasks") as shared:
        computed = []
        first = {6: 1_000.0}

        @shared.memoize(name="slow", ttl=100)
        async def slow(n: int) -> int:
            computed.append(n)
            await asyncio.sleep(first.pop(n, 0.2))
            if n < 0:
                raise ValueError("negative")
            return n * n

        async def main() -> None:
            beats = 0

            async def beat() -> None:
                nonlocal beats
                while True:
                    beats += 1
                    await asyncio.sleep(0.01)

            beating = asyncio.create_task(beat())
            assert await asyncio.gather(*(slow(5) for _ in range(6))) == [25] * 6
            assert beats > 1, "the loop went on"
            beating.cancel()
            with pytest.raises(ValueError, match="negative"):
                await slow(-1)
            # Who is cancelled lets go.
            task = asyncio.create_task(slow(6))
            await asyncio.sleep(0.05)
            task.cancel()
            assert await asyncio.wait_for(slow(6), 20) == 36

        asyncio.run(main())
        assert computed == [5, -1, 6, 6]


def test_none_is_a_result_and_results_end(shm: Path) -> None:
    with SharedDict("ends") as shared:
        calls = []

        @shared.memoize(name="nothing")
        def nothing(n: int) -> None:
            calls.append(n)

        nothing(1)
        nothing(1)
        assert calls == [1]
        assert nothing.forget(1) and not nothing.forget(1)
        nothing(1)
        assert calls == [1, 1]

        @shared.memoize(name="soon", ttl=0.2)
        def soon(n: int) -> None:
            calls.append(n)

        soon(2)

        def is_called_again() -> bool:
            soon(2)
            return calls[2:4] == [2, 2]

        within(30, is_called_again, "the result ends")


def test_calls_are_told_apart(shm: Path) -> None:
    with SharedDict("apart") as shared:
        calls = []

        @shared.memoize(name="f")
        def f(*args: Any, **kwargs: Any) -> int:
            calls.append((args, kwargs))
            return len(calls)

        @shared.memoize(name="g")
        def g(*args: Any) -> int:
            calls.append((args, {}))
            return len(calls)

        @shared.memoize(name="h", key=lambda rows, by: by)
        def h(rows: Any, by: str) -> int:
            calls.append(((rows, by), {}))
            return len(calls)

        different = [
            lambda: f(1), lambda: f(1.0), lambda: f(True), lambda: f("1"), lambda: f(b"1"), lambda: f(None),
            lambda: f((1,)), lambda: f([1]), lambda: f(1, 2), lambda: f((1, 2)), lambda: f(n=1), lambda: f({"n": 1}),
            lambda: g(1), lambda: h(object(), "a"), lambda: h(object(), "b"),
        ]  # fmt: skip
        results = [call() for call in different]
        assert results == list(range(1, 16)) and [call() for call in different] == results
        assert f({"a": 1, "b": 2}) == f({"b": 2, "a": 1}) and f({1, 2}) == f({2, 1})
        with pytest.raises(TypeError, match="when two object are the same; say it by key="):
            f(object())
        with pytest.raises(TypeError, match="generator"):
            shared.memoize()(lambda: (yield))


def test_the_same_in_every_process(shm: Path) -> None:
    """Not so with `hash`, nor with `pickle`: it writes an object that it has seen as a reference."""
    program = "from oneread.memo import canonical; print(canonical((['a', 'a'], {'x', 'y', 'z'}, 1.5, None)).hex())"
    here = canonical((["a", "".join(["a"])], {"z", "y", "x"}, 1.5, None)).hex()
    assert {outcome(begin(program)) for _ in range(3)} == {here}


def test_what_does_not_fit_is_computed_each_time(shm: Path) -> None:
    with SharedDict("fit", memory="16MiB", value_max=1_000) as shared:
        calls = []

        @shared.memoize(name="long")
        def long(n: int) -> bytes:
            calls.append(n)
            return bytes(n)

        assert long(5_000) == bytes(5_000) == long(5_000) and long(5) == long(5)
        assert calls == [5_000, 5_000, 5]
        assert shared.stats()["memoize"]["not_kept"] == 2


def test_what_cannot_be_kept_is_returned(shm: Path, caplog: pytest.LogCaptureFixture) -> None:
    with SharedDict("lambda") as shared:

        @shared.memoize(name="f")
        def f(n: int) -> Any:
            return lambda: n

        assert f(1)() == 1 == f(1)()
        assert shared.stats()["memoize"]["not_kept"] == 2
    assert "a result is not kept in 'lambda'" in caplog.text


SCRIPT = """
import oneread

@oneread.memoize("scripts", ttl=1000, lives=600)
def load(kind="a"):
    print("computes", end=" ")
    return RESULT if kind in {"a", "b", "c", "d"} else None

print(load(), load())
"""


def test_functions_of_other_programs_are_others(shm: Path) -> None:
    def told(name: str, text: str) -> str:
        script = shm / name
        script.write_text(text)
        paths = {"PYTHONPATH": str(Path(oneread.__file__).parent.parent)}
        process = subprocess.Popen(
            [sys.executable, str(script)], env={**os.environ, **paths}, stdout=subprocess.PIPE, text=True
        )
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        return out

    one = SCRIPT.replace("RESULT", "1")
    assert told("one.py", one) == "computes 1 1\n"
    assert told("two.py", one) == "computes 1 1\n"
    for nth in range(3):
        # Sets have another order in each process, and lines may move.
        assert told("one.py", "#\n" * nth + one) == "1 1\n"
    assert told("one.py", SCRIPT.replace("RESULT", "2")) == "computes 2 2\n"
    assert told("one.py", one.replace('"a", "b"', '"a", "e"')) == "computes 1 1\n"
    assert told("one.py", one.replace('kind="a"', 'kind="x"')) == "computes None None\n"
    assert told("one.py", one) == "1 1\n"


class Rows:
    def of(self, by: str) -> str:
        return by


def test_what_has_no_name_of_its_own_needs_one(shm: Path) -> None:
    def within_another(n: int) -> int:
        return n

    scope: dict[str, Any] = {"__name__": "__main__"}
    exec("def typed(n): return n", scope)
    for function in (lambda n: n, within_another, Rows().of, scope["typed"]):
        with pytest.raises(TypeError, match=r"memoize\(name=\.\.\.\)"):
            oneread.memoize()(function)
        oneread.memoize(name="it")(function)
    oneread.memoize(key=lambda rows, by: by)(Rows.of)
    oneread.memoize()(test_the_same_in_every_process)
    with SharedDict("named") as shared:
        assert shared.memoize(name="it")(lambda n: n)(1) == 1
        assert shared.memoize(name="other")(lambda n: n + 1)(1) == 2


def test_a_lock_may_end_by_itself(shm: Path) -> None:
    with SharedDict("locks") as shared, ThreadPoolExecutor(2) as pool:
        began = []

        @shared.memoize(name="slow", lock_ttl=0.2)
        def slow() -> int:
            began.append(time.monotonic())
            nth = len(began)
            # The first is at it until the second has the result.
            if nth == 1:
                within(30, lambda: len(began) == 2, "another begins")
            return nth

        assert 2 in [call.result() for call in [pool.submit(slow), pool.submit(slow)]]
        assert len(began) == 2


def test_the_decorator_opens_a_dict_of_its_own(shm: Path) -> None:
    program = """
        import oneread, time

        @oneread.memoize("functions", name="f", ttl=1000, lives=600)
        def f(n):
            print("computes", end=" ")
            return n + 1

        print(f(1), f(1))
    """
    assert outcome(begin(program)) == "computes 2 2"
    assert outcome(begin(program)) == "2 2"
    with SharedDict("functions", create=False) as shared:
        # What tells that the processes are there goes with them.
        within(30, lambda: len(shared) == 1, "one result is kept")


def ends(work: Callable[[], Any]) -> Any:
    """What this gives. It does not wait for itself."""
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(work)
        try:
            return call.result(60)
        except TimeoutError:
            # Its thread would keep the program from ending.
            print("a call waits for itself", file=sys.stderr, flush=True)
            os._exit(1)


def test_a_function_may_ask_for_the_result_that_it_computes(shm: Path) -> None:
    with SharedDict("within") as shared:
        calls: list[str] = []

        @shared.memoize(name="a")
        def a(n: int) -> int:
            calls.append("a")
            return n if len(calls) > 3 else b(n) + 1

        @shared.memoize(name="b")
        def b(n: int) -> int:
            calls.append("b")
            return a(n) + 1

        @shared.memoize(name="itself")
        async def itself(n: int) -> int:
            calls.append("i")
            return n if calls[-2:] == ["i", "i"] else await itself(n) + 1

        @shared.memoize(name="endless")
        def endless(n: int) -> int:
            return endless(n)

        assert ends(lambda: a(1)) == 5 and "".join(calls) == "ababa"
        # What came last is kept, and nobody computes any more.
        assert ends(lambda: (a(1), b(1))) == (5, 4) and len(calls) == 5
        assert ends(lambda: asyncio.run(itself(1))) == 2 and "".join(calls) == "ababaii"
        with pytest.raises(RecursionError):
            ends(lambda: endless(1))
        assert ends(lambda: asyncio.run(itself(1))) == 2 and len(calls) == 7
        assert len(locks(shared)) == 1, "all locks are let go"


def test_a_task_that_goes_on_for_longer_waits_as_others_do(shm: Path) -> None:
    with SharedDict("longer") as shared:
        calls: list[int] = []
        begun: list[asyncio.Task[int]] = []

        @shared.memoize(name="f")
        async def f(n: int) -> int:
            calls.append(n)
            if not begun:
                begun.append(asyncio.create_task(g()))
            await asyncio.sleep(0)
            return n

        async def g() -> int:
            while not done:
                await asyncio.sleep(0.001)
            return await f(1)

        done = False

        async def main() -> None:
            nonlocal done
            assert await f(1) == 1
            assert f.forget(1)
            done = True
            assert await asyncio.gather(begun[0], f(1)) == [1, 1]

        asyncio.run(asyncio.wait_for(main(), 60))
        assert calls == [1, 1]


def test_a_result_that_cannot_be_read_is_computed_again(shm: Path, caplog: pytest.LogCaptureFixture) -> None:
    with SharedDict("unreadable") as shared:
        calls = []

        @shared.memoize(name="f")
        def f(n: int) -> int:
            calls.append(n)
            return n

        assert f(1) == 1
        (result,) = shared.client.scan(prefix=_keys.RESULT)
        # Of a class that is gone.
        shared.client.put(result, b"\x80\x04cgone_module\nWork\n.")
        assert f(1) == 1 and f(1) == 1
        assert calls == [1, 1]
        counts = shared.stats()["memoize"]
        assert counts["unreadable"] == 1 and counts["computed"] == 2 and counts["hits"] == 1
    assert "cannot be read, and is computed again: ModuleNotFoundError" in caplog.text


@pytest.mark.parametrize("ttl", [0, -1, 0.0, float("nan"), float("inf"), 1e12, "60", b"60", [1]])
def test_a_time_to_live_that_keeps_nothing_is_refused(shm: Path, ttl: Any) -> None:
    """Everywhere: otherwise results would be computed each time, and nobody would know why."""
    error = TypeError if isinstance(ttl, (str, bytes, list)) else oneread.Invalid
    with pytest.raises(error, match="ttl is"):
        oneread.memoize(ttl=ttl)
    with pytest.raises(error, match="lock_ttl is"):
        oneread.memoize(lock_ttl=ttl)
    with pytest.raises(error, match="ttl is"):
        SharedDict("ttl", ttl=ttl)
    with SharedDict("ttl", create=True) as shared:
        calls: list[Callable[[], Any]] = [
            lambda: shared.memoize(ttl=ttl),
            lambda: shared.memoize(lock_ttl=ttl),
            lambda: shared.put("a", 1, ttl=ttl),
            lambda: shared.put_many({"a": 1}, ttl=ttl),
        ]
        for call in calls:
            with pytest.raises(error, match="ttl is"):
                call()
        native: list[Callable[[], Any]] = [
            lambda: shared.client.put(b"a", b"1", ttl=ttl),
            lambda: shared.client.insert(b"a", b"1", ttl=ttl),
            lambda: shared.client.put_many([b"a"], [b"1"], ttl=ttl),
            lambda: oneread.Server(str(shm / "s"), keys=10, ttl=ttl),
            lambda: oneread.Index(keys=10, ttl=ttl),
        ]
        for call in native:
            with pytest.raises((oneread.Invalid, TypeError)) as told:
                call()
            notes = getattr(told.value, "__notes__", [])
            assert "ttl" in f"{told.value} {notes}" or "to live" in str(told.value), told.value
        assert dict(shared.items()) == {}
        shared.put("a", 1, ttl=np_seconds())
        assert shared["a"] == 1


def np_seconds() -> Any:
    """A number of another kind."""
    from fractions import Fraction

    return Fraction(600)


def test_results_are_computed_before_their_end(shm: Path) -> None:
    begun: list[int] = []
    may_end = threading.Event()
    may_end.set()

    with SharedDict("early") as shared:

        @shared.memoize(name="slow", ttl=LONG, early=1e12)
        def slow(n: int) -> int:
            begun.append(n)
            assert may_end.wait(60)
            time.sleep(0.01)
            return len(begun)

        assert slow(1) == 1
        # From now on somebody computes whenever it is asked for, and nobody waits for that.
        may_end.clear()
        assert slow(1) == 1
        within(60, lambda: len(begun) == 2, "it is computed again")
        # One computes it.
        assert [slow(1) for _ in range(20)] == [1] * 20 and len(begun) == 2
        counts = shared.stats()["memoize"]
        assert (counts["early"], counts["computed"], counts["waited"]) == (1, 1, 0)
        may_end.set()
        within(60, lambda: slow(1) > 1, "the new one is there")

        @shared.memoize(name="slow", ttl=LONG)
        def late(n: int) -> str:
            return "of its own"

        assert late(1) == "of its own" and slow.forget(1)

        @shared.memoize(name="never", ttl=LONG, early=1e-12)
        def never(n: int) -> int:
            begun.append(-1)
            return n

        assert [never(1) for _ in range(50)] == [1] * 50 and begun.count(-1) == 1
        for thread in threading.enumerate():
            if thread.name == EARLY_THREAD:
                thread.join(60)


def test_a_failure_before_the_end_changes_nothing(shm: Path, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    with SharedDict("fails") as shared:

        @shared.memoize(name="fails", ttl=LONG, early=1e12)
        def fails() -> int:
            calls.append(1)
            if len(calls) > 1:
                raise ZeroDivisionError
            time.sleep(0.01)
            return 1

        assert fails() == fails() == 1
        within(60, lambda: "failed before its result's end" in caplog.text, "it is said")
        assert fails() == 1

        @shared.memoize(name="async", ttl=LONG, early=1e12)
        async def coroutine() -> int:
            calls.append(2)
            await asyncio.sleep(0.01)
            return calls.count(2)

        async def ask() -> None:
            assert await coroutine() == await coroutine() == 1
            for _ in range(6_000):
                if await coroutine() > 1:
                    return
                await asyncio.sleep(0.01)
            raise AssertionError("it is computed again")

        asyncio.run(ask())
    for bad, why in ((0, "more than 0"), (float("inf"), "more than 0")):
        with pytest.raises(ValueError, match=why):
            oneread.memoize(ttl=1, early=bad)(plain)
    with pytest.raises(ValueError, match="ttl="):
        oneread.memoize(early=1)(plain)


def plain() -> int:
    return 1
