"""The processes of a run: who asks, and who has blocks. The first process tells each what to do, over a pipe."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import signal
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from blocks import (
    ABSENT,
    CHUNK,
    DOOMED,
    STABLE,
    WIDE,
    WIDE_BLOCKS,
    WINDOW,
    Truth,
    agrees,
    asked_chunks,
    must_be,
    same_lengths,
    wide_lengths,
)
from systems import Locations, Placements, System, until

# Blocks that are put by one call.
PART = 2_000
# How long after the last one was due lookups may go on.
GRACE = 20.0
NOT_BEGUN = f"had not begun {GRACE:g} s after the last one was due"


def private_bytes(pid: int | str = "self") -> int:
    """The memory that is only this process's."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


class Asker:
    """Looks blocks up, takes the time of each lookup, and checks each answer."""

    def __init__(self, system: Any, chain: int, truth: Truth) -> None:
        self.system, self.chain, self.truth = system, chain, truth
        self.rng = np.random.default_rng(os.getpid())

    def connect(self, owner: int | None) -> None:
        self.system.load()
        gc.collect()
        self.before = private_bytes()
        self.system.connect(None)

    def memory(self) -> int:
        """What the index takes in this process, after a few lookups."""
        given = self.system.prepare(ABSENT + np.arange(1_000))
        for _ in range(3):
            self.system.look(given)
        gc.collect()
        return private_bytes() - self.before

    # What is asked, and what must be answered: pairs of what was prepared and a check.

    def ask_locations(self, mode: str, kind: str, size: int, there: int, doomed: int) -> Any:
        assert isinstance(self.system, Locations)
        absent = ABSENT + self.rng.integers(0, 1 << 30, size // 8)
        stable_count = size - len(absent)
        first = self.rng.integers(0, max(1, there - stable_count))
        if kind == "random":
            stable = STABLE + self.rng.integers(0, there, stable_count)
        else:
            stable = STABLE + (first + np.arange(stable_count)) % there
        if mode == "dying":
            stable[::2] = DOOMED + self.rng.integers(0, max(doomed, 1), len(stable[::2]))
        numbers = np.concatenate([stable, absent])
        is_doomed = (numbers >= DOOMED) & (numbers < ABSENT)
        is_stable = numbers < DOOMED
        chunks = []
        if mode == "churn":
            chunks = asked_chunks(self.truth.now(), max(1, size // 8), self.rng)
            offsets = self.rng.integers(0, CHUNK, len(chunks)).tolist()
            extra = [self.truth.first(chunk) + offset for chunk, offset in zip(chunks, offsets)]
            numbers[: len(extra)] = extra
            is_stable[: len(extra)] = False
        given = self.system.prepare(numbers)

        def check(answer: Any, before: Any, after: Any) -> tuple[bool, bool]:
            states = np.asarray(self.system.states(answer, numbers))
            expected = [must_be(chunk, before, after) for chunk in chunks]
            known = slice(len(chunks), None)
            right = bool((states[known][~is_doomed[known]] == is_stable[known][~is_doomed[known]]).all())
            right = right and agrees(states[: len(chunks)].tolist(), expected) and not (states < 0).any()
            return right, bool((states[is_doomed] != 0).any())

        return given, check

    def ask_placements(self, mode: str, kind: str, size: int, there: int, doomed: int) -> Any:
        assert isinstance(self.system, Placements)
        chunk, expected = None, dict[str, int | None]()
        if kind == "wide":
            size = min(size, WIDE)
            first, expected = WIDE_BLOCKS, {**wide_lengths(size)}
        elif mode == "churn" and self.rng.integers(2):
            (chunk,) = asked_chunks(self.truth.now(), 1, self.rng)
            first, size = self.truth.first(chunk), CHUNK
        else:
            size = min(size, self.chain)
            chain = int(self.rng.integers(max(1, there // self.chain)))
            first, expected = STABLE + chain * self.chain, {"keeper": size}
            # It has the same prompts, from the first on.
            if chain * self.chain < doomed:
                expected["doomed"] = None if mode == "dying" else size
        given = self.system.prepare(first + np.arange(size))

        def check(answer: Any, before: Any, after: Any) -> tuple[bool, bool]:
            told = self.system.lengths(answer)
            if chunk is None:
                return same_lengths(told, expected), mode == "dying" and bool(told.get("doomed"))
            must = must_be(chunk, before, after)
            return same_lengths(told, {"churn": None if must is None else CHUNK * must}), False

        return given, check

    def look(
        self,
        kind: str,
        size: int,
        seconds: float,
        there: int,
        doomed: int = 0,
        mode: str = "stable",
        pace: float = 0.0,
        since: float | None = None,
    ) -> dict[str, Any]:
        """Lookups for so long: when each ended, how long it took, and what was wrong with it.

        With a pace, one is due every so often, and the time of one that waited for those before it counts from when
        it was due. `since`: when the first one was due.
        """
        of = self.ask_locations if self.system.question == "locations" else self.ask_placements
        given = (mode, kind, size, there, doomed)
        fresh = mode == "churn"
        pool = [] if fresh else [of(*given) for _ in range(max(4, min(64, 100_000 // size)))]
        ended, took, wrong, dead, failed = [], [], [], [], []
        errors: dict[str, int] = {}
        start = time.monotonic() if since is None else since
        for nth in itertools.count():
            prepared, check = of(*given) if fresh else pool[nth % len(pool)]
            begun = now = time.monotonic()
            if pace:
                due = start + nth * pace
                if now < due:
                    time.sleep(due - now)
                    begun = time.monotonic()
                else:
                    begun = due
            if begun - start > seconds:
                break
            if pace and now - start > seconds + GRACE:
                # Those that still are due have had no answer.
                failed.append(True)
                ended.append(now)
                took.append(now - begun)
                wrong.append(False)
                dead.append(False)
                errors[NOT_BEGUN] = errors.get(NOT_BEGUN, 0) + 1
                continue
            before, answer, is_right, is_dead = self.truth.now(), None, True, False
            try:
                answer = self.system.look(prepared)
                done = time.monotonic()
                is_right, is_dead = check(answer, before, self.truth.now())
                failed.append(False)
            except Exception as error:
                done = time.monotonic()
                what = f"{type(error).__name__}: {error}"[:200]
                errors[what] = errors.get(what, 0) + 1
                failed.append(True)
            ended.append(done)
            took.append(done - begun)
            wrong.append(not is_right)
            dead.append(is_dead)
        columns = {"ended": ended, "took": took, "wrong": wrong, "dead": dead, "failed": failed}
        return {"errors": errors, **{name: np.array(column) for name, column in columns.items()}}

    def surely(self, numbers: Any) -> Any:
        """An answer, as soon as there is one: a server may still be starting."""
        return until(lambda: self.system.look(self.system.prepare(numbers)), 60)

    def lost(self, there: int) -> int:
        """How many of the stable blocks are not there."""
        lost = 0
        if self.system.question == "locations":
            for first in range(0, there, 10_000):
                numbers = STABLE + np.arange(first, min(first + 10_000, there))
                answer = self.surely(numbers)
                lost += int((np.asarray(self.system.states(answer, numbers)) != 1).sum())
            return lost
        for first in range(0, there, self.chain):
            answer = self.surely(STABLE + first + np.arange(self.chain))
            lost += self.chain - self.system.lengths(answer).get("keeper", 0)
        return lost


class Owner:
    """Has blocks: puts many, or has some come and go."""

    def __init__(self, system: System, chain: int, truth: Truth) -> None:
        self.system, self.chain, self.truth = system, chain, truth

    def connect(self, owner: int) -> None:
        self.system.load()
        self.system.connect(owner)

    def fill(self, base: int, count: int, seconds: float) -> int:
        """Puts so many, or as many as it can in the time, and says how many. Whole prompts, for a router."""
        part = self.chain if self.system.question == "placements" else PART
        end = time.monotonic() + seconds
        for first in range(0, count, part):
            if time.monotonic() > end:
                return first
            self.system.put(base + np.arange(first, min(first + part, count)))
        return count

    def put_wide(self) -> None:
        assert isinstance(self.system, Placements)
        self.system.put_wide()

    def remove_owner(self, owner: int, base: int, count: int) -> None:
        self.system.remove_owner(owner, base + np.arange(count))

    def churn(self, run: int, seconds: float, rate: int, late: float = 0.0) -> float:
        """So many blocks a second go, and as many come. `late`: what comes and goes is told only after that time, and
        then all at once. Returns how many a second went."""
        self.truth.begin(run)
        for chunk in range(WINDOW):
            self.add(chunk)
        begun = time.monotonic()
        backlog: list[tuple[Any, int]] = []
        for nth in itertools.count():
            due = begun + nth * CHUNK / rate
            if due - begun > seconds:
                break
            time.sleep(max(0.0, due - time.monotonic()))
            now = time.monotonic()
            if now - begun > seconds:
                break
            if now - begun < late:
                # It has happened, and the index does not know.
                self.truth.words[0:2] += 1
                self.truth.words[2:4] += 1
                backlog += [(self.system.put, WINDOW + nth), (self.system.remove, nth)]
                continue
            while backlog:
                call, chunk = backlog.pop(0)
                call(self.truth.first(chunk) + np.arange(CHUNK))
            self.add(WINDOW + nth)
            self.remove(nth)
        return nth * CHUNK / (time.monotonic() - begun)

    def add(self, chunk: int) -> None:
        self.truth.words[0] += 1
        self.system.put(self.truth.first(chunk) + np.arange(CHUNK))
        self.truth.words[1] += 1

    def remove(self, chunk: int) -> None:
        self.truth.words[2] += 1
        self.system.remove(self.truth.first(chunk) + np.arange(CHUNK))
        self.truth.words[3] += 1


def work(system: System, owner: int | None, chain: int, pipe: Any) -> None:
    """A process: does what it is told, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Libraries log there.
    log = os.open(system.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    kind = Asker if owner is None else Owner
    worker: Any = kind(system, chain, Truth(system.folder / "truth"))
    while True:
        try:
            call, given = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            pipe.send((True, getattr(worker, call)(**given)))
        except Exception:
            pipe.send((False, traceback.format_exc(limit=-3)))


class WorkerFailed(Exception):
    """What a process was told to do raised, or it did not answer."""


class Worker:
    """A process as the first one sees it."""

    def __init__(self, system: System, owner: int | None, chain: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.owner = owner
        self.process = context.Process(target=work, args=(system, owner, chain, other), daemon=True)
        self.process.start()
        other.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def tell(self, call: str, /, **given: Any) -> None:
        try:
            self.pipe.send((call, given))
        except OSError as error:
            raise WorkerFailed(f"{call}: the process has ended") from error

    def answer(self, within: float) -> Any:
        if not self.pipe.poll(within):
            raise WorkerFailed(f"no answer in {within:.0f} s")
        try:
            is_good, told = self.pipe.recv()
        except (EOFError, OSError) as error:
            raise WorkerFailed("the process has ended") from error
        if not is_good:
            raise WorkerFailed(told)
        return told

    def ask(self, call: str, /, **given: Any) -> Any:
        self.tell(call, **given)
        return self.answer(300)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def end(self) -> None:
        """Lets it end by itself, which has it say good-bye; kills it otherwise."""
        self.pipe.close()
        self.process.join(5)
        self.process.kill()
        self.process.join()
