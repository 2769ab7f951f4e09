"""The examples do what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from dicts import shm, within

import oneread

__all__ = ["shm"]

EXAMPLES = Path(__file__).parent.parent / "examples"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(oneread.__file__).parent.parent)}


def run(name: str) -> str:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    return subprocess.run(command, env=environment(), check=True, timeout=120, capture_output=True, text=True).stdout


@contextmanager
def serving(folder: Path, told: str, ready: str, *command: str) -> Iterator[Callable[[str], dict[str, object]]]:
    """Runs workers on a port that they tell behind words of theirs; what gets a path from one that is ready."""
    log = folder / "log"
    with log.open("w") as to:
        server = subprocess.Popen(
            [sys.executable, "-m", *command], env=environment(), stderr=to, stdout=to, cwd=folder, start_new_session=True
        )
    try:
        within(60, lambda: ready in log.read_text() or server.poll() is not None, "workers listen")
        assert ready in log.read_text(), log.read_text()
        address = log.read_text().partition(told)[2].split()[0]

        def get(path: str) -> dict[str, object]:
            # Each over a connection of its own, which any worker may take.
            with urllib.request.urlopen(address + path, timeout=60) as answer:
                return dict(json.load(answer))

        yield get
    finally:
        server.terminate()
        server.wait(30)


def pages_of_two_workers(get: Callable[[str], dict[str, object]]) -> int:
    """Gets a page until two have answered, which one has computed. How often it was asked for."""
    answered_by: set[object] = set()
    asked = 0

    def has_asked_two_workers() -> bool:
        nonlocal asked
        with ThreadPoolExecutor(8) as pool:
            pages = list(pool.map(get, ["/news"] * 16))
        asked += 16
        answered_by.update(page["answered_by"] for page in pages)
        assert len({page["computed_by"] for page in pages}) == 1
        return len(answered_by) >= 2

    within(60, has_asked_two_workers, "two workers answer")
    return asked


def test_workers_of_gunicorn_share_a_cache(shm: Path) -> None:
    pytest.importorskip("gunicorn")
    words = ["--workers", "4", "--bind", "127.0.0.1:0", "--chdir", str(EXAMPLES), "gunicorn_cache:app"]
    with serving(shm, "Listening at: ", "Listening at: ", "gunicorn", *words) as get:
        pages_of_two_workers(get)


def test_workers_of_uvicorn_share_a_cache(shm: Path) -> None:
    pytest.importorskip("uvicorn")
    words = ["--workers", "4", "--port", "0", "--app-dir", str(EXAMPLES), "uvicorn_cache:app"]
    with serving(shm, "Uvicorn running on ", "startup complete", "uvicorn", *words) as get:
        asked = pages_of_two_workers(get)
        assert get("/hits") == {"hits": asked}


def test_a_pool_reads_one_table(shm: Path) -> None:
    pytest.importorskip("numpy")
    assert run("loader_pool") == "4000 samples loaded\n"


def test_processes_share_results(shm: Path) -> None:
    assert run("memoize_processes").endswith("computed once\n")


def test_features_are_looked_up() -> None:
    pytest.importorskip("numpy")
    assert run("feature_lookup").startswith("10000 vectors in ")


def test_a_consumer_follows(shm: Path) -> None:
    assert run("feed_consumer") == "51 keys are there\n"


def test_python_reads_what_the_command_serves() -> None:
    assert run("served_by_command").splitlines()[-1] == "hello"


def test_engines_fetch_pages_with_the_calls_of_sglang() -> None:
    pytest.importorskip("numpy")
    assert run("hicache_pages").splitlines() == [
        "engine 1 has stored 24 pages, in 24 of its own",
        "engine 2 finds 24 pages, and has fetched 24",
        "engine 2 has stored 40 pages, in 16 of its own",
        "engine 1 finds 40 pages, and has fetched 40",
    ]


def test_a_tier_of_vllm_is_asked_by_its_scheduler() -> None:
    assert run("vllm_tier") == "32 of 32 blocks hit, and were loaded\n"


def test_objects_are_looked_up_with_the_calls_of_mooncake() -> None:
    assert run("mooncake_lookups") == "600 at 10.0.0.1:12345, 300 at 10.0.0.2:12345\n"


@pytest.mark.parametrize(("page", "lines"), [("PYTHON", 50), ("KV-CACHE", 15)])
def test_the_samples_of_the_docs_run(shm: Path, page: str, lines: int) -> None:
    pytest.importorskip("numpy")
    blocks: list[str] = []
    inside = False
    for line in (EXAMPLES.parent.parent / "docs" / f"{page}.md").read_text().splitlines():
        if line.startswith("```"):
            inside = line == "```python"
        elif inside:
            blocks.append(line)
    assert len(blocks) > lines
    program = shm / "samples.py"
    program.write_text("\n".join(blocks))
    subprocess.run([sys.executable, str(program)], env=environment(), check=True, timeout=120)


def test_the_blocks_of_the_page_run(shm: Path, tmp_path: Path) -> None:
    """Those of docs/PYTHON.md, one behind the other, as a program."""
    pytest.importorskip("numpy")
    page = (Path(__file__).parents[2] / "docs" / "PYTHON.md").read_text()
    blocks = [block.partition("```")[0] for block in page.split("```python\n")[1:]]
    assert len(blocks) > 8
    program = tmp_path / "page.py"
    program.write_text("\n".join(blocks))
    ran = subprocess.run([sys.executable, str(program)], env=environment(), timeout=300, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
