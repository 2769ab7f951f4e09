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
from typing import Any

from oneread import _native
from oneread._errors import OnereadError
from oneread._place import Place, lock


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


def serve(place: Place, about: dict[str, Any]) -> _native.Server:
    options = {what: about[what] for what in ("evict", "key_max", "value_max") if about.get(what) is not None}
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


def stop(*_: object) -> None:
    raise SystemExit


def main(name: str) -> None:
    # Who started this may have signals blocked. A server is ended by them.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Nobody has to wait for the end of a server that outlives who started it.
    if os.fork():
        os._exit(0)
    place = Place(name)
    about = place.about()
    assert about is not None, "who starts it says first what it is"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, stop)
    fd = place.open_lock("open")
    try:
        server = serve(place, about)
    except OnereadError as error:
        sys.exit(str(error))
    ends = False
    try:
        os.write(1, b"ready")
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.close(null)
        if about["lives"] == "for ever":
            while True:
                signal.pause()
        until_last(fd, 0 if about["lives"] == "until last" else about["lives"])
        ends = True
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.stop()
        # Another folder, made after this one was removed, is others'.
        if ends and place.is_here(fd):
            place.forget()
