"""What is done to the systems, one scene after the other, and what their lookups did meanwhile.

In each scene each system has its turn, with the same lookups: one is due every two milliseconds. One that could not
begin in time counts from when it was due, so that a stall of seconds is not one slow lookup among thousands.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blocks import DOOMED, STABLE
from processes import Worker, WorkerFailed, private_bytes
from systems import System

KEEPER, DOOMED_OWNER, FIRST_CHURN = 1, 2, 3


@dataclass(frozen=True)
class Sizes:
    blocks: int = 1_000_000
    doomed: int = 1_000_000
    # Blocks of a prompt.
    chain: int = 10_000
    fill_seconds: float = 120.0
    sizes: tuple[int, ...] = (1, 128, 1_000, 10_000)
    rounds: int = 5
    slot_seconds: float = 0.25
    # Of the scenes: blocks a lookup, and when each is due.
    batch: int = 128
    pace: float = 0.002
    # How long nothing happens, at the beginning of a scene.
    lead: float = 2.0
    quiet: float = 8.0
    churn: float = 8.0
    rate: int = 10_000
    stopped: float = 15.0
    late: float = 10.0
    # After what time an owner that does not answer is dead.
    away: float = 10.0
    # How long it may take until all is right again.
    again: float = 15.0


QUICK = Sizes(
    blocks=20_000,
    doomed=20_000,
    chain=1_000,
    fill_seconds=20.0,
    sizes=(1, 128, 1_000),
    rounds=2,
    slot_seconds=0.1,
    lead=0.5,
    quiet=1.5,
    churn=2.0,
    pace=0.005,
    rate=2_000,
    stopped=2.0,
    late=1.5,
    away=3.0,
    again=4.0,
)


class Session:
    """One system with its processes."""

    def __init__(self, kind: type[System], folder: Path, sizes: Sizes) -> None:
        self.sizes, self.folder = sizes, folder
        folder.mkdir()
        self.system = kind(folder, sizes.away, sizes.blocks + sizes.doomed)
        self.system.check()
        self.server: subprocess.Popen[bytes] | None = None
        self.churner: Worker | None = None
        self.run = self.there = self.doomed_there = 0
        self.workers: list[Worker] = []
        try:
            self.begin()
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        return self.system.name

    @property
    def question(self) -> str:
        return self.system.question

    def worker(self, owner: int | None) -> Worker:
        worker = Worker(self.system, owner, self.sizes.chain)
        self.workers.append(worker)
        worker.ask("connect", owner=owner)
        return worker

    def serve(self) -> None:
        command = self.system.command()
        if command is not None:
            with open(self.folder / "server.log", "ab") as log:
                self.server = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def begin(self) -> None:
        self.serve()
        self.reader = self.worker(None)
        self.keeper = self.worker(KEEPER)
        self.doomed: Worker | None = self.worker(DOOMED_OWNER)
        before = self.index_bytes()
        begun = time.monotonic()
        self.fill()
        took = time.monotonic() - begun
        if self.question == "placements":
            self.keeper.ask("put_wide")
        count = self.there + self.doomed_there
        self.reader_bytes = self.reader.ask("memory")
        # A router's workers have the same blocks, so a block there is one with both.
        of = max(self.there, self.doomed_there) if self.question == "placements" else count
        taken = self.reader_bytes if self.system.kills == "reader" else self.index_bytes() - before
        self.figures = {"blocks": of, "fill seconds": took, "bytes a block": taken / max(of, 1)}
        self.figures["bytes a reader"] = self.reader_bytes

    def fill(self) -> None:
        """The keeper and the doomed owner put their blocks, at the same time. Whoever fills once more has the same."""
        first = DOOMED if self.question == "locations" else STABLE
        limit = self.sizes.fill_seconds
        self.keeper.tell("fill", base=STABLE, count=self.there or self.sizes.blocks, seconds=limit)
        if self.doomed is not None:
            count = self.doomed_there or self.sizes.doomed
            self.doomed.tell("fill", base=first, count=count, seconds=limit)
            self.doomed_there = self.doomed.answer(10 * limit)
        self.there = self.keeper.answer(10 * limit)
        if not self.there:
            raise WorkerFailed(f"no block was put in {limit:.0f} s")

    def index_bytes(self) -> int:
        """What the index takes: its server's memory, and its files there."""
        taken = private_bytes(self.server.pid) if self.server else 0
        return taken + sum(os.stat(file).st_blocks * 512 for file in self.system.files() if file.exists())

    def start_churn(self, seconds: float, late: float = 0.0) -> None:
        self.run += 1
        self.churner = self.worker(FIRST_CHURN + self.run)
        given = {"run": self.run, "seconds": seconds, "rate": self.sizes.rate, "late": late}
        self.churner.tell("churn", **given)
        # The first ones have to be there.
        time.sleep(0.5)

    def end_churn(self, seconds: float) -> float | str:
        """How many blocks a second went, or why it ended before."""
        assert self.churner is not None
        churner, self.churner = self.churner, None
        try:
            return float(churner.answer(seconds))
        except WorkerFailed as error:
            return str(error).strip().splitlines()[-1]
        finally:
            churner.end()

    def victim(self, who: str) -> int:
        if who == "server":
            assert self.server is not None
            return self.server.pid
        if who == "writer":
            assert self.churner is not None
            return self.churner.pid
        return self.reader.pid

    def new_reader(self) -> None:
        self.reader.kill()
        self.reader = self.worker(None)

    def look_for(self, mode: str, seconds: float, since: float | None = None) -> None:
        sizes = self.sizes
        kind = "random" if self.question == "locations" else "chain"
        self.reader.tell(
            "look",
            kind=kind,
            size=sizes.batch,
            seconds=seconds,
            there=self.there,
            doomed=self.doomed_there,
            mode=mode,
            pace=sizes.pace,
            since=since,
        )

    def close(self) -> None:
        for worker in reversed(self.workers):
            worker.end()
        if self.server is not None:
            self.server.send_signal(signal.SIGCONT)
            self.server.terminate()
            try:
                self.server.wait(20)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def summary(looked: dict[str, Any], begun: float, event: float | None) -> dict[str, Any]:
    """The figures of a scene. `event`: when it happened; what is wrong afterwards is to get right again."""
    took, ended = looked["took"], looked["ended"]
    if not len(took):
        return {"lookups": 0, "errors": looked["errors"]}
    told: dict[str, Any] = {
        "lookups": len(took),
        "p50": float(np.quantile(took, 0.5)),
        "p99.9": float(np.quantile(took, 0.999)),
        "longest": float(took.max()),
        "failed": int(looked["failed"].sum()),
        "wrong": int(looked["wrong"].sum()),
        "errors": looked["errors"],
    }
    if event is not None:
        bad = looked["failed"] | looked["wrong"] | looked["dead"]
        last = np.flatnonzero(bad & (ended > event))
        told["right again"] = 0.0 if not len(last) else float(ended[last[-1]] - event)
        if len(last) and last[-1] == len(bad) - 1:
            told["right again"] = None
    # For a picture: the longest of each twentieth of a second.
    bins = ((ended - begun) / 0.05).astype(int)
    line = [(float(each) * 0.05, float(took[bins == each].max())) for each in np.unique(bins)]
    told["line"] = line
    told["bad at"] = sorted({round(float(at - begun), 1) for at in ended[looked["failed"] | looked["wrong"]]})
    return told


class Scenes:
    def __init__(self, sessions: list[Session], sizes: Sizes) -> None:
        self.sessions, self.sizes = sessions, sizes
        self.rows: dict[str, dict[str, dict[str, Any]]] = {}

    def each(self, scene: str, play: Any, only: str | None = None) -> None:
        rows = self.rows.setdefault(scene, {})
        for session in self.sessions:
            if only is not None and session.question != only:
                continue
            key = f"{session.question}: {session.name}"
            begun = time.monotonic()
            try:
                rows[key] = play(session)
                lost = session.reader.ask("lost", there=session.there)
                rows[key]["lost"] = lost
                if lost:
                    session.fill()
            except WorkerFailed as error:
                rows.setdefault(key, {})["why"] = str(error).strip().splitlines()[-1]
                print(f"{scene}, {key}: {error}", file=sys.stderr)
                try:
                    session.new_reader()
                    session.fill()
                except WorkerFailed as again:
                    rows[key]["why"] += f"; and then {str(again).strip().splitlines()[-1]}"
            print(f"{scene}, {key}: {time.monotonic() - begun:.0f} s", file=sys.stderr)

    def answer(self, session: Session, seconds: float) -> Any:
        # A lookup that waits for longer than this has no answer.
        return session.reader.answer(seconds + 60)

    def quiet(self, session: Session) -> dict[str, Any]:
        begun = time.monotonic()
        session.look_for("stable", self.sizes.quiet)
        return summary(self.answer(session, self.sizes.quiet), begun, None)

    def churn(self, session: Session) -> dict[str, Any]:
        seconds = self.sizes.churn
        session.start_churn(seconds + 1)
        begun = time.monotonic()
        session.look_for("churn", seconds)
        looked = self.answer(session, seconds)
        return {"rate": session.end_churn(60), **summary(looked, begun, None)}

    def stop(self, session: Session) -> dict[str, Any]:
        sizes = self.sizes
        seconds = sizes.lead + sizes.stopped + sizes.lead
        # Changes are under way when it is stopped.
        session.start_churn(seconds)
        begun = time.monotonic()
        session.look_for("stable", seconds)
        time.sleep(sizes.lead)
        pid = session.victim(session.system.stops)
        os.kill(pid, signal.SIGSTOP)
        event = time.monotonic()
        try:
            time.sleep(sizes.stopped)
        finally:
            os.kill(pid, signal.SIGCONT)
        looked = self.answer(session, seconds)
        told = {"hit": session.system.stops, **summary(looked, begun, event)}
        session.end_churn(60)
        return told

    def late(self, session: Session) -> dict[str, Any]:
        sizes = self.sizes
        seconds = sizes.late + sizes.again / 2
        session.start_churn(seconds + 1, late=sizes.late)
        begun = time.monotonic()
        session.look_for("churn", seconds)
        looked = self.answer(session, seconds)
        # It was told to begin half a second before.
        told = summary(looked, begun, begun - 0.5 + sizes.late)
        return {"rate": session.end_churn(60), **told}

    def owner_dies(self, session: Session) -> dict[str, Any]:
        sizes = self.sizes
        seconds = sizes.lead + sizes.away + sizes.again
        begun = time.monotonic()
        session.look_for("dying", seconds)
        time.sleep(sizes.lead)
        assert session.doomed is not None
        session.doomed.kill()
        session.doomed = None
        event = time.monotonic()
        if not session.system.has_owners:
            time.sleep(sizes.away)
            base = DOOMED if session.question == "locations" else STABLE
            session.keeper.ask("remove_owner", owner=DOOMED_OWNER, base=base, count=session.doomed_there)
        looked = self.answer(session, seconds)
        # Until then nobody can know.
        looked["wrong"] |= looked["dead"] & (looked["ended"] > event + sizes.away + 1)
        looked["dead"] &= looked["ended"] > event
        told = summary(looked, begun, event)
        return {"blocks": session.doomed_there, **told}

    def restart(self, session: Session) -> dict[str, Any]:
        sizes = self.sizes
        seconds = sizes.lead + sizes.again
        who = session.system.kills
        session.start_churn(seconds)
        begun = time.monotonic()
        if who != "reader":
            session.look_for("stable", seconds)
        time.sleep(sizes.lead)
        event = time.monotonic()
        os.kill(session.victim(who), signal.SIGKILL)
        if who == "server":
            assert session.server is not None
            session.server.wait()
            session.serve()
        elif who == "reader":
            # Another one begins with nothing, and the workers tell it again what they have. Lookups were due meanwhile.
            session.end_churn(60)
            session.new_reader()
            session.look_for("stable", seconds, since=event)
            session.fill()
        looked = self.answer(session, seconds)
        told = {"hit": who, **summary(looked, begun, event)}
        if session.churner is not None:
            session.end_churn(60)
        return told

    def play(self) -> dict[str, dict[str, dict[str, Any]]]:
        sizes = self.sizes
        self.each("quiet", self.quiet)
        self.each(f"{sizes.rate:,} blocks a second go, and as many come", self.churn)
        self.each(f"stopped for {sizes.stopped:g} s", self.stop)
        self.each(f"events are {sizes.late:g} s late", self.late, only="placements")
        self.each(f"an owner of {sizes.doomed:,} blocks dies", self.owner_dies)
        for session in self.sessions:
            # It is dead.
            session.doomed_there = 0
        self.each("killed and started again", self.restart)
        return self.rows


def rounds(sessions: list[Session], sizes: Sizes) -> dict[str, dict[str, dict[str, Any]]]:
    """Lookups one after the other, of each kind and size, in rounds in which another system begins each time."""
    times: dict[str, dict[str, list[Any]]] = {}
    bad: dict[tuple[str, str], int] = {}
    for nth in range(sizes.rounds):
        at = nth % len(sessions)
        for size in sizes.sizes:
            for session in sessions[at:] + sessions[:at]:
                kinds = ("random", "chain") if session.question == "locations" else ("chain", "wide")
                for kind in kinds:
                    looked = session.reader.ask(
                        "look",
                        kind=kind,
                        size=size,
                        seconds=sizes.slot_seconds,
                        there=session.there,
                        doomed=session.doomed_there,
                    )
                    what, who = f"{session.question}, {kind}: {size}", session.name
                    times.setdefault(what, {}).setdefault(who, []).append(looked["took"])
                    bad[what, who] = bad.get((what, who), 0) + int((looked["wrong"] | looked["failed"]).sum())
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for what, by_system in times.items():
        for who, each in by_system.items():
            took = np.concatenate(each)
            found.setdefault(what, {})[who] = {
                "lookups": len(took),
                "p50": float(np.quantile(took, 0.5)),
                "p99.9": float(np.quantile(took, 0.999)),
                "longest": float(took.max()),
                "failed or wrong": bad[what, who],
            }
    return found
