"""The stubs: a program passes the strict checks, a wrong one does not, and they say what is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def check(*words: str, cwd: Path = HERE) -> subprocess.CompletedProcess[str]:
    # Not the file of settings of the package: as a program of somebody else has none.
    return subprocess.run([sys.executable, "-m", *words], cwd=cwd, capture_output=True, text=True, timeout=300)


def test_a_program_passes_the_strict_checks(tmp_path: Path) -> None:
    settings = ["mypy", "--strict", "--config-file", os.devnull, "--cache-dir", str(tmp_path / "cache")]
    checked = check(*settings, "typed.py")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import oneread\n"
        "with oneread.Client() as client:\n"
        "    client.get('text')\n"
        "    client.put(b'key', 7)\n"
        "    oneread.Client(nope=1)\n"
        "    oneread.Server(keys='many')\n"
        "    client.get_into(b'key', 7)\n"
    )
    checked = check(*settings, str(wrong), cwd=tmp_path)
    lines = {line.split(":")[1] for line in checked.stdout.splitlines() if "error" in line and line.startswith("wrong")}
    assert lines == {"3", "4", "5", "6", "7"}, checked.stdout


def test_the_stubs_say_what_is_there(tmp_path: Path) -> None:
    checked = check("mypy.stubtest", "oneread._native", "--ignore-disjoint-bases", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
