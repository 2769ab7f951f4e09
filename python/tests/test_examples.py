"""The examples do what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
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


def test_workers_of_gunicorn_share_a_cache(shm: Path) -> None:
    pytest.importorskip("gunicorn")
    command = [sys.executable, "-m", "gunicorn", "--workers", "4", "--bind", "127.0.0.1:0", "--chdir", str(EXAMPLES)]
    log = (shm / "gunicorn.log").open("w")
    server = subprocess.Popen([*command, "gunicorn_cache:app"], env=environment(), stderr=log)
    try:
        text = (shm / "gunicorn.log").read_text
        within(60, lambda: "Listening at: " in text(), "gunicorn listens")
        address = text().partition("Listening at: ")[2].split()[0]

        def get(path: str) -> dict[str, object]:
            # Each over a connection of its own, which any worker may take.
            with urllib.request.urlopen(address + path, timeout=60) as answer:
                return dict(json.load(answer))

        answered_by: set[object] = set()

        def has_asked_two_workers() -> bool:
            with ThreadPoolExecutor(8) as pool:
                pages = list(pool.map(get, ["/news"] * 16))
            answered_by.update(page["answered_by"] for page in pages)
            assert len({page["computed_by"] for page in pages}) == 1
            return len(answered_by) >= 2

        within(60, has_asked_two_workers, "two workers answer")
    finally:
        server.terminate()
        server.wait(30)
        log.close()


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
