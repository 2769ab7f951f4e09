"""Where a cache is: its directory, and the memory that it may take."""

from __future__ import annotations

import os
import time
import uuid
from hashlib import blake2b
from pathlib import Path

from oneread._errors import OnereadError, Timeout
from oneread._native import Client


def identity(directory: Path) -> str:
    """The name of the directory's dict. A directory that was removed and made again has another one, and so has a copy."""
    marker = directory / "oneread.cache"
    partial = directory / f"oneread.cache.{uuid.uuid4().hex}"
    try:
        number = marker.read_text()
    except FileNotFoundError:
        partial.write_text(uuid.uuid4().hex)
        try:
            # One of several that come at once.
            os.link(partial, marker)
        except FileExistsError:
            pass
        finally:
            partial.unlink()
        number = marker.read_text()
    place = os.fsencode(directory.resolve())
    return "cache-" + blake2b(place + number.encode(), digest_size=12).hexdigest()


def wait_for_snapshot(client: Client, within: float) -> None:
    asked = client.ask_for_snapshot()
    end = time.monotonic() + within
    pause = 0.001
    while (status := client.snapshot_status()).finished < asked.asked:
        if time.monotonic() > end:
            raise Timeout(f"the snapshot is not there within {within:g} s; it goes on")
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
    if status.saved < asked.asked:
        raise OnereadError(f"the snapshot was not written: {status.failure}")
