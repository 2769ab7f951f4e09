"""Indexes of LLM caches beside what is used for them now, while things go wrong: `python bench/rivals`.

All are asked from Python, in one run, in turns. Each answer is checked. Rivals come from the extra `rivals`
(`pip install './python[rivals]'`), and Redis or Valkey from the system's packages; one that is not installed is left
out, and said to be. The machine should be idle: the load is written down, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import draw, report
from scenes import QUICK, Scenes, Session, Sizes, rounds
from systems import ALL

PACKAGES = ("oneread", "mooncake-transfer-engine-non-cuda", "ai-dynamo-runtime", "redis", "lmdb")


def versions() -> list[str]:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def opened(names: list[str] | None, folder: Path, sizes: Sizes) -> tuple[list[Session], dict[str, str]]:
    sessions: list[Session] = []
    missing = {}
    for kind in ALL:
        key = f"{kind.question}: {kind.name}"
        if names is not None and kind.name not in names:
            continue
        begun = time.monotonic()
        try:
            sessions.append(Session(kind, folder / key.replace(": ", "-").replace(", ", "-"), sizes))
        except Exception as error:
            if kind.name.startswith("oneread"):
                for session in sessions:
                    session.close()
                raise
            missing[key] = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
        print(f"{key}: {missing.get(key, 'filled')} after {time.monotonic() - begun:.0f} s", file=sys.stderr)
    return sessions, missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few thousand blocks, and a minute or two")
    parser.add_argument("--only", help="names, with semicolons between: " + ", ".join({kind.name: 0 for kind in ALL}))
    parser.add_argument("--blocks", type=int, help="stable blocks, and as many of the owner that dies")
    parser.add_argument("--fill-seconds", type=float, help="how long each one may take to be filled")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--markdown", metavar="FILE")
    parser.add_argument("--pictures", metavar="FOLDER", help="needs matplotlib")
    given = parser.parse_args()
    sizes = QUICK if given.quick else Sizes()
    if given.blocks:
        # Whole prompts.
        chain = max(1, min(sizes.chain, given.blocks))
        blocks = max(chain, given.blocks - given.blocks % chain)
        sizes = dataclasses.replace(sizes, blocks=blocks, doomed=blocks, chain=chain)
    if given.fill_seconds:
        sizes = dataclasses.replace(sizes, fill_seconds=given.fill_seconds)
    names = None if given.only is None else [name.strip() for name in given.only.split(";")]
    load = os.getloadavg()
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="oneread-rivals-") as folder:
        sessions, missing = opened(names, Path(folder), sizes)
        try:
            result: dict[str, Any] = {
                "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
                "load": load,
                "versions": versions(),
                "sizes": dataclasses.asdict(sizes),
                "missing": missing,
                "systems": {f"{session.question}: {session.name}": session.figures for session in sessions},
                "rounds": rounds(sessions, sizes),
                "scenes": Scenes(sessions, sizes).play(),
            }
        finally:
            for session in sessions:
                session.close()
    text = report(result)
    print(text)
    if given.json:
        Path(given.json).write_text(json.dumps(result, indent=1) + "\n")
    if given.markdown:
        Path(given.markdown).write_text(text)
    if given.pictures:
        draw(result, Path(given.pictures))


if __name__ == "__main__":
    main()
