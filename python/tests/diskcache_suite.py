"""Runs diskcache's own tests against `oneread.cache` (`./test --long`; needs the network).

The package's source is fetched by its hash, and nothing of it is kept. A test is left out only for a reason that stands here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import pytest

REQUIREMENT = "diskcache==5.6.3 --hash=sha256:2c3a3fa2743d8535d832ec61c2054a1641f41775aa7c556758a109941e33e4fc\n"
FILES = ["test_core.py", "test_fanout.py", "test_deque.py", "test_index.py", "test_recipes.py"]

SQL = "looks into SQLite, or has a mock of it"
FILE = "looks at files of values"
DISK = "a Disk of its own, or a mock of Disk"
MOCK = "a mock of what is within, for a Timeout of SQLite or an entry that goes: nothing here asks it"
ORDER = "the order of a Cache, or which entries leave first"
KEY = "a key that only a Disk's pickle keeps: a list, an open file"
CULL = "what has ended goes by a later put, and not by itself"

# By file and reason.
LEFT_OUT: dict[str, dict[str, list[str]]] = {
    "test_core.py": {
        SQL: [
            *("test_pragma_error", "test_close_error", "test_set_timeout", "test_add_timeout", "test_clear_timeout"),
            *("test_cull_timeout", "test_check", "test_integrity_check", "test_custom_eviction_policy", "test_pragmas"),
        ],
        FILE: ["test_get_keyerror4", "test_path", "test_cleanup_dirs", "test_disk_write_os_error"],
        DISK: [
            *("test_disk_reset", "test_custom_disk", "test_custom_filename_disk", "test_get_ioerror_fast_path"),
            *("test_pop_ioerror", "test_pull_ioerror", "test_peek_ioerror", "test_peekitem_ioerror"),
        ],
        ORDER: [
            *("test_least_recently_stored", "test_least_recently_used", "test_least_frequently_used"),
            *("test_iter", "test_iter_expire", "test_reversed", "test_peekitem_extras"),
        ],
        KEY: ["test_getsetdel", "test_key_roundtrip"],
        CULL: ["test_expire_rows"],
    },
    "test_fanout.py": {
        MOCK: [
            *("test_set_timeout", "test_touch_timeout", "test_add_timeout", "test_incr_timeout", "test_decr_timeout"),
            *("test_get_timeout", "test_pop_timeout", "test_delete_timeout", "test_remove_timeout", "test_reset_timeout"),
        ],
        DISK: ["test_custom_filename_disk"],
        KEY: ["test_getsetdel"],
    },
    "test_deque.py": {
        MOCK: [
            *("test_index_positive", "test_index_negative", "test_index_out_of_range", "test_iter_keyerror"),
            *("test_reversed_keyerror", "test_remove_keyerror", "test_rotate_indexerror", "test_rotate_indexerror_negative"),
        ],
    },
}

CONFTEST = """
import sys
import oneread.cache, oneread.cache.core
sys.modules["diskcache"] = oneread.cache
sys.modules["diskcache.core"] = oneread.cache.core
"""


def fetched(folder: Path) -> list[Path]:
    """The test files, in this folder."""
    wanted = folder / "requirements.txt"
    wanted.write_text(REQUIREMENT)
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "--require-hashes"]
    subprocess.run([*fetch, "-d", str(folder), "-r", str(wanted)], check=True)
    (source,) = folder.glob("*.tar.gz")
    with tarfile.open(source) as packed:
        for member in packed.getmembers():
            name = Path(member.name).name
            if Path(member.name).parent.name == "tests" and name in FILES:
                file = packed.extractfile(member)
                assert file is not None
                (folder / name).write_bytes(file.read())
    (folder / "conftest.py").write_text(CONFTEST)
    return [folder / name for name in FILES]


class Selection:
    """Leaves tests out, and counts."""

    def __init__(self) -> None:
        self.why = {
            f"{file}::{test}": why
            for file, reasons in LEFT_OUT.items()
            for why, tests in reasons.items()
            for test in tests
        }
        self.ran = 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        names = {item.nodeid.rpartition("/")[2]: item for item in items}
        unknown = set(self.why) - set(names)
        assert not unknown, f"no such tests: {unknown}"
        items[:] = [item for name, item in names.items() if name not in self.why]
        self.ran = len(items)


def ended(shm: Path) -> None:
    """Returns when the servers of the caches have ended, which nobody has open any more."""
    end = time.monotonic() + 120
    while list(shm.glob("*/*.sock")) and time.monotonic() < end:
        time.sleep(0.1)
    shutil.rmtree(shm)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="oneread-suite-") as folder:
        shm = tempfile.mkdtemp(prefix="oneread-suite-", dir="/dev/shm")
        os.environ["ONEREAD_SHM"] = shm
        # Their caches are made here, too.
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        selection = Selection()
        files = list(map(str, fetched(Path(folder))))
        status = pytest.main(["-q", "-p", "no:cacheprovider", f"--rootdir={folder}", *sys.argv[1:], *files], [selection])
        ended(Path(shm))
        out = len(selection.why)
        print(f"{selection.ran} tests of diskcache's ran, {out} are left out:")
        for why in sorted(set(selection.why.values())):
            print(f"  {sum(one == why for one in selection.why.values()):3}  {why}")
        if 3 * out >= selection.ran + out:
            print("a third or more is left out")
            return 1
        return int(status)


if __name__ == "__main__":
    sys.exit(main())
