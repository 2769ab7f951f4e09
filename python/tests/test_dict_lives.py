"""How long a `SharedDict` lives, and who may have it."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from dicts import HERE, begin, is_running, kill_server, outcome, pid_of, said, say, shm, within

import oneread
from oneread import SharedDict
from oneread import _place
from oneread._place import Place

__all__ = ["shm"]

HOLDER = """
    import sys
    from oneread import SharedDict
    shared = SharedDict(*sys.argv[1:])
    print(shared.client.server_stats()["pid"], flush=True)
    sys.stdin.readline()
"""


def files(shm: Path) -> set[str]:
    return {path.name for path in shm.glob("*/*") if path.suffix not in (".open", ".start", ".log")}


def test_processes_that_come_at_once_have_one_server(shm: Path) -> None:
    holders = [begin(HOLDER, "race") for _ in range(6)]
    pids = {said(holder) for holder in holders}
    assert len(pids) == 1
    pid = int(pids.pop())
    for holder in holders[:-1]:
        say(holder, "end")
        outcome(holder)
    assert is_running(pid), "one still has it open"
    holders[-1].kill()
    holders[-1].communicate()
    within(30, lambda: not is_running(pid), "the server ends with the last, however that ended")
    assert files(shm) == set()


def test_the_next_one_begins_with_nothing(shm: Path) -> None:
    for _ in range(5):
        with SharedDict("again") as shared:
            assert dict(shared.items()) == {}
            shared["a"] = 1
    with pytest.raises(oneread.Closed):
        shared["a"]


def test_it_stays_for_a_while(shm: Path) -> None:
    with SharedDict("while", lives=600) as shared:
        shared["a"] = 1
        pid = pid_of(shared)
    with SharedDict("while", create=False) as shared:
        assert shared["a"] == 1 and pid_of(shared) == pid
    with SharedDict("short", lives=0.5) as shared:
        pid = pid_of(shared)
    within(60, lambda: not is_running(pid), "half a second later it ends")
    with pytest.raises(FileNotFoundError, match="no shared dict 'short'"):
        SharedDict("short", create=False)


def test_who_comes_while_it_ends_has_a_server(shm: Path) -> None:
    for nth in range(40):
        with SharedDict("ends", lives=0.01) as shared:
            shared["a"] = nth
            assert shared["a"] == nth
        time.sleep(0.0005 * nth)


def test_it_stays_for_ever(shm: Path) -> None:
    with SharedDict("ever", lives="for ever") as shared:
        shared["a"] = 1
        pid = pid_of(shared)
    assert is_running(pid)
    os.kill(pid, signal.SIGTERM)
    within(30, lambda: not is_running(pid), "it can be stopped")
    with SharedDict("ever") as shared:
        assert shared["a"] == 1, "the next server has the table"
        assert pid_of(shared) != pid


def test_a_killed_server_is_started_anew(shm: Path, caplog: pytest.LogCaptureFixture) -> None:
    with SharedDict("killed") as shared:
        shared["a"] = 1
        os.kill(pid_of(shared), signal.SIGKILL)
        shared["b"] = 2
        assert dict(shared.items()) == {"a": 1, "b": 2}
    assert "the server of the shared dict 'killed' is gone" in caplog.text


def test_every_call_starts_a_server_where_none_is(shm: Path) -> None:
    with SharedDict("calls") as shared:
        shared["a"] = 1
        calls: list[tuple[Any, Any]] = [
            (lambda: shared.update({"c": 3, "d": 4}), None),
            (lambda: shared.__delitem__("c"), None),
            (lambda: shared.setdefault("a", 9), 1),
            (lambda: shared.setdefault("new", 9), 9),
            (lambda: shared.pop("new"), 9),
            (lambda: shared.get_many(["a", "new", "c"]), [1, None, None]),
            (lambda: len(shared), 2),
            (lambda: sorted(shared), ["a", "d"]),
            (lambda: sorted(shared.items()), [("a", 1), ("d", 4)]),
            (lambda: shared.changes().close(), None),
            (lambda: shared.clear(), None),
            (lambda: len(shared), 0),
        ]
        for call, expected in calls:
            kill_server(shared)
            assert call() == expected
            # Some calls need no server.
            len(shared)
        shared["a"] = 1
        kill_server(shared)
        assert shared.popitem() == ("a", 1) and not shared
        kill_server(shared)
        # If it was under way when the server went, nobody knows whether it was there before.
        with pytest.raises((oneread.Disconnected, KeyError)):
            del shared["a"]
        with pytest.raises(KeyError):
            del shared["a"]


def test_who_takes_an_entry_says_when_nobody_knows(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost:
        """A client whose server goes with what it was asked for."""

        def compare_exchange(self, raw: bytes, *_: object) -> bool:
            client.remove(raw)
            gone = oneread.Disconnected("gone")
            gone.maybe_made = True
            raise gone

        remove = compare_exchange

    with SharedDict("taken") as shared:
        shared["a"] = 1
        client = shared.client
        monkeypatch.setattr(shared, "_client", Lost())
        with pytest.raises(oneread.Disconnected):
            shared.pop("a", None)
        with pytest.raises(oneread.Disconnected):
            del shared["a"]
        monkeypatch.undo()
        assert "a" not in shared


def test_a_loop_goes_on_with_the_next_server(shm: Path) -> None:
    with SharedDict("loop") as shared:
        shared.update({n: n for n in range(5_000)})
        keys = iter(shared)
        seen = [next(keys)]
        kill_server(shared)
        seen.extend(keys)
        assert len(seen) == 5_000 and set(seen) == set(range(5_000))


def test_a_feed_starts_a_server_and_goes_on(shm: Path) -> None:
    with SharedDict("feed") as shared:
        changes = shared.changes()
        kill_server(shared)
        told = changes.poll(0.1)
        assert is_running(pid_of(shared)), "who only listens has started one"
        while told is None:
            told = changes.poll(30)
        assert told.kind == "gap"
        shared["a"] = 1
        assert next(changes) == oneread.DictChange("came", "a", 1)


def test_the_last_one_removes_what_a_killed_server_left(shm: Path) -> None:
    with SharedDict("left") as shared, SharedDict("left"):
        shared["a"] = 1
        kill_server(shared)
        assert files(shm)
    assert files(shm) == set()
    holder = begin("""
        from dicts import kill_server
        from oneread import SharedDict
        shared = SharedDict("left")
        shared["a"] = 1
        kill_server(shared)
    """)
    outcome(holder)
    assert files(shm) == set(), "also where nobody has closed it"
    with SharedDict("stays", lives="for ever") as shared:
        shared["a"] = 1
        kill_server(shared)
    with SharedDict("stays") as shared:
        assert shared["a"] == 1
    assert oneread.delete_dict("stays")


def test_a_dict_is_deleted_that_nobody_has_open(shm: Path) -> None:
    with SharedDict("deleted", lives="for ever") as shared:
        shared["a"] = 1
        pid = pid_of(shared)
        with pytest.raises(oneread.Busy, match="has the shared dict 'deleted' open"):
            oneread.delete_dict("deleted")
        assert shared["a"] == 1
    assert oneread.delete_dict("deleted") and not is_running(pid) and files(shm) == set()
    assert not oneread.delete_dict("deleted")
    with SharedDict("deleted", lives=600) as shared:
        assert dict(shared.items()) == {}
    assert oneread.delete_dict("deleted") and files(shm) == set()


def test_who_removes_the_folder_is_named(shm: Path) -> None:
    with SharedDict("folder") as old:
        old["a"] = 1
        shutil.rmtree(shm / f"oneread-{os.geteuid()}")
        with SharedDict("folder") as new:
            assert dict(new.items()) == {}, "who comes now finds nothing"
            new["b"] = 2
            pid = pid_of(old)
            assert pid_of(new) != pid
            old.close()
            within(30, lambda: not is_running(pid), "the old one ends")
            assert new["b"] == 2 and pid_of(new) != pid
            new["c"] = 3
            with SharedDict("folder", create=False) as again:
                assert dict(again.items()) == {"b": 2, "c": 3}
    with SharedDict("folder") as shared:
        kill_server(shared)
        shutil.rmtree(shm / f"oneread-{os.geteuid()}")
        with pytest.raises(oneread.Disconnected, match="the folder was removed"):
            shared["a"] = 1


def test_whoever_unpickles_it_when_it_has_ended_is_told(shm: Path) -> None:
    with SharedDict("ended") as shared:
        pickled = pickle.dumps(shared)
        pickle.loads(pickled).close()
    with pytest.raises(FileNotFoundError, match="no shared dict 'ended'"):
        pickle.loads(pickled)


def test_its_server_finds_the_standard_library_first(shm: Path) -> None:
    package = shm / "site" / "oneread"
    shutil.copytree(HERE.parent / "oneread", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    native = Path(oneread._native.__file__)
    (package / native.name).symlink_to(native)
    (shm / "site" / "json.py").write_text("raise RuntimeError('this is no json')")
    program = """if True:
        import sys
        sys.path.append(sys.argv[1])
        from oneread import SharedDict
        with SharedDict("first") as shared:
            shared["a"] = 1
            print(shared["a"])
    """
    command = [sys.executable, "-E", "-S", "-c", program, str(shm / "site")]
    assert subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout == "1\n"


def test_a_signals_handler_may_close_it_while_a_server_starts(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedDict("handler")
    kill_server(shared)
    raised: list[BaseException] = []

    def close_instead(*_: object) -> None:
        shared.close()
        raise oneread.Disconnected("it was closed")

    def put() -> None:
        try:
            shared["a"] = 1
        except oneread.Disconnected as error:
            raised.append(error)

    monkeypatch.setattr(_place, "open_place", close_instead)
    thread = threading.Thread(target=put, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive() and str(raised[0]) == "it was closed"


def test_all_are_killed_and_nothing_is_left(shm: Path) -> None:
    holder = begin(HOLDER, "all")
    pid = int(said(holder))
    os.kill(pid, signal.SIGKILL)
    holder.kill()
    holder.communicate()
    with SharedDict("all", memory="32MiB") as shared:
        assert len(shared) == 0


def test_other_sizes_are_named(shm: Path) -> None:
    with SharedDict("sizes", memory="64MiB", key_max=40, lives=5) as shared:
        for differs, how in [
            ({"memory": "1GiB"}, "memory=67108864, asked for was 1073741824"),
            ({"key_max": 41}, "key_max=40, asked for was 41"),
            ({"lives": "for ever"}, "lives=5, asked for was 'for ever'"),
            ({"evict": "sieve"}, "evict=None, asked for was 'sieve'"),
        ]:
            options: dict[str, Any] = differs
            with pytest.raises(oneread.Incompatible, match=how):
                SharedDict("sizes", **options)
        with SharedDict("sizes", memory=64 << 20, lives=5.0), SharedDict("sizes"):
            pass
        shared["a"] = 1


def test_what_cannot_be_is_refused(shm: Path) -> None:
    for name in ("", "a/b", "../a", ".a", "a" * 65, "a b"):
        with pytest.raises(ValueError, match="no name"):
            SharedDict(name)
    options: list[tuple[dict[str, Any], str]] = [
        ({"memory": "1 apple"}, "no size"),
        ({"lives": "long"}, "lives='long'"),
        ({"lives": -1}, "lives=-1"),
        ({"codec": "json"}, "no codec"),
    ]
    for given, why in options:
        with pytest.raises(ValueError, match=why):
            SharedDict("a", **given)
    with pytest.raises(oneread.OnereadError, match="evict|policy|lru"):
        SharedDict("a", evict="lru")
    with pytest.raises(oneread.OnereadError):
        SharedDict("a", memory=1)
    # What failed is in nobody's way.
    with SharedDict("a") as shared:
        shared["a"] = 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_is_refused(shm: Path) -> None:
    folder = shm / "oneread-0"
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    with pytest.raises(oneread.Refused, match="belongs to user 65534"):
        SharedDict("a")
    os.chown(folder, 0, 0)
    (folder / "a.dict.open").touch()
    os.chown(folder / "a.dict.open", 65534, 65534)
    with pytest.raises(oneread.Refused, match="another user's; choose another name"):
        SharedDict("a")


def test_a_child_that_comes_while_it_is_opened_is_in_nobodys_way(shm: Path) -> None:
    place = Place("child")
    with place.starting(1):
        child = os.fork()
        if child == 0:
            time.sleep(1000)
    try:
        with SharedDict("child", start_within=20) as shared:
            shared["a"] = 1
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_nothing_is_left_open(shm: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with SharedDict("leak") as shared:
        shared["a"] = 1
    before = descriptors()
    for _ in range(10):
        with SharedDict("leak") as shared:
            shared["a"] = 1
    within(10, lambda: descriptors() <= before, "descriptors are closed")


def test_others_go_on_while_its_server_sleeps(shm: Path) -> None:
    with SharedDict("sleeps") as shared:
        shared["a"] = 1
        pid = pid_of(shared)
        os.kill(pid, signal.SIGSTOP)
        try:
            assert shared["a"] == 1 and shared.get("b") is None
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_server_ends_whoever_started_it(shm: Path) -> None:
    holder = begin("""
        import signal
        from oneread import SharedDict
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        with SharedDict("deaf", lives="for ever") as shared:
            shared["a"] = 1
    """)
    outcome(holder)
    with SharedDict("deaf") as shared:
        pid = pid_of(shared)
        blocked = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigBlk" in line)
    assert int(blocked.split()[1], 16) >> (signal.SIGTERM - 1) & 1 == 0, blocked
    assert oneread.delete_dict("deaf", within=60) and not is_running(pid) and files(shm) == set()


def test_a_suspended_server_is_deleted(shm: Path) -> None:
    with SharedDict("suspended", lives="for ever") as shared:
        pid = pid_of(shared)
    os.kill(pid, signal.SIGSTOP)
    assert oneread.delete_dict("suspended", within=60) and not is_running(pid) and files(shm) == set()


def test_a_server_that_does_not_end_is_killed(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SharedDict("hangs", lives="for ever") as shared:
        pid = pid_of(shared)
    send = signal.pidfd_send_signal
    sent: list[int] = []

    def deaf(process: int, number: int) -> None:
        sent.append(number)
        if number == signal.SIGKILL:
            send(process, number)

    monkeypatch.setattr(signal, "pidfd_send_signal", deaf)
    assert oneread.delete_dict("hangs", within=0.2) and not is_running(pid) and files(shm) == set()
    assert sent == [signal.SIGTERM, signal.SIGCONT, signal.SIGKILL]


def test_its_client_starts_a_server_too(shm: Path) -> None:
    """Also what is made of it: scans, feeds, indexes. What may have happened is told, and the next call is served."""
    with SharedDict("client", codec="raw") as shared:
        client = shared.client
        scan = client.scan()
        changes = client.changes()
        index = oneread.LocationIndex(client)
        block = b"b" * 16
        calls: list[tuple[Any, Any]] = [
            (lambda: client.add(b"hits", 1, initial=0), 1),
            (lambda: client.add(b"hits", 1, initial=0), 2),
            (lambda: client.put(b"a", b"1"), True),
            (lambda: client.insert(b"b", b"1"), True),
            (lambda: client.compare_exchange(b"b", b"1", b"2"), True),
            (lambda: client.append(b"b", b"3"), True),
            (lambda: client.put_many([b"c", b"d"], [b"1", b"2"]), 2),
            (lambda: client.remove(b"c"), True),
            (lambda: client.get_many([b"b", b"c"]), [b"23", None]),
            (lambda: client.remove_many([b"d", b"c"]), 1),
            (lambda: sorted(scan), [b"a", b"b", b"hits"]),
            (lambda: client.scan().__next__() in (b"a", b"b", b"hits"), True),
            (lambda: len(client), 3),
            (lambda: index.put([block], [(index.endpoint("here"), 0, 0, 1)]), 1),
            (lambda: index.longest_prefix([block]), 1),
            (lambda: client.owner(7).put(b"a", b"2"), False),
            (lambda: isinstance(changes.poll(0.0), (oneread.Change, type(None))), True),
            (lambda: client.growth()["segments"] > 0, True),
        ]
        for call, expected in calls:
            kill_server(shared)
            try:
                assert call() == expected
            except oneread.Disconnected as error:
                # Only where it may have been made. It is served again, in any case.
                assert error.maybe_made, error
                call()


def test_a_counter_that_workers_share_outlives_its_server(shm: Path) -> None:
    with SharedDict("hits", codec="raw") as shared:
        assert shared.client.add(b"hits", 1, initial=0) == 1
        kill_server(shared)
        # The client has seen that it is gone, so nothing was asked for.
        within(60, lambda: not shared.client.is_served, "it sees that")
        assert shared.client.add(b"hits", 1, initial=0) == 2
        child = os.fork()
        if child == 0:
            try:
                kill_server(shared)
                within(60, lambda: not shared.client.is_served, "the child sees it, too")
                os._exit(0 if shared.client.add(b"hits", 1, initial=0) == 3 else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_client_whose_dict_is_closed_starts_nothing(shm: Path) -> None:
    shared = SharedDict("over")
    client = shared.client
    other = oneread.Client(shared.address)
    kill_server(shared)
    with pytest.raises(oneread.Disconnected):
        # It is no client of a dict.
        other.put(b"a", b"1")
    shared.close()
    with pytest.raises(oneread.Closed):
        client.put(b"a", b"1")
    assert files(shm) == set()


@pytest.mark.parametrize("ends", ["", "shared.close()", "del shared", "raise SystemExit", "f(1)", "f(1); shared.close()"])
def test_a_program_that_ends_says_nothing(shm: Path, ends: str) -> None:
    program = f"""if True:
        from oneread import SharedDict
        shared = SharedDict("quiet")
        f = shared.memoize(name="f")(lambda n: n)
        changes = shared.changes()
        shared["a"] = 1
        assert next(changes).key == "a"
        {ends}
    """
    paths = {"PYTHONPATH": str(Path(oneread.__file__).parent.parent)}
    ran = subprocess.run([sys.executable, "-c", program], env={**os.environ, **paths}, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    # Where a feed was open to the end, the server hears of that a little later.
    within(60, lambda: files(shm) == set(), "nothing is left")
