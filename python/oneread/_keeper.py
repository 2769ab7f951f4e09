"""The process that serves a :class:`SharedDict`.

It ends when it is told to (SIGTERM, ``oneread stop``), and when the last process has gone that has the dict open:
at once, after a time, or never.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from oneread import _native
from oneread._errors import OnereadError
from oneread._place import LOG, OWNED, SNAPSHOT, Place, lock

# How long a server writes its last snapshot, and waits for one that has the directory.
SAVE_WITHIN, OWN_WITHIN = 600.0, 10.0


def until_last(fd: int, idle: float) -> None:
    """Returns, with the lock, when nobody has had the dict open for so many seconds."""
    while True:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if not idle:
            return
        last = os.fstat(fd).st_mtime_ns
        fcntl.flock(fd, fcntl.LOCK_UN)
        time.sleep(idle)
        if lock(fd, fcntl.LOCK_EX):
            # Whoever opens it leaves the time there.
            if os.fstat(fd).st_mtime_ns == last:
                return
            fcntl.flock(fd, fcntl.LOCK_UN)


def serve(place: Place, about: dict[str, Any], directory: int | None) -> _native.Server:
    options = {what: about[what] for what in ("evict", "key_max", "value_max") if about.get(what) is not None}
    if about.get("users") is not None:
        options["allow_uids"] = about["users"]
    if directory is not None:
        options["snapshots"] = f"/proc/self/fd/{directory}/{SNAPSHOT}"
        options["snapshots_every"] = about["snapshot_every"]
        if about.get("durable") is not None:
            options["log"] = f"/proc/self/fd/{directory}/{LOG}"
            options["fsync"] = about["durable"]
    return _native.Server(
        place.address,
        backing=str(place.region),
        start="open_or_create",
        bytes_max=about["memory"],
        # The locks of `memoize` go with their processes.
        life=True,
        owners=True,
        **options,
    )


def save(server: _native.Server, within: float = SAVE_WITHIN) -> bool:
    """Whether there is a snapshot with every change made so far."""
    asked = server.ask_for_snapshot()
    assert asked is not None, "who has a directory makes snapshots"
    end = time.monotonic() + within
    while True:
        status = server.snapshot_status()
        assert status is not None
        if status.finished >= asked.asked or time.monotonic() > end:
            return status.saved >= asked.asked
        time.sleep(0.01)


def own(directory: str) -> int:
    """Takes the directory of a cache or a dict for this server alone, until its process ends: another container may have another
    server. Returns the directory. One that is made later at the same place is another's."""
    there = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fd = os.open(OWNED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=there)
    end = time.monotonic() + OWN_WITHIN
    while not lock(fd, fcntl.LOCK_EX):
        if time.monotonic() > end:
            sys.exit(f"another server has the directory {directory}: of another dict, container or user; stop that one")
        time.sleep(0.01)
    return there


def is_there(directory: str, fd: int) -> bool:
    """Whether this is still the directory at this place."""
    try:
        return os.path.samestat(os.stat(directory), os.fstat(fd))
    except FileNotFoundError:
        return False


def stop(*_: object) -> None:
    raise SystemExit


def main(folder: str, name: str) -> None:
    # Who started this may have signals blocked. A server is ended by them.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Nobody has to wait for the end of a server that outlives who started it.
    if os.fork():
        os._exit(0)
    place = Place(name, Path(folder))
    about = place.about()
    assert about is not None, "who starts it says first what it is"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, stop)
    fd = place.open_lock("open")
    directory: str | None = about.get("directory")
    own_fd = None if directory is None else own(directory)
    try:
        server = serve(place, about, own_fd)
    except OnereadError as error:
        sys.exit(str(error))
    ends = False
    try:
        if about.get("metrics") is not None:
            try:
                server.answer_scrapes(about["metrics"])
            except OnereadError as error:
                sys.exit(str(error))
        os.write(1, b"ready")
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.close(null)
        if about["lives"] == "for ever":
            while True:
                signal.pause()
        until_last(fd, 0 if about["lives"] == "until last" else about["lives"])
        # Without a snapshot the table stays, for the next server.
        ends = directory is None or own_fd is None or not is_there(directory, own_fd) or save(server)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.stop()
        # Another folder, made after this one was removed, is others'.
        if ends and place.is_here(fd):
            place.forget()
            if directory is not None and own_fd is not None and not is_there(directory, own_fd):
                # No other directory has this name.
                place.forget_locks()
