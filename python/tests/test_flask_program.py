"""A Flask program that used diskcache, changed in one line, with workers of gunicorn: killed, restarted, and killed again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dicts import is_running, shm, within

import oneread

__all__ = ["shm"]

PROGRAM = """
    import os
    import oneread.cache as diskcache
    from flask import Flask, jsonify

    app = Flask(__name__)
    cache = diskcache.Cache(os.environ["CACHE_DIR"])

    @cache.memoize(expire=3600, tag="pages")
    def page(name):
        cache.incr("computed")
        return f"the page {name}"

    @app.get("/page/<name>")
    def show(name):
        return jsonify(page=page(name), visits=cache.incr("visits"), computed=cache.get("computed"), pid=os.getpid())

    @app.get("/clear")
    def clear():
        return jsonify(removed=cache.evict("pages"), pid=os.getpid())
"""


@contextmanager
def served(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Gunicorn with two workers, and where it listens."""
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    log = folder / "log"
    paths = str(Path(oneread.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": paths, "CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-m", "gunicorn", "--workers", "2", "--bind", "127.0.0.1:0", "program:app"]
    with log.open("w") as to:
        server = subprocess.Popen(command, env=environment, stderr=to, stdout=to, cwd=folder, start_new_session=True)
    try:
        within(60, lambda: log.read_text().count("Booting worker") >= 2 or server.poll() is not None, "workers begin")
        assert "Listening at: " in log.read_text(), log.read_text()
        yield server, log.read_text().partition("Listening at: ")[2].split()[0]
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(60)


def asked(address: str, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}{path}", timeout=60) as answer:
        return dict(json.load(answer))


def test_it_goes_on_where_it_was(shm: Path, tmp_path: Path) -> None:
    pytest.importorskip("flask")
    pytest.importorskip("gunicorn")
    visits, workers = 0, set()
    with served(tmp_path) as (server, address):
        end = 6_000
        while len(workers) < 2 and visits < end:
            visits += 1
            told = asked(address, "/page/a")
            assert (told["page"], told["visits"], told["computed"]) == ("the page a", visits, 1)
            workers.add(told["pid"])
        assert len(workers) == 2, "one worker has answered all"
        # One of the workers is killed; gunicorn begins another.
        killed = workers.pop()
        os.kill(killed, signal.SIGKILL)
        within(60, lambda: not is_running(killed), "it is killed")
        visits += 1
        assert asked(address, "/page/a")["visits"] == visits
        # All of them at once, as by a crash.
        os.killpg(server.pid, signal.SIGKILL)
    with served(tmp_path) as (server, address):
        told = asked(address, "/page/a")
        assert (told["visits"], told["computed"]) == (visits + 1, 1), "the table has outlived its users"
        server.terminate()
        assert server.wait(60) == 0
    within(60, lambda: not list(shm.glob("*/*.sock")), "the cache's server ends, and writes its snapshot")
    # As after a restart of the machine: nothing is in memory.
    with served(tmp_path) as (server, address):
        told = asked(address, "/page/a")
        assert (told["page"], told["visits"], told["computed"]) == ("the page a", visits + 2, 1)
        assert asked(address, "/clear")["removed"] == 1
        assert asked(address, "/page/a")["computed"] == 2
        server.terminate()
        server.wait(60)
