"""Where a `SharedDict` is: in a directory that outlives the machine, in another user's folder, in little memory."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from dicts import begin, is_running, kill_server, outcome, pid_of, power_cut, said, shm, within

import oneread
from oneread import SharedDict
from oneread.shared import Durable

__all__ = ["shm"]

LONG = 3_600
OTHERWISE: dict[Durable, Durable] = {"1s": "always", "always": "1s"}
# A user that is not this one.
OTHER = 54_321


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "oneread" / "dicts"


def reboot(shm: Path, pid: int) -> None:
    """What is in memory goes."""
    within(60, lambda: not is_running(pid), "the server ends")
    for folder in shm.glob("oneread-*"):
        shutil.rmtree(folder)


def test_entries_outlive_the_machine(shm: Path, state: Path) -> None:
    with SharedDict("kept", snapshot_every=LONG, codec="plain") as shared:
        shared.put("a", [1, 2], ttl=LONG, tag="t")
        shared["k" * 1000] = "long"
        pid = pid_of(shared)
    reboot(shm, pid)
    assert {path.name for path in (state / "kept").iterdir()} >= {"oneread.snapshot", "oneread.dict.json"}
    # What is not given is as it was made.
    with SharedDict("kept", snapshot_every=LONG, create=False) as shared:
        assert dict(shared.items()) == {"a": [1, 2], "k" * 1000: "long"} and shared.tag("a") == "t"
        # Ends are told in eighths of a second, rounded up, by each table since it was made.
        assert 0 < shared.ttl("a") <= LONG + 1  # type: ignore[operator]
        with pytest.raises(TypeError, match="plain"):
            shared["b"] = object()
        with pytest.raises(oneread.Incompatible, match="snapshot_every"):
            SharedDict("kept", snapshot_every=1)
        pid = pid_of(shared)
    reboot(shm, pid)
    with pytest.raises(oneread.Incompatible, match="codec='plain', asked for was 'raw'"):
        SharedDict("kept", snapshot_every=LONG, codec="raw")
    assert oneread.delete_dict("kept") and not list((state / "kept").iterdir())
    with pytest.raises(FileNotFoundError):
        SharedDict("kept", snapshot_every=LONG, create=False)


def test_a_directory_of_its_own(shm: Path, tmp_path: Path) -> None:
    where = tmp_path / "there"
    with SharedDict("named", directory=where, lives=0.1) as shared:
        shared["a"] = 1
        pid = pid_of(shared)
    reboot(shm, pid)
    moved = tmp_path / "moved"
    where.rename(moved)
    with SharedDict("other", directory=moved) as shared:
        assert shared["a"] == 1
        # Nobody else has a server for it.
        with pytest.raises(oneread.OnereadError, match="another server has the directory"):
            SharedDict("third", directory=moved, start_within=60)
        pid = pid_of(shared)
    within(60, lambda: not is_running(pid), "the server ends")
    assert oneread.delete_dict("other", directory=moved) and not oneread.delete_dict("other", directory=moved)
    for bad in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="snapshot_every="):
            SharedDict("bad", snapshot_every=bad)


def test_a_killed_server_of_a_saved_dict_loses_nothing(shm: Path) -> None:
    with SharedDict("killed", snapshot_every=LONG) as shared:
        shared["a"] = 1
        kill_server(shared)
    # The last has closed it, and no snapshot was made.
    with SharedDict("killed", snapshot_every=LONG) as shared:
        assert shared["a"] == 1


WRITER = """
    import sys
    import oneread
    client = oneread.Client(sys.argv[1])
    n = 0
    while True:
        n += 1
        client.put(sys.argv[2].encode(), b"%d" % n)
        print(n, flush=True)
"""


@pytest.mark.parametrize("durable", ["always", "1s"])
def test_a_power_cut_takes_nothing_that_was_synced(shm: Path, state: Path, durable: Durable) -> None:
    with SharedDict("kept", durable=durable, codec="plain", memory="64MiB") as shared:
        for n in range(300):
            shared[n] = str(n)
        shared.put("tagged", [1, None], ttl=LONG, tag="t")
        del shared[7]
        assert shared.incr("n", 5) == 5
        log = shared.client.log()
        assert log is not None and log["next"] > 300 and not log["has_failed"]
        if durable == "always":
            assert log["durable"] == log["next"]
        else:
            within(60, lambda: (shared.client.log() or {})["durable"] >= log["next"], "a second later")
        power_cut(shm, shared)
        with pytest.raises(oneread.Disconnected, match="the folder was removed"):
            shared["gone"] = 1
    assert {path.name for path in (state / "kept").iterdir()} >= {"oneread.log", "oneread.dict.json"}
    # What is not given is as it was made: codec, and that there is a log. Nobody has made a snapshot.
    with SharedDict("kept", durable=durable, create=False) as shared:
        assert {key: shared[key] for key in range(300) if key != 7} == {n: str(n) for n in range(300) if n != 7}
        assert 7 not in shared and shared["tagged"] == [1, None] and shared.tag("tagged") == "t" and shared["n"] == 5
        assert 0 < shared.ttl("tagged") <= LONG  # type: ignore[operator]
        with pytest.raises(oneread.Incompatible, match="durable="):
            SharedDict("kept", durable=OTHERWISE[durable])
        pid = pid_of(shared)
    # Its end makes a snapshot, from which the log goes on.
    reboot(shm, pid)
    with SharedDict("kept", durable=durable, create=False) as shared:
        assert shared["n"] == 5
        shared["last"] = 1
        if durable == "always":
            power_cut(shm, shared)
        else:
            pid = pid_of(shared)
    if durable == "1s":
        reboot(shm, pid)
    with SharedDict("kept", durable=durable, create=False) as shared:
        assert shared["last"] == 1 and shared["n"] == 5
    assert oneread.delete_dict("kept") and not list((state / "kept").iterdir())


def test_what_calls_returned_for_is_there_after_a_power_cut(shm: Path, state: Path) -> None:
    with SharedDict("kept", durable="always", memory="64MiB") as shared:
        writers = [begin(WRITER, shared.address, f"writer {n}") for n in range(3)]
        lasts = [int(said(writer)) for _ in range(10) for writer in writers][-len(writers) :]
        power_cut(shm, shared)
    for nth, writer in enumerate(writers):
        # What it has been answered is said, or is the next.
        writer.kill()
        out, _ = writer.communicate()
        lasts[nth] = max([lasts[nth], *map(int, out.split())])
    with SharedDict("kept", durable="always", create=False) as shared:
        for nth, last in enumerate(lasts):
            found = shared.client.get(b"writer %d" % nth)
            # One or two more may have been on the disk: answered, and not said; not answered.
            assert found is not None and last <= int(found) <= last + 2


def test_a_killed_server_makes_again_what_its_log_has(shm: Path, state: Path) -> None:
    with SharedDict("kept", durable="1s", lives="for ever") as shared:
        shared["a"] = 1
        kill_server(shared)
        assert shared["a"] == 1
        shared["b"] = 2
    with SharedDict("kept", durable="1s") as shared:
        assert shared["a"] == 1 and shared["b"] == 2
    assert oneread.delete_dict("kept")


def test_a_bad_durable_is_refused(shm: Path, state: Path, tmp_path: Path) -> None:
    for bad in ("2s", "never", "", 1, True):
        with pytest.raises(ValueError, match="durable=.*'1s'.*'always'"):
            SharedDict("bad", durable=bad)  # type: ignore[arg-type]
    assert not (state / "bad").exists()
    with oneread.Server(f"shm:{shm}/s", slots=64, log=tmp_path / "log", fsync="1s") as server:
        assert (server.log() or {})["next"] == 1
    with pytest.raises(oneread.Invalid, match="always, 1s, never"):
        oneread.Server(f"shm:{shm}/s", slots=64, log=tmp_path / "log", fsync="2s")  # type: ignore[arg-type]
    with pytest.raises(oneread.Invalid, match="need log"):
        oneread.Server(f"shm:{shm}/s", slots=64, fsync="1s")


def test_what_is_left_out_is_as_it_was_made(shm: Path, tmp_path: Path) -> None:
    with SharedDict("often", directory=tmp_path / "d", snapshot_every=LONG), SharedDict("often", directory=tmp_path / "d"):
        pass
    with SharedDict("logged", directory=tmp_path / "l", durable="1s"), SharedDict("logged", directory=tmp_path / "l") as shared:
        assert shared.client.log() is not None


def test_what_a_directory_says_is_on_the_disk(shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[tuple[int, int]] = set()

    def fsync(fd: int) -> None:
        about = os.fstat(fd)
        synced.add((about.st_dev, about.st_ino))

    monkeypatch.setattr(os, "fsync", fsync)
    where = tmp_path / "not" / "there" / "yet"
    with SharedDict("kept", durable="always", directory=where):
        pass
    for path in (where / "oneread.dict.json", where, where.parent, where.parent.parent, tmp_path):
        about = path.stat()
        assert (about.st_dev, about.st_ino) in synced, path


def as_other(act: Callable[[], None]) -> str:
    """What a process of another user says, which does this."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        try:
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            act()
            os.write(tell, b"done")
        except BaseException as error:
            os.write(tell, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(tell)
    with os.fdopen(told) as said:
        text = said.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_other_users_share_a_dict_that_lets_them(shm: Path) -> None:
    shm.chmod(0o711)

    def add() -> None:
        with SharedDict("shared", user=0) as theirs:
            assert theirs["a"] == [1] and theirs.incr("n") == 1
            theirs.put("b", "from another", tag="t")

    def refused() -> None:
        with SharedDict("alone", user=0):
            pass

    with SharedDict("shared", users=[OTHER]) as shared, SharedDict("alone") as alone:
        shared["a"] = [1]
        assert as_other(add) == "done"
        assert (shared["b"], shared["n"], shared.tag("b")) == ("from another", 1, "t")
        assert as_other(refused).startswith("FileNotFoundError: there is no shared dict 'alone'")
        # Plain without asking; nothing that another put runs here.
        with pytest.raises(TypeError, match="plain"):
            shared["c"] = object()
        # Who says nothing of users opens the same.
        with SharedDict("shared") as again:
            assert again["b"] == "from another"
        with pytest.raises(oneread.Incompatible, match="users="):
            SharedDict("shared", users=[OTHER + 1])
        with pytest.raises(oneread.Incompatible, match="alone"):
            SharedDict("alone", users=[OTHER])
        assert alone.name == "alone"

    def gone() -> None:
        SharedDict("shared", user="root")

    within(60, lambda: as_other(gone).startswith("FileNotFoundError: there is no shared dict 'shared'"), "it ends")
    with SharedDict("strangers", users=[OTHER + 1]):

        def strange() -> None:
            SharedDict("strangers", user=0)

        assert "Refused" in as_other(strange)


def test_users_and_pickle_do_not_go_together(shm: Path) -> None:
    with pytest.raises(ValueError, match="runs code"):
        SharedDict("shared", users=[OTHER], codec="pickle")
    with pytest.raises(ValueError, match="no user 'nobody-of-this-name'"):
        SharedDict("shared", users=["nobody-of-this-name"])
    with pytest.raises(FileNotFoundError, match="no shared dicts for others"):
        SharedDict("shared", user=OTHER)


IN_LITTLE_MEMORY = """
    import os, pathlib, time
    import oneread
    import oneread.cache

    def ended():
        end = time.monotonic() + 60
        while list(pathlib.Path(os.environ["ONEREAD_SHM"]).glob("*/*.dict")):
            assert time.monotonic() < end, "servers end"
            time.sleep(0.01)

    value = os.urandom(200_000)
    # The cache first has all that it may have, and others take the memory before it does.
    with oneread.cache.Cache(os.environ["CACHE"], memory="1GiB", codec="plain", lives=0.1) as cache:
        for n in range(400):
            cache[n] = value
        assert 10 < len(cache) < 390 and cache[399] == value, len(cache)
    ended()
    with oneread.SharedDict("evicts", evict="s3-fifo", memory="1GiB", codec="raw") as shared:
        for n in range(400):
            shared[n] = value
        assert 10 < len(shared) < 390 and shared[399] == value, len(shared)
        for n in range(400_000):
            shared.client.put(b"%d" % n, b"short")
    for memory in ("1GiB", None):
        ended()
        with oneread.SharedDict("full", codec="raw", memory=memory) as shared:
            try:
                for n in range(400):
                    shared.add(n, value)
            except (oneread.SystemRefused, oneread.Full) as error:
                assert "is full (40 MiB)" in str(error) and "--shm-size" in str(error) and "memory=" in str(error), error
                assert memory is None or isinstance(error, oneread.SystemRefused), error
            else:
                raise AssertionError("400 values of 200 kB are in 40 MiB")
    ended()
    # Others have nearly all of the memory when it begins.
    taken = pathlib.Path(os.environ["ONEREAD_SHM"], "taken")
    taken.write_bytes(bytes(34 << 20))
    with oneread.SharedDict("tight") as shared:
        shared["a"] = 1
        assert shared["a"] == 1
    print("done")
"""


def test_little_memory_is_named_or_made_room_in(shm: Path, tmp_path: Path) -> None:
    mount = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    trial = f"mount -t tmpfs -o size=40m tmpfs {shm}"
    if shutil.which("unshare") is None or subprocess.run([*mount, trial], capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here")
    paths = str(Path(oneread.__file__).parent.parent)
    environment = {**os.environ, "CACHE": str(tmp_path / "c"), "PYTHONPATH": paths, "PROGRAM": textwrap.dedent(IN_LITTLE_MEMORY)}
    run = f'{trial} && exec {sys.executable} -c "$PROGRAM"'
    done = subprocess.run([*mount, run], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "done", done.stderr


def test_gets_of_all_processes_are_counted(shm: Path) -> None:
    with SharedDict("counted") as shared:
        shared["a"] = 1
        before = shared.stats()["host"]
        program = """
            from oneread import SharedDict
            with SharedDict("counted") as shared:
                for _ in range(100):
                    assert shared["a"] == 1 and shared.get("none") is None
        """
        for process in [begin(program) for _ in range(2)]:
            outcome(process)
        now = shared.stats()["host"]
        assert (now["hits"] - before["hits"], now["misses"] - before["misses"]) == (200, 200)
        assert now["gets"] == now["hits"] + now["misses"]
        kill_server(shared)
        assert shared["a"] == 1 and shared.stats()["host"]["hits"] >= 0


def test_a_dict_is_scraped(shm: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        at = "127.0.0.1:%d" % taken.getsockname()[1]
    with SharedDict("scraped", metrics=at) as shared:
        shared["a"] = 1
        assert shared["a"] == 1 and "none" not in shared and shared.stats()["host"]["hits"] == 1
        with urllib.request.urlopen(f"http://{at}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        assert 'oneread_gets_total{result="hit"} 1' in text and 'oneread_gets_total{result="miss"} 1' in text
        assert "oneread_inserts_total 1" in text
        with pytest.raises(oneread.OnereadError, match="another port|taken|in use"):
            SharedDict("scraped-too", metrics=at)
    with pytest.raises(oneread.OnereadError, match="give IP:PORT"):
        SharedDict("nowhere", metrics="localhost")
