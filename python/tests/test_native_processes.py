"""The native part among threads and processes: forks, signals, ends, leaks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native import outcome, python, served, until

import oneread
from oneread import Client, Server, _native


def in_child(work: Any) -> None:
    """Does work in a child made by `fork`."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            os.write(2, f"in the child: {error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_client_connects_anew_in_a_child() -> None:
    with served() as (server, client):
        client.put(b"a", b"1")
        pinned = client.put_many([b"p"], [b""])

        def child() -> None:
            assert client.get(b"a") == b"1" and client.put(b"child", b"2") and client.get_many([b"a"]) == [b"1"]
            assert client.stats()["changes"]["puts"] == 1, "counts of its own"
            in_child(lambda: client.put(b"grandchild", b"3"))
            for other in [lambda: len(server), lambda: server.stats()]:
                with pytest.raises(oneread.Closed, match="fork"):
                    other()
            server.stop()

        assert pinned == 1
        in_child(child)
        assert client.get(b"child") == b"2" and client.get(b"grandchild") == b"3" and len(server) == 4
        changes, index, scan = client.changes(), oneread.Index(keys=10), client.scan()
        index.put(b"a", b"1")
        next(scan)

        def refused() -> None:
            for other in [lambda: next(changes), lambda: next(scan), lambda: scan.cursor, lambda: index.put(b"b", b"")]:
                with pytest.raises(oneread.Closed, match="fork"):
                    other()
            assert index.get(b"a") == b"1"

        in_child(refused)
        client.close()
        in_child(lambda: pytest.raises(oneread.Closed, client.get, b"a"))


def test_forks_while_threads_use_the_client() -> None:
    with served() as (_, client):
        client.put(b"a", b"1")
        stop = threading.Event()

        def use() -> None:
            while not stop.is_set():
                client.get_many([b"a"] * 5000)
                client.put(b"b", b"2")

        threads = [threading.Thread(target=use) for _ in range(4)]
        [thread.start() for thread in threads]
        try:
            for n in range(10):
                in_child(lambda: (client.put(b"child", b""), client.get(b"a"), client.pin(b"a")))
        finally:
            stop.set()
            [thread.join() for thread in threads]


def read(address: str, count: int) -> int:
    with Client(address) as client:
        return sum(client.get(b"%d" % n) == b"v" for n in range(count))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_processes(method: str) -> None:
    with served() as (server, client):
        client.put_many([b"%d" % n for n in range(100)], [b"v"] * 100)
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.starmap(read, [(server.address, 100)] * 4) == [100] * 4


def test_threads_share_a_client() -> None:
    with served(keys=20_000) as (_, client), ThreadPoolExecutor(24) as pool:

        def work(thread: int) -> int:
            for n in range(200):
                key = b"%d:%d" % (thread, n)
                assert client.put(key, key) and client.get(key) == key and client.add(b"all", 1, initial=0)
            return len([value for value in client.get_many([b"%d:%d" % (thread, n) for n in range(200)]) if value])

        assert list(pool.map(work, range(24))) == [200] * 24
        assert client.get(b"all") == (24 * 200).to_bytes(8, "little")


def suspended() -> Any:
    """A server in another process, which does not answer; the process, and its address."""
    server = python(
        """
        import sys, tempfile, oneread
        with tempfile.TemporaryDirectory(prefix="or-", dir="/tmp") as folder:
            with oneread.Server(folder + "/s", keys=100, life=True, owners=True) as server:
                print(server.address, flush=True)
                sys.stdin.read()
        """
    )
    assert server.stdout is not None
    return server, server.stdout.readline().strip()


def stop(server: Any) -> None:
    """Suspends it. When this returns, none of its threads runs."""

    def are_stopped() -> bool:
        for thread in os.listdir(f"/proc/{server.pid}/task"):
            with open(f"/proc/{server.pid}/task/{thread}/stat") as line:
                if line.read().rsplit(")", 1)[1].split()[0] != "T":
                    return False
        return True

    server.send_signal(signal.SIGSTOP)
    until(are_stopped)


def goes_on_without(server: Any, program: subprocess.Popen[str]) -> IO[str]:
    """Has a program that is ready go on when the server is suspended. Returns what it says."""
    assert program.stdin is not None and program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    stop(server)
    program.stdin.write("\n")
    program.stdin.flush()
    return program.stdout


@pytest.mark.parametrize(
    "call",
    [
        "client.put(b'a', b'1')",
        "client.put_many([b'a', b'b'], [b'', b''])",
        "client.put(b'a', bytes(1 << 20))",
        "client.pin(b'a')",
        "next(client.scan())",
        "next(changes)",
        "oneread.Client(address, timeout=3600)",
    ],
)
def test_ctrl_c_ends_every_wait(call: str) -> None:
    server, address = suspended()
    try:
        program = python(
            f"""
            import signal, sys, oneread
            # Whoever runs the tests in the background ignores it.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            address = sys.argv[1]
            client = oneread.Client(address, timeout=3600)
            client.put(b"a", b"")
            changes = client.changes()
            print("ready", flush=True)
            sys.stdin.readline()
            print("calls", flush=True)
            try:
                {call}
            except KeyboardInterrupt:
                print("interrupted", client.get(b"a"))
            """,
            address,
        )
        said = goes_on_without(server, program)
        assert said.readline() == "calls\n"
        time.sleep(0.2)
        begun = time.monotonic()
        program.send_signal(signal.SIGINT)
        assert outcome(program) == "interrupted b''\n"
        assert time.monotonic() - begun < 30
    finally:
        server.send_signal(signal.SIGCONT)
        outcome(server, "")


def interrupted_soon(call: Callable[[], object]) -> None:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.002)
            call()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_ctrl_c_ends_a_clear_of_an_index() -> None:
    index, keys = oneread.Index(keys=500_000, value_max=8), np.arange(500_000, dtype=np.uint64)
    index.put_many(keys, keys)
    interrupted_soon(lambda: index.clear())
    left = len(index)
    assert left > 0, "to the end, and interrupted afterwards"
    assert index.clear() == left


def test_ctrl_c_ends_the_growing_of_an_index() -> None:
    index = oneread.Index(bytes_max=2 << 30, segment_slots=1 << 12, key_max=16, value_max=16)
    interrupted_soon(lambda: index.grow_for(20_000_000))
    growth = index.growth()
    assert growth["bytes_backed"] < growth["bytes_max"] // 2, "to the end, and interrupted afterwards"
    index.put(b"a", b"1")
    assert index.get(b"a") == b"1"


def test_a_handler_of_a_signal_may_use_the_client() -> None:
    """And if it raises nothing, the wait goes on."""
    with served() as (_, client), client.changes() as changes:

        def handler(*_: object) -> None:
            client.put(b"from the handler", b"1")

        before = signal.signal(signal.SIGALRM, handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            assert next(changes).key == b"from the handler"
        finally:
            signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("call", "meanwhile", "afterwards"),
    [
        ("client.put(b'a', b'1')", "client.stats(), client.close()", "client.get(b'a')"),
        ("client.put_many([b'a', b'b'], [b'', b''])", "client.close(), client.stats()", "client.put(b'a', b'')"),
        ("next(client.scan())", "client.close()", "client.put(b'a', b'')"),
        ("next(scan)", "scan.cursor, expect(oneread.Busy, next, scan)", "client.close(), client.pin(b'a')"),
        ("client.pin(b'a')", "expect(oneread.Busy, client.unpin, b'a'), client.close()", "client.unpin(b'a')"),
        ("client.put_start(b'a', 1)", "expect(oneread.Busy, client.unpin, b'a'), client.close()", "client.pin(b'a')"),
        ("next(changes)", "expect(oneread.Busy, changes.poll), changes.close()", "changes.poll()"),
    ],
)
def test_a_handler_of_a_signal_may_close_what_waits(call: str, meanwhile: str, afterwards: str) -> None:
    """While a call waits for a server that does not answer: until the handler has done its work."""
    server, address = suspended()
    program = python(
        f"""
        import faulthandler, signal, sys, oneread
        client = oneread.Client(sys.argv[1], timeout=3600)
        client.put(b"a", b"")
        changes, scan = client.changes(), client.scan()

        def expect(error, call, *arguments):
            try:
                call(*arguments)
            except error:
                return
            raise AssertionError

        def handler(*_):
            print("handles", flush=True)
            {meanwhile}
            print("handled", flush=True)

        signal.signal(signal.SIGALRM, handler)
        print("ready", flush=True)
        sys.stdin.readline()
        faulthandler.dump_traceback_later(50, exit=True)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            {call}
            print("returns")
        except oneread.Closed:
            print("closed")
        try:
            {afterwards}
        except oneread.Closed:
            print("closed")
        """,
        address,
    )
    try:
        said = goes_on_without(server, program)
        assert said.readline() == "handles\n"
        assert said.readline() == "handled\n", program.communicate(timeout=60)
        server.send_signal(signal.SIGCONT)
        # A feed ends at once: so its last words may be read already.
        ended = said.read()
        assert program.wait(60) == 0
        assert ended == ("closed\n" * 2 if "changes" in call else "returns\nclosed\n")
    finally:
        program.kill()
        server.send_signal(signal.SIGCONT)
        outcome(server, "")


def test_threads_take_turns_at_a_scan_a_feed_and_pins() -> None:
    """None keeps the interpreter's lock while it waits for another."""
    server, address = suspended()
    program = python(
        """
        import faulthandler, sys, threading, oneread
        client = oneread.Client(sys.argv[1], timeout=3600)
        client.put_many([b"%d" % n for n in range(50)], [b""] * 50)
        scan, changes = client.scan(), client.changes()
        print("ready", flush=True)
        sys.stdin.readline()
        faulthandler.dump_traceback_later(50, exit=True)
        got = [[] for _ in range(3)]
        threads = [threading.Thread(target=lambda mine=mine: mine.extend(scan)) for mine in got]
        threads += [threading.Thread(target=client.pin, args=(b"1",)) for _ in range(3)]
        threads += [threading.Thread(target=changes.poll, args=(0.1,)) for _ in range(3)]
        [thread.start() for thread in threads]
        # Longer than any of them waits before it looks for signals.
        threads[0].join(0.3)
        print("waits", scan.cursor, flush=True)
        [thread.join() for thread in threads]
        assert sorted(key for mine in got for key in mine) == sorted(b"%d" % n for n in range(50))
        assert scan.cursor is not None and client.stats()["get"]["retries_other_key"] == 0
        """,
        address,
    )
    try:
        said = goes_on_without(server, program)
        assert said.readline() == "waits None\n", program.communicate(timeout=60)
        server.send_signal(signal.SIGCONT)
        outcome(program)
    finally:
        program.kill()
        server.send_signal(signal.SIGCONT)
        outcome(server, "")


def test_a_feed_that_gets_no_thread_goes_on() -> None:
    server, address = suspended()
    program = python(
        """
        import resource, sys, oneread
        client = oneread.Client(sys.argv[1])
        changes = client.changes()
        client.put(b"a", b"")
        assert changes.poll(60).key == b"a"
        before = changes.position
        limits = resource.getrlimit(resource.RLIMIT_AS)
        # There is no room for a thread's stack of 2 MiB, but for what is allocated on the way.
        pages = int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 20), limits[1]))
        try:
            changes.fileno()
        except OSError:
            print("refused")
        resource.setrlimit(resource.RLIMIT_AS, limits)
        assert changes.position == before
        client.put(b"b", b"")
        assert changes.poll(60).key == b"b"
        client.put(b"c", b"")
        assert changes.fileno() == changes.fileno() and changes.poll(60).key == b"c"
        """,
        address,
    )
    try:
        assert outcome(program) == "refused\n"
    finally:
        outcome(server, "")


def test_threads_share_everything() -> None:
    """One client, index, feed and arrays for all threads; in builds without the interpreter's lock at the same time."""
    keys = [b"%016d" % number for number in range(500)]
    packed, digests = b"".join(keys), [number.to_bytes(16, "little") for number in range(100)]
    with (
        served(life=True, owners=True) as (_, client),
        served(**oneread.LocationIndex.table()) as (_, places),
        client.changes() as changes,
    ):
        index, located = oneread.Index(keys=1000), oneread.LocationIndex(places)
        client.put_many(keys, keys)
        located.put(digests, [(1, 0, number, 1) for number in range(100)])

        def calls(number: int) -> None:
            mine = np.zeros((len(keys), 16), np.uint8)
            for turn in range(100):
                key = keys[(number * 61 + turn * 7) % len(keys)]
                assert client.get(key) == key and key in client
                assert client.get_many(packed, width=16) == keys
                assert client.get_many_into(packed, mine, width=16) == len(keys) and mine.tobytes() == packed
                client.put(key, key)
                client.put_many([key, b"%d" % number], [key, b"%d" % turn])
                assert client.get(b"%d" % number) == b"%d" % turn
                index.put(key, b"%d" % number)
                assert index.get(key) is not None
                count, found = located.locate_many(digests)
                assert count == 100 and list(found["address"]) == list(range(100))
                assert client.life(key) is not None and client.stats()["get"]["hits"] > 0
                changes.poll(0)

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(calls, range(6)))


def test_the_end_of_the_program_while_threads_read() -> None:
    """Daemon threads that read, put, follow and log are no reason to crash."""
    program = """
        import sys, threading, time, tempfile, logging, oneread
        logging.basicConfig(level=1)
        oneread.log_level(1)
        folder = tempfile.mkdtemp(prefix="or-", dir="/tmp")
        server = oneread.Server(folder + "/s", keys=1000)
        client = oneread.Client(server.address)
        keys = [b"%d" % n for n in range(900)]
        client.put_many(keys, keys)
        changes, others = client.changes(), client.changes()
        others.fileno()
        def forever(call):
            while True:
                call()
        for call in [lambda: client.get(b"7"), lambda: client.get_many(b"1" * 20000, width=1),
                     lambda: client.put(b"7", b"7"), lambda: next(changes), lambda: others.poll(0.1),
                     lambda: client.get_many(keys), lambda: list(client.scan())]:
            threading.Thread(target=forever, args=(call,), daemon=True).start()
        time.sleep(float(sys.argv[1]))
        print("ends")
    """
    for programs in [[python(program, str(0.05 + n / 20)) for n in range(3)] for _ in range(2)]:
        for process in programs:
            assert outcome(process) == "ends\n"


def test_what_is_logged_is_handed_on_before_the_program_ends() -> None:
    """A handler that takes long, and wants the interpreter's lock again and again, is neither unwound nor cut off."""
    program = """
        import logging, tempfile, threading, time, oneread
        begun = threading.Event()

        class Slow(logging.Handler):
            def emit(self, record):
                if begun.is_set():
                    return
                begun.set()
                until = time.monotonic() + 1
                while time.monotonic() < until:
                    time.sleep(0)
                print("handed on", flush=True)

        logger = logging.getLogger("oneread")
        logger.setLevel(10)
        logger.addHandler(Slow())
        oneread.log_level(10)
        server = oneread.Server(tempfile.mkdtemp(prefix="or-", dir="/tmp") + "/s", keys=1000)
        client = oneread.Client(server.address)
        assert begun.wait(60)
        oneread.log_level(100)
        {end}
    """
    for end in ["", "raise SystemExit(0)", "import os; os.fork() or threading.Event().wait(0.2)"]:
        assert "handed on\n" in outcome(python(program.format(end=end)))


def test_the_end_of_the_program_while_python_runs_within_calls() -> None:
    """A call runs code of the program's (generators as keys), or NumPy's, which gives the interpreter's lock away, while
    the interpreter ends. That ends such threads by unwinding their stacks, which Rust would answer by an abort."""
    program = """
        import sys, threading, time, tempfile, oneread
        class Slow:
            # While the interpreter ends, it gives its lock away, so that the threads find out.
            def __del__(self, sleep=time.sleep):
                sleep(0.1)
        slow = Slow()
        sys.setswitchinterval(1e-5)
        folder = tempfile.mkdtemp(prefix="or-", dir="/tmp")
        server = oneread.Server(folder + "/s", keys=1000, **oneread.LocationIndex.table())
        client = oneread.Client(server.address)
        index = oneread.LocationIndex(client)
        digests = [b"%016d" % n for n in range(100)]
        many = b"".join(digests) * 1000
        def forever(call):
            while True:
                call()
        for call in [lambda: client.get_many(digest for digest in digests),
                     lambda: index.put(iter(digests), ((1, 0, n, 5) for n in range(100))),
                     lambda: (index.locate_many(digests), client.life(digests[0])),
                     lambda: client.contains_many(many, width=16)]:
            call()
            threading.Thread(target=forever, args=(call,), daemon=True).start()
        time.sleep(0.05)
        exec(sys.argv[1])
    """
    ends = [("pass", 0), ("sys.exit(3)", 3), ("raise SystemExit(4)", 4)]
    for _ in range(2):
        for (_, status), process in [(end, python(program, end[0])) for end in ends]:
            out, errors = process.communicate(timeout=60)
            assert (process.returncode, out, errors) == (status, "", "")


def test_the_lock_of_the_interpreter_is_given_back() -> None:
    """While a call waits for a server that does not answer, other threads run."""
    server, address = suspended()
    try:
        with Client(address, timeout=1.0) as client:
            client.put(b"a", b"1")
            stop(server)
            raised: list[BaseException] = []

            def put() -> None:
                try:
                    client.put(b"b", b"")
                except oneread.OnereadError as error:
                    raised.append(error)

            thread = threading.Thread(target=put)
            thread.start()
            turns = 0
            while thread.is_alive():
                assert client.get(b"a") == b"1"
                turns += 1
            assert turns > 100 and isinstance(raised[0], oneread.Timeout) and isinstance(raised[0], TimeoutError)
    finally:
        server.send_signal(signal.SIGCONT)
        outcome(server, "")


def test_a_server_that_is_killed_and_comes_back() -> None:
    server, address = suspended()
    client = Client(address, lease=0.1, timeout=5)
    client.put(b"a", b"1")
    server.kill()
    server.communicate()

    def is_gone() -> bool:
        try:
            client.get(b"a")
            return False
        except oneread.Disconnected:
            return True

    until(is_gone)
    with pytest.raises(oneread.Disconnected):
        client.put(b"a", b"2")
    with Server(address.removeprefix("shm:"), keys=100):
        client.put(b"a", b"3")
        until(lambda: client.get(b"a") == b"3")
    os.rmdir(os.path.dirname(address.removeprefix("shm:")))


def resident() -> int:
    with open("/proc/self/statm") as counts:
        return int(counts.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_nothing_leaks() -> None:
    """Memory and descriptors, over calls that succeed and calls that fail, and over clients that come and go."""
    with served(keys=3000, key_max=16, value_max=1 << 16) as (server, client):
        keys = [b"%016d" % n for n in range(1000)]
        flat, out = b"".join(keys), bytearray(1000 * 100)
        client.put_many(keys, [b"v" * 100] * 1000)
        client.put(b"long", b"v" * 50_000)

        def calls() -> None:
            for key in keys:
                client.get(key)
                key in client
                client.get(b"none", 1)
            for _ in range(20):
                client.get_many(keys)
                client.get_many_into(flat, out, width=16)
                client.contains_many(np.frombuffer(flat, "S16"))
                client.put_many(np.frombuffer(flat, "S16"), bytes(out), value_width=100)
                client.get(b"long")
                list(client.scan(values=True, prefix=b"00000000000001"))
                for wrong in [lambda: client.get("x"), lambda: client.get_many([b"x" * 17]), lambda: client.get_into(b"long", out[:3])]:  # type: ignore[call-overload]
                    with pytest.raises((TypeError, ValueError)):
                        wrong()

        def comings() -> None:
            for _ in range(10):
                with Client(server.address) as other, other.changes() as changes:
                    other.put(keys[0], b"v" * 100)
                    changes.fileno()
                    assert next(changes).key == keys[0]

        calls(), comings()
        until(lambda: server.stats()["clients"] <= 3)
        descriptors, before = len(os.listdir("/proc/self/fd")), resident()
        for _ in range(100 if "ONEREAD_LONG" in os.environ else 5):
            calls()
            comings()
        until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 2)
        assert resident() - before < 8 << 20


keys = st.sampled_from([b"%d" % n for n in range(8)])
values = st.binary(max_size=300)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "insert", "update", "append"]), keys, values),
        st.tuples(st.sampled_from(["remove", "get", "get_into", "contains"]), keys, st.just(b"")),
        st.tuples(st.just("get_many"), keys, st.just(b"")),
        st.tuples(st.just("swap"), keys, values),
    ),
    max_size=40,
)

OTHER = """
    import sys, oneread
    client = oneread.Client(sys.argv[1])
    for line in sys.stdin:
        kind, key, value = line.rstrip("\\n").split(" ")
        key, value = bytes.fromhex(key), bytes.fromhex(value)
        if kind in ("put", "insert", "update", "append"):
            answer = getattr(client, kind)(key, value)
        elif kind == "swap":
            answer = client.compare_exchange(key, client.get(key), value)
        elif kind == "remove":
            answer = client.remove(key)
        elif kind == "contains":
            answer = key in client
        elif kind == "get_many":
            answer = client.get_many([key, b"none", key])
        elif kind == "get_into":
            buffer = bytearray(2000)
            length = client.get_into(key, buffer)
            answer = None if length is None else bytes(buffer[:length])
        else:
            answer = client.get(key)
        print(repr(answer), flush=True)
"""


def expected(model: dict[bytes, bytes], kind: str, key: bytes, value: bytes) -> object:
    there = model.get(key)
    match kind:
        case "put":
            model[key] = value
            return there is None
        case "insert":
            model.setdefault(key, value)
            return there is None
        case "update":
            if there is not None:
                model[key] = value
            return there is not None
        case "append":
            if len(there or b"") + len(value) > 1000:
                return None
            model[key] = (there or b"") + value
            return there is None or value != b""
        case "swap":
            model[key] = value
            return True
        case "remove":
            model.pop(key, None)
            return there is not None
        case "contains":
            return there is not None
        case "get_many":
            return [there, None, there]
        case _:
            return there


def test_two_processes_are_one_dict() -> None:
    with served(keys=100, key_max=8, value_max=1000) as (server, client):
        others = [python(OTHER, server.address) for _ in range(2)]

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
        @given(steps, st.randoms(use_true_random=False))
        def agree(steps: list[tuple[str, bytes, bytes]], random: Any) -> None:
            client.clear()
            model: dict[bytes, bytes] = {}
            for kind, key, value in steps:
                if (answer := expected(model, kind, key, value)) is None and kind == "append":
                    continue
                other = random.choice(others)
                other.stdin.write(f"{kind} {key.hex()} {value.hex()}\n")
                other.stdin.flush()
                assert other.stdout.readline() == repr(answer) + "\n", (kind, key, value)
            assert dict(client.scan(values=True)) == model and len(client) == len(model)

        agree()
        for other in others:
            outcome(other, "")


def test_who_listens_is_a_process_that_is_there(tmp_path: Path) -> None:
    path = str(tmp_path / "sock")
    assert _native.listener(path, 1.0) is None
    with socket.socket(socket.AF_UNIX) as at:
        at.bind(path)
        child = os.fork()
        if child == 0:
            at.listen()
            os._exit(0)
        os.waitpid(child, 0)
        # Somebody has the socket, and it is not the process with the number that the kernel has noted.
        assert _native.listener(path, 1.0) is None
        at.listen()
        pid, process = cast("tuple[int, int]", _native.listener(path, 1.0))
        os.close(process)
        assert pid == os.getpid()
