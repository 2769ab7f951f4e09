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

A dict that several users may open is in a folder of its own, ``oneread-UID.users``, whose names others can not list.

A cache of :mod:`oneread.cache`, and a dict with ``snapshot_every`` or ``durable``, are in a directory, too: their server writes
a snapshot there, and with ``durable`` a log, and the next one begins with them::

    oneread.snapshot   all entries
    oneread.log        a folder: each change since that
    oneread.lock       locked by the server
    oneread.dict.json  what a dict was made as, or a cache with a log

The kernel lets go of a lock when its process ends, however that was. A child made by `fork` has its parent's lock
too: it ends when both have ended.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import pwd
import re
import select
import shutil
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

# In the directory of a dict: the snapshot, the log, its server's lock, and what it was made as.
SNAPSHOT, LOG, OWNED, KEPT = "oneread.snapshot", "oneread.log", "oneread.lock", "oneread.dict.json"

# What a server's process runs: this package, wherever it is, and nothing else of what is beside it. Its words: where
# the package is, the dict's folder, and its name.
KEEPER = """\
import importlib.util, sys
spec = importlib.util.spec_from_file_location("oneread", sys.argv[1])
sys.modules["oneread"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["oneread"])
from oneread import _keeper
_keeper.main(sys.argv[2], sys.argv[3])
"""
# The least that a table is allowed: it begins with room for two of the longest values, which take 4 MiB each, and their heads.
MEMORY_MIN = 16 << 20
# How much of the memory that is free a table takes at most, if nothing else is said.
FREE_SHARE = 0.8
# The system may refuse memory while so much is free at most.
NEARLY_FULL = 64 << 20
# How long who closes a dict waits for who opens it just then, and for an answer of its server.
CLOSE_WAITS, CLOSE_ASKS = 0.2, 1.0
# How often who has closed a cache looks whether it was the last one.
LAST_LOOKS = 5
# How long the end of a process that was killed may take: the system frees its memory.
KILLED_WITHIN = 60.0


def memory() -> Path:
    """The file system in memory."""
    shm = os.environ.get("ONEREAD_SHM", "")
    return Path(shm if shm.startswith("/") else "/dev/shm")


def folder() -> Path:
    """This user's folder. Made if it is not there; refused if others could change what is in it."""
    return own_folder(f"oneread-{os.geteuid()}", 0o700)


def users_folder() -> Path:
    """This user's folder for dicts that others may open."""
    return own_folder(users_name(os.geteuid()), 0o711)


def users_name(uid: int) -> str:
    """What a user's folder for dicts that others may open is called."""
    return f"oneread-{uid}.users"


def own_folder(name: str, mode: int) -> Path:
    path = memory() / name
    try:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
            path.chmod(mode)
        about = path.lstat()
    except OSError as error:
        raise SystemRefused(error.errno, f"no folder for shared dicts: {error.strerror}", str(path)) from error
    check_own(path, about, os.geteuid())
    return path


def memory_for(limit: int) -> dict[str, Any]:
    """The memory for a new table: as much as it may have, and as there is; and whether that is less."""
    free = shutil.disk_usage(memory()).free
    memory_max = max(MEMORY_MIN, min(limit, int(FREE_SHARE * free)))
    return {"memory": memory_max, "is_limited": memory_max < limit}


def at_most(limit: int) -> int:
    """What a table with this limit can have at most: all that there may be, for it alone."""
    return min(limit, shutil.disk_usage(memory()).total)


def no_memory(error: OnereadError, is_limited: bool) -> OnereadError:
    """An error of a table that finds no memory, as an error of the file system in memory where that is full, or had no more for
    it."""
    about = shutil.disk_usage(memory())
    if about.free > min(about.total // 4, NEARLY_FULL) and not is_limited:
        return error
    text = (
        f"{memory()} is full ({about.total >> 20} MiB): give the container more (`docker run --shm-size`), or the table less (memory=): "
        f"{error}"
    )
    told = type(error)(text)
    for name, value in vars(error).items():
        setattr(told, name, value)
    return told


def check_own(path: Path, about: os.stat_result, uid: int) -> None:
    """Refuses a folder in which others than this user could change what is in it."""
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != uid or about.st_mode & 0o022:
        raise Refused(
            f"{path} belongs to user {about.st_uid}, or others may write to it (mode {about.st_mode & 0o7777:o}); "
            "have it removed, or set ONEREAD_SHM elsewhere"
        )


def uid_of(user: int | str) -> int:
    """The number of a user."""
    if isinstance(user, int):
        return user
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise ValueError(f"there is no user {user!r}; give a name that the system knows, or a number") from None


def found(name: str, users: list[int] | None) -> Place:
    """The place of a dict of this user's: of several users', if that is asked for, or if it is there."""
    own = Place(name)
    if users is None and not (memory() / users_name(os.geteuid()) / f"{name}.dict.json").exists():
        return own
    if users is not None and own.about() is not None:
        raise Incompatible(f"the shared dict {name!r} is there, and is this user's alone; delete it, or choose another name")
    return Place(name, users_folder())


def of_other(name: str, user: int | str) -> tuple[Place, int, dict[str, Any]]:
    """The dict of another user: its place, that user's number, and what it was made as."""
    uid = uid_of(user)
    path = memory() / users_name(uid)
    try:
        check_own(path, path.lstat(), uid)
    except FileNotFoundError:
        raise FileNotFoundError(f"user {user} has no shared dicts for others: {path} is not there") from None
    place = Place(name, path)
    about = place.about()
    if about is None:
        raise FileNotFoundError(f"there is no shared dict {name!r} of user {user}, for others (users=)")
    return place, uid, about


def stays(about: dict[str, Any]) -> bool:
    """Whether a dict's table stays when nobody has it open, and no server."""
    return about["lives"] == "for ever" or about.get("directory") is not None


def state_directory(name: str) -> Path:
    """The directory of a dict that says none."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        home = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:
        raise ValueError("this user has no home for snapshots; give the dict a directory=") from None
    return home / "oneread" / "dicts" / name


def kept(directory: str | Path | None) -> dict[str, Any] | None:
    """What the dict was made as whose snapshots are in this directory."""
    if directory is None:
        return None
    about = told_in(Path(directory) / KEPT)
    # It may have been moved here, or copied.
    return None if about is None else {**about, "directory": str(directory)}


def keep(directory: str, about: dict[str, Any]) -> None:
    """Notes in a directory what the dict was made as. A power cut does not take that."""
    path = Path(directory)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        tell_in(path / KEPT, about)
        for one in (path.resolve(), *path.resolve().parents):
            if one.stat().st_uid != os.geteuid():
                # This user has made nothing in it.
                break
            sync(one)
    except OSError as error:
        raise OSError(error.errno, f"no directory for snapshots: {error.strerror}", directory) from None


def sync(path: Path) -> None:
    """Returns when the disk has a file, or the names in a directory."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def begun(made: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """What a dict is made as that is not there."""
    about = {**made, **asked}
    if about.get("durable") is None and (before := kept(about.get("directory"))) is not None:
        # The log of a cache goes on: without it, a start would lose what it has.
        about["durable"] = before.get("durable")
    return about


def told_in(path: Path) -> dict[str, Any] | None:
    """What a file says that a dict was made as; ``None`` if there is none."""
    try:
        about = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return about if isinstance(about, dict) else None


def tell_in(path: Path, about: dict[str, Any], mode: int | None = None) -> None:
    """Writes such a file, which is there whole or not at all, also after a power cut."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(about))
    sync(partial)
    if mode is not None:
        partial.chmod(mode)
    partial.replace(path)


class Place:
    """The files of the dict with a name."""

    def __init__(self, name: str, within: Path | None = None) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", name):
            raise ValueError(f"no name for a dict: {name!r}; it has up to 64 letters, digits, and any of . _ -")
        self.name = name
        self.region = (folder() if within is None else within) / f"{name}.dict"
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
        return told_in(self.beside("json"))

    def remember(self, about: dict[str, Any]) -> None:
        # The folder says who finds it.
        tell_in(self.beside("json"), about, 0o644)

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
        command = [python, "-P", "-c", KEEPER, package, str(self.region.parent), self.name]
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


def let_go(place: Place, fd: int | None, stays: bool) -> None:
    """Closes the lock that keeps a dict open. The last one ends it, if its server was killed and cannot."""
    if fd is None:
        # Another user's.
        return
    os.close(fd)
    if stays:
        return
    # If another process opens it just now, that one closes it later.
    with suppress(OnereadError, OSError), place.starting(CLOSE_WAITS):
        fd = place.open_lock("open")
        try:
            if lock(fd, fcntl.LOCK_EX) and not place.is_served(CLOSE_ASKS):
                place.forget()
        finally:
            os.close(fd)


def delete(place: Place, directory: Path | None, within: float) -> bool:
    """Ends a dict that nobody has open, and removes its snapshot and its log, which are in this directory unless it says another.
    Returns whether it was there."""
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
            about = place.about()
            said = (about or {}).get("directory")
            where = directory if said is None else Path(said)
            is_there = about is not None or kept(where) is not None
            place.stop(within)
            place.forget()
            place.beside("log").unlink(missing_ok=True)
            if where is not None and kept(where) is not None:
                with suppress(FileNotFoundError):
                    shutil.rmtree(where / LOG)
                for what in (SNAPSHOT, OWNED, KEPT):
                    (where / what).unlink(missing_ok=True)
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
    if about is None or stays(about):
        # Its server saves it at its end, and who comes then waits for that.
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


def check_asked(name: str, asked: dict[str, Any], about: dict[str, Any]) -> None:
    """Whether a dict that is there is as it is asked for."""
    differ = [
        f"{what}={about.get(what)!r}, asked for was {how!r}" for what, how in asked.items() if about.get(what) != how
    ]
    if differ:
        raise Incompatible(
            f"the shared dict {name!r} is there, and has {'; '.join(differ)}; "
            "leave that out to open it as it is, or choose another name"
        )


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
            is_new = (about := place.about()) is None
            is_served = about is not None and place.is_served(within)
            about = about or kept(asked.get("directory"))
            if about is None and not create:
                raise FileNotFoundError(f"there is no shared dict {place.name!r}, and create=False")
            if about is not None:
                check_asked(place.name, asked, about)
            if not is_served:
                about = about or begun(made, asked)
                if "directory" in asked or about.get("durable") is not None:
                    keep(about["directory"], about)
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
