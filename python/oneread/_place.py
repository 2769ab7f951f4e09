"""Where a :class:`SharedDict` is, who has it open, and who starts its server.

All of a dict is in this user's folder of region files, in memory: ``/dev/shm/oneread-UID``, or below
``$ONEREAD_SHM``. So it is gone with the machine, and all of it at once::

    NAME.dict        the table
    NAME.dict.lock   locked by its server
    NAME.dict.sock   its server's socket
    NAME.dict.json   what it was made as
    NAME.dict.log    what its server has to say
    NAME.dict.open   locked, shared, by each process that has it open, and by its server when the last one has gone
    NAME.dict.start  locked by the process that opens it

A cache of :mod:`oneread.cache` is a dict that lives in a directory, too: its server writes a snapshot there, and the next one
begins with that.

The kernel lets go of a lock when its process ends, however that was. A child made by `fork` has its parent's lock
too: it ends when both have ended.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import select
import signal
import stat
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from oneread import _native
from oneread._errors import Busy, Disconnected, Incompatible, OnereadError, Refused, SystemRefused, Timeout

log = logging.getLogger("oneread")

# The longest path of a socket.
SOCKET_MAX = 107

# What a server's process runs: this package, wherever it is, and nothing else of what is beside it. Its words: where
# the package is, and the dict's name.
KEEPER = """\
import importlib.util, sys
spec = importlib.util.spec_from_file_location("oneread", sys.argv[1])
sys.modules["oneread"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["oneread"])
from oneread import _keeper
_keeper.main(sys.argv[2])
"""
# How long who closes a dict waits for who opens it just then, and for an answer of its server.
CLOSE_WAITS, CLOSE_ASKS = 0.2, 1.0
# How often who has closed a cache looks whether it was the last one.
LAST_LOOKS = 5
# How long the end of a process that was killed may take: the system frees its memory.
KILLED_WITHIN = 60.0


def folder() -> Path:
    """This user's folder. Made if it is not there; refused if others could change what is in it."""
    shm = os.environ.get("ONEREAD_SHM", "")
    path = Path(shm if shm.startswith("/") else "/dev/shm") / f"oneread-{os.geteuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        about = path.lstat()
    except OSError as error:
        raise SystemRefused(error.errno, f"no folder for shared dicts: {error.strerror}", str(path)) from error
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise Refused(
            f"{path} belongs to user {about.st_uid}, or others may write to it (mode {about.st_mode & 0o7777:o}); "
            "have it removed, or set ONEREAD_SHM elsewhere"
        )
    return path


class Place:
    """The files of the dict with a name."""

    def __init__(self, name: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", name):
            raise ValueError(f"no name for a dict: {name!r}; it has up to 64 letters, digits, and any of . _ -")
        self.name = name
        self.region = folder() / f"{name}.dict"
        self.socket = self.beside("sock")
        if len(os.fsencode(self.socket)) > SOCKET_MAX:
            raise ValueError(f"the name is too long for a socket: {self.socket}; at most {SOCKET_MAX} bytes")

    def beside(self, what: str) -> Path:
        return self.region.with_name(f"{self.region.name}.{what}")

    @property
    def address(self) -> str:
        return f"shm:{self.socket}"

    @contextmanager
    def starting(self, within: float) -> Iterator[None]:
        """Nobody else opens this dict meanwhile."""
        fd = self.open_lock("start")
        try:
            end = time.monotonic() + within
            while not lock(fd, fcntl.LOCK_EX):
                if time.monotonic() > end:
                    raise Timeout(f"another process has been opening {self.name!r} for {within:g} s; try again")
                time.sleep(0.002)
            yield
        finally:
            # Closing it is not enough: a child that another thread has just made has a copy.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def open_lock(self, what: str) -> int:
        path = self.beside(what)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if os.fstat(fd).st_uid != os.geteuid():
            os.close(fd)
            raise Refused(f"{path} is another user's; choose another name")
        return fd

    def about(self) -> dict[str, Any] | None:
        """What the dict was made as; ``None`` if there is none."""
        try:
            about = json.loads(self.beside("json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return about if isinstance(about, dict) else None

    def remember(self, about: dict[str, Any]) -> None:
        partial = self.beside("json.partial")
        partial.write_text(json.dumps(about))
        partial.replace(self.beside("json"))

    def forget(self) -> None:
        """Removes what is left of it. No server is there, and none is started meanwhile."""
        # Who waits for the end waits for the last of these.
        for path in (self.socket, self.region, self.beside("lock"), self.beside("json")):
            path.unlink(missing_ok=True)

    def forget_locks(self) -> None:
        """Removes the files that stay otherwise. Nobody opens a dict of this name again."""
        for what in ("log", "start", "open"):
            self.beside(what).unlink(missing_ok=True)

    def is_here(self, fd: int) -> bool:
        """Whether a lock is the one that others find here. It is not if the folder was removed."""
        try:
            there = os.stat(self.beside("open"))
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(fd))

    def stop(self, within: float) -> None:
        """Ends its server, and returns when that is gone: by SIGKILL if it does not end within this time. Nothing that
        it holds is to stay.
        """
        found = _native.listener(str(self.socket), within)
        if found is None:
            return
        pid, server = found
        try:
            # The second one is for a suspended server.
            for number in (signal.SIGTERM, signal.SIGCONT):
                signal.pidfd_send_signal(server, number)
            poll = select.poll()
            poll.register(server, select.POLLIN)
            if not poll.poll(1000 * within):
                log.warning("the server of the shared dict %r, process %d, does not end; killing it", self.name, pid)
                signal.pidfd_send_signal(server, signal.SIGKILL)
                if not poll.poll(1000 * KILLED_WITHIN):
                    raise Timeout(f"process {pid} was killed, and the system has not ended it; try again")
        except ProcessLookupError:
            pass
        finally:
            os.close(server)

    def is_served(self, within: float) -> bool:
        """Whether a server is there. One that does not answer within this time is: ``Timeout``."""
        try:
            _native.Client(self.address, timeout=within).close()
        except Disconnected:
            return False
        return True

    def start(self, within: float) -> None:
        """Starts the dict's server, in a session of its own, and returns when it serves."""
        # Where Python is part of another program, that is the one to find.
        python = os.environ.get("ONEREAD_PYTHON") or sys.executable
        package = str(Path(__file__).resolve().with_name("__init__.py"))
        # -P: what is in the working directory is no module.
        command = [python, "-P", "-c", KEEPER, package, self.name]
        log.info("starting a server for the shared dict %r, by %s", self.name, python)
        said = self.beside("log")
        with said.open("wb") as errors:
            server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                cwd="/",
            )
        assert server.stdout is not None
        with server.stdout as out:
            is_ready = ready_within(out.fileno(), within)
        if not is_ready:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
        # What was started is only the parent of the server, and has ended.
        server.wait()
        if not is_ready:
            text = said.read_text(errors="replace").strip() or f"it has not begun to serve within {within:g} s"
            raise OnereadError(f"the server of the shared dict {self.name!r} did not start: {text} ({said})")


def ready_within(fd: int, within: float) -> bool:
    """Whether a process says within this time that it serves. One that ended says nothing."""
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(1000 * within)) and os.read(fd, 5) == b"ready"


def lock(fd: int, how: int) -> bool:
    """Takes a lock if it is to be had now."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def check_here(place: Place, fd: int) -> None:
    if not place.is_here(fd):
        raise Disconnected(
            f"the folder was removed: {place.region.parent}, with the shared dict {place.name!r}; close it, and open "
            "it again (docs/PYTHON.md says who removes such folders: RemoveIPC)"
        )


def let_go(place: Place, fd: int, lives: Any) -> None:
    """Closes the lock that keeps a dict open. The last one ends it, if its server was killed and cannot."""
    os.close(fd)
    if lives == "for ever":
        return
    # If another process opens it just now, that one closes it later.
    with suppress(OnereadError, OSError), place.starting(CLOSE_WAITS):
        fd = place.open_lock("open")
        try:
            if lock(fd, fcntl.LOCK_EX) and not place.is_served(CLOSE_ASKS):
                place.forget()
        finally:
            os.close(fd)


def delete(place: Place, within: float) -> bool:
    """Ends a dict that nobody has open. Returns whether it was there."""
    with place.starting(within):
        fd = place.open_lock("open")
        try:
            end = time.monotonic() + within
            while not lock(fd, fcntl.LOCK_EX):
                # Its server has the lock if it is just ending.
                if lock(fd, fcntl.LOCK_SH):
                    raise Busy(f"a process has the shared dict {place.name!r} open; close it there, and try again")
                if time.monotonic() > end:
                    raise Timeout(f"the server of the shared dict {place.name!r} does not end; try again")
                time.sleep(0.002)
            is_there = place.about() is not None
            place.stop(within)
            place.forget()
            place.beside("log").unlink(missing_ok=True)
            return is_there
        finally:
            os.close(fd)


def save_if_last(place: Place, save: Callable[[_native.Client, float], None], within: float) -> None:
    """Has the server of a cache save it, if nobody has it open."""
    fd = place.open_lock("open")
    try:
        # Its server looks now and then whether it is alone, for a moment.
        for _ in range(LAST_LOOKS):
            if lock(fd, fcntl.LOCK_EX):
                break
            time.sleep(0.001)
        else:
            return
        fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)
    try:
        with _native.Client(place.address, timeout=within) as client:
            save(client, within)
    except Disconnected:
        # It has ended meanwhile, and saves at its end.
        log.debug("the server of %r ends by itself", place.name)


def begin_anew(place: Place, fd: int, within: float) -> None:
    """Nobody has the dict open. Forgets it, if it was to live as long as somebody has."""
    about = place.about()
    if about is None or about["lives"] == "for ever":
        return
    if place.is_served(within):
        if about["lives"] != "until last":
            return
        # The last one has just closed it, and its server has not heard of that yet.
        fcntl.flock(fd, fcntl.LOCK_UN)
        end = time.monotonic() + within
        while place.about() is not None and place.is_served(within):
            if time.monotonic() > end:
                raise Timeout(f"the server of the shared dict {place.name!r} does not end; try again")
            time.sleep(0.002)
    # Otherwise its server was killed, and so were all that had it open.
    place.forget()


def open_place(
    place: Place, create: bool, asked: dict[str, Any], made: dict[str, Any], within: float
) -> tuple[int, dict[str, Any]]:
    """Opens the dict, and starts its server if nobody has. Returns the lock that keeps it open, and what it was made
    as. ``asked``: what it must be. ``made``: what it becomes if it is made now.
    """
    with place.starting(within):
        fd = place.open_lock("open")
        try:
            if lock(fd, fcntl.LOCK_EX):
                # Nobody else has it open, and no server ends just now. One that waits for its end sees the time.
                os.utime(fd)
                begin_anew(place, fd, within)
            # Waits for a server that is just ending.
            fcntl.flock(fd, fcntl.LOCK_SH)
            check_here(place, fd)
            os.utime(fd)
            about = place.about()
            is_served = about is not None and place.is_served(within)
            if about is None and not create:
                raise FileNotFoundError(f"there is no shared dict {place.name!r}, and create=False")
            if about is not None:
                differ = [
                    f"{what}={about.get(what)!r}, asked for was {how!r}"
                    for what, how in asked.items()
                    if about.get(what) != how
                ]
                if differ:
                    raise Incompatible(
                        f"the shared dict {place.name!r} is there, and has {'; '.join(differ)}; "
                        "leave that out to open it as it is, or choose another name"
                    )
            if not is_served:
                is_new, about = about is None, about or {**made, **asked}
                place.remember(about)
                try:
                    place.start(within)
                except OnereadError:
                    if is_new:
                        place.forget()
                    raise
            assert about is not None
            return fd, about
        except BaseException:
            os.close(fd)
            raise
