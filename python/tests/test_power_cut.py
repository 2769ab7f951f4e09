"""Power cuts of a real file system: ext4 on a loop device is shut down while a dict is changed, so that the system forgets all
that was not synced. Takes root, and `./test --long`.

The server stands still before the cut and never runs again. A sync that is under way while ext4 shuts down may succeed although
its journal was not written (Linux 6.18, seen with `strace`): no server would hear of that, were it a power cut.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from dicts import begin, pid_of, power_cut, shm, within

import oneread
from oneread import SharedDict
from oneread.shared import Durable

__all__ = ["shm"]

# FS_IOC_SHUTDOWN: at once, and the file system's journal is not written any more, either.
SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
NAMES = [f"writer {nth}" for nth in range(4)]

WRITER = """
    import sys
    import oneread
    client = oneread.Client(sys.argv[1])
    key, n = sys.argv[2].encode(), int(sys.argv[3])
    with open(sys.argv[4], "w", buffering=1) as said:
        try:
            while True:
                n += 1
                client.put(key, b"%d" % n)
                print(n, file=said)
        except oneread.OnereadError:
            pass
"""

pytestmark = [
    pytest.mark.skipif("ONEREAD_LONG" not in os.environ, reason="only with ./test --long"),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mkfs.ext4") is None, reason="root mounts ext4"),
]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A file with an empty file system in it, to be mounted at `at` beside it."""
    image = tmp_path / "image"
    (tmp_path / "at").mkdir()
    image.touch()
    os.truncate(image, 256 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    return image


@contextmanager
def mounted(image: Path) -> Iterator[Path]:
    at = image.parent / "at"
    subprocess.run(["mount", "-o", "loop", str(image), str(at)], check=True)
    try:
        yield at
    finally:
        # A process that was killed has its files for a moment.
        within(60, lambda: subprocess.run(["umount", str(at)], check=False).returncode == 0, "it is unmounted")


def shut_down(at: Path) -> None:
    fd = os.open(at, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
    finally:
        os.close(fd)


def stands_still(pid: int) -> bool:
    """Whether no thread of a process runs, or is in the system."""
    states = [task.read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def numbers(path: Path) -> list[int]:
    """The whole lines of a writer."""
    return [int(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def found(shared: SharedDict) -> list[int]:
    return [int(shared.client.get(name.encode()) or 0) for name in NAMES]


@pytest.mark.parametrize("durable", ["always", "1s"])
def test_what_was_synced_is_there_after_a_cut(shm: Path, image: Path, durable: Durable) -> None:
    # What must be there of each writer, and what may be.
    least, most = [0] * len(NAMES), [0] * len(NAMES)
    for cut in range(12):
        with mounted(image) as at, SharedDict("power", durable=durable, directory=at / "d", memory="32MiB") as shared:
            begun = found(shared)
            ranges = zip(least, begun, most, strict=True)
            assert all(low <= n <= high for low, n, high in ranges), (cut, least, begun, most)
            lines = [image.parent / f"{cut} {name}" for name in NAMES]
            writers = [
                begin(WRITER, shared.address, name, str(n), str(path))
                for name, n, path in zip(NAMES, begun, lines, strict=True)
            ]
            within(60, lambda: all(len(numbers(path)) >= 20 for path in lines), "each has been answered")
            if durable == "1s":
                # What is on the disk by now stays.
                least = [numbers(path)[-1] for path in lines]
                reached = (shared.client.log() or {})["next"]
                within(60, lambda: (shared.client.log() or {})["durable"] >= reached, "it is synced")
            pid = pid_of(shared)
            os.kill(pid, signal.SIGSTOP)
            within(60, lambda: stands_still(pid), "it stands still")
            shut_down(at)
            os.kill(pid, signal.SIGKILL)
            for writer in writers:
                writer.communicate(timeout=60)
            lasts = [numbers(path)[-1] for path in lines]
            if durable == "always":
                least = lasts
            # One more was not answered, and may be on the disk.
            most = [last + 1 for last in lasts]
            for folder in shm.glob("oneread-*"):
                shutil.rmtree(folder)


def test_a_disk_that_fails_takes_no_change(shm: Path, image: Path) -> None:
    with mounted(image) as at, SharedDict("fails", durable="always", directory=at / "d", memory="32MiB") as shared:
        shared["a"] = 1
        shut_down(at)
        for _ in range(2):
            with pytest.raises(oneread.Busy):
                shared["b"] = 2
        assert (shared.client.log() or {})["has_failed"] and dict(shared.items()) == {"a": 1}
        power_cut(shm, shared)
    with mounted(image) as at, SharedDict("fails", durable="always", directory=at / "d", create=False) as shared:
        assert shared["a"] == 1
