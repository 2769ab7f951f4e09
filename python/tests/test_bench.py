"""The table of `bench/table.py` is made: small, and with the rivals that are installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dicts import shm

import oneread

__all__ = ["shm"]

TABLE = Path(__file__).parent.parent / "bench" / "table.py"


def test_the_table_is_made(shm: Path) -> None:
    pytest.importorskip("numpy")
    told, picture = shm / "table.json", shm / "table.svg"
    options = ["--keys", "5000", "--rounds", "2", "--seconds", "0.2", "--json", str(told)]
    try:
        import matplotlib  # noqa: F401

        options += ["--picture", str(picture)]
    except ImportError:
        pass
    paths = {"PYTHONPATH": str(Path(oneread.__file__).parent.parent)}
    command = [sys.executable, str(TABLE), *options, "--rivals", "dict of its own,LMDB"]
    run = subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    result = json.loads(told.read_text())
    for name in ("oneread, list", "oneread, buffer", "dict of its own"):
        for of in ("lookups", "again"):
            assert set(result[of][name]) == {"1", "128", "1000", "10000"}
            assert all(took > 0 for took in result[of][name].values())
        assert name in run.stdout
    assert "LMDB" in result["lookups"] or "LMDB" in result["missing"]
    assert result["processes"]["eight"] > 0 and len(result["processes"]["memory KiB"]) == 8
    assert "--picture" not in options or picture.read_text().count("<svg") == 1


def test_caches_are_compared(shm: Path) -> None:
    told = shm / "caches.json"
    paths = {"PYTHONPATH": str(Path(oneread.__file__).parent.parent)}
    bench = Path(__file__).parent.parent / "bench" / "caches.py"
    command = [sys.executable, str(bench), "--keys", "50", "--gets", "20", "--sets", "10", "--rounds", "2", "--json", str(told)]
    run = subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    figures = json.loads(told.read_text())["figures"]
    for name in ("oneread.cache.Cache", "oneread.SharedDict"):
        assert figures[name]["get"] > 0 and figures[name]["set"] > 0 and name in run.stdout
