"""What tests of shared dicts have in common."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import oneread

HERE = Path(__file__).parent


@pytest.fixture
def shm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for dicts of this test alone, in memory."""
    folder = Path(tempfile.mkdtemp(prefix="oneread-test-", dir="/dev/shm"))
    monkeypatch.setenv("ONEREAD_SHM", str(folder))
    yield folder
    for log in folder.glob("*/*.log"):
        text = log.read_text()
        assert "Traceback" not in text and "panicked" not in text, text
    sockets = list(folder.glob("*/*.sock"))
    for socket in sockets:
        # A server that is to live longer than its test, or is just ending.
        stop(str(socket))
    within(60, lambda: not any(socket.exists() for socket in sockets), "servers end")
    within(60, lambda: is_removed(folder), "their files go")


def is_removed(folder: Path) -> bool:
    """Removes a folder, from which a server that is ending removes files, too."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
    return not folder.exists()


def pid_of(shared: oneread.SharedDict) -> int:
    """Its server's process."""
    return int(shared.client.server_stats()["pid"])


def stop(socket: str) -> None:
    try:
        with oneread.Client(f"shm:{socket}", timeout=30) as client:
            os.kill(client.server_stats()["pid"], 15)
    except oneread.Disconnected:
        pass


def within(seconds: float, is_so: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def kill_server(shared: oneread.SharedDict) -> None:
    pid = pid_of(shared)
    os.kill(pid, 9)
    within(30, lambda: not is_running(pid), "it is killed")


def power_cut(shm: Path, shared: oneread.SharedDict) -> None:
    """Its server is killed, and what is in memory goes."""
    kill_server(shared)
    for folder in shm.glob("oneread-*"):
        shutil.rmtree(folder)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def begin(program: str, *arguments: str) -> subprocess.Popen[str]:
    """Another process with this program."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    paths = {"PYTHONPATH": os.pathsep.join([str(Path(oneread.__file__).parent.parent), str(HERE)])}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**os.environ, **paths}, **pipes)


def outcome(process: subprocess.Popen[str], within: float = 60) -> str:
    out, _ = process.communicate(timeout=within)
    assert process.returncode == 0, out
    return out.strip()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
