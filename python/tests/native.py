"""What the tests of the native part have in common."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import oneread


@contextmanager
def served(**options: Any) -> Iterator[tuple[oneread.Server, oneread.Client]]:
    """A server, with a short path, and a client of it."""
    with tempfile.TemporaryDirectory(prefix="or-", dir="/tmp") as folder:
        if not options.keys() & {"slots", "bytes_max"}:
            options.setdefault("keys", 1000)
        with oneread.Server(Path(folder) / "s", **options) as server, oneread.Client(server.address) as client:
            yield server, client


def python(program: str, *words: str) -> subprocess.Popen[str]:
    """Another process, which runs this program."""
    command = [sys.executable, "-c", textwrap.dedent(program), *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def outcome(process: subprocess.Popen[str], given: str | None = None) -> str:
    """What it has printed. It has to succeed."""
    out, errors = process.communicate(given, timeout=60)
    assert process.returncode == 0, (process.returncode, out, errors)
    return out


def until(is_so: Callable[[], bool]) -> None:
    """Waits, up to a minute."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)
