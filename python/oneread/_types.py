"""What calls give that is more than bytes and numbers."""

from __future__ import annotations

from array import array
import struct
from functools import cache
from typing import Any, NamedTuple

FOUND = struct.Struct("<QQIIHB?4x")
"""A record of what :class:`LocationIndex` has found of a block: ``address``, ``number`` (of the entry), ``length``,
``endpoint``, ``owner``, ``tier``, ``is_there``; all zero for a block that is not there. An array of NumPy's has fields
of these names; without NumPy, ``FOUND.iter_unpack`` reads them."""


@cache
def _numpy() -> tuple[Any, Any]:
    """NumPy, and the type of a record; looked for when arrays are asked for. ``None`` if it is not there."""
    try:
        import numpy
    except ImportError:
        return None, None
    fields = {
        "names": ["address", "number", "length", "endpoint", "owner", "tier", "is_there"],
        "formats": ["<u8", "<u8", "<u4", "<u4", "<u2", "u1", "?"],
        "offsets": [0, 8, 16, 20, 24, 26, 27],
        "itemsize": FOUND.size,
    }
    return numpy, numpy.dtype(fields)  # type: ignore[call-overload]


def found_records(count: int) -> Any:
    """So many records, all zero."""
    numpy, record = _numpy()
    return bytearray(FOUND.size * count) if numpy is None else numpy.zeros(count, record)


def found_hashes(count: int) -> Any:
    """So many numbers of 64 bits, all zero."""
    numpy, _ = _numpy()
    return array("Q", bytes(8 * count)) if numpy is None else numpy.zeros(count, "u8")


def found_bools(count: int) -> Any:
    """So many bools, all false."""
    numpy, _ = _numpy()
    return bytearray(count) if numpy is None else numpy.zeros(count, "?")


class Location(NamedTuple):
    """Where a block is."""

    endpoint: int
    """The number of the endpoint's name."""
    tier: int
    """As the engines number theirs: device, host, disk."""
    address: int
    length: int
    """Its bytes."""


class Cleaned(NamedTuple):
    """What a step of :meth:`PlacementIndex.clean` did."""

    entries: int
    """Entries that were looked at."""
    freed: int
    """Places of holders that are free again."""
    is_done: bool
    """No holder that was dropped is left to be cleaned."""


class EventOutcome(NamedTuple):
    """What came of a batch of :meth:`EventStream.take`."""

    added: int
    """Blocks that the holder did not have before."""
    removed: int
    """Blocks that it had."""
    is_late: bool
    """It was heard before, or comes after a later one: nothing was done."""
    missed: int
    """Batches before this one that were not heard."""


class SnapshotStatus(NamedTuple):
    """What became of a server's snapshots. Snapshots that somebody asked for have numbers, from 1 on."""

    is_on: bool
    """The server makes snapshots."""
    every: float | None
    """Seconds between them; ``None``: only when asked for, and when the server stops, or none at all."""
    asked: int
    """The last one that somebody asked for."""
    begun: int
    finished: int
    """The last one that has ended, made or not."""
    saved: int
    """The last one that was made. If it is less than ``finished``, the last one has failed."""
    progress: float
    """What part is done of the one being made, up to 1."""
    saved_at: float | None
    """The last one made has every change up to this time, as of :func:`time.time`."""
    took: float
    """So many seconds did it take."""
    keys: int
    bytes: int
    """The size of its file."""
    failure: str | None
    """Why one has failed, the last time."""
    launch: int = 0
    """The server: a random number, another one with each start. Numbers of snapshots are that server's."""


class Life(NamedTuple):
    """Which entry a key has, whose it is, and how long it lives."""

    number: int
    """Another one with each value that the key is given, of all entries of all tables."""
    owner: int
    """Whose it is; 0: nobody's."""
    ends_in: float | None
    """Seconds until it ends; ``None``: it does not end by itself."""


class Change(NamedTuple):
    """What happened in a table.

    ``kind``: ``"key"``: the key is there, as a walk over all keys shows it; ``"joined"``: all were shown; ``"came"``,
    ``"replaced"``, ``"left"``: a key did; ``"owner_gone"``: all entries of an owner have left; ``"gap"``: changes are
    missing, and ``resync`` tells what is there.
    """

    kind: str
    key: bytes | None = None
    value: bytes | None = None
    """The value, where values are wanted."""
    owner: int = 0
    """Whose the entry is; 0: nobody's."""
    number: int = 0
    """The number of the change."""
    cause: str | None = None
    """Why the key left (``"removed"``, ``"expired"``, ``"evicted"``), or why changes are missing (``"too_slow"``,
    ``"other_server"``, ``"other_table"``)."""
    gap: tuple[tuple[int, int, int], tuple[int, int, int]] | None = None
    """The positions between which changes are missing."""


class ClusterChange(NamedTuple):
    """What happened in a cluster.

    ``kind``: ``"key"``: the key is there, as a walk over all keys shows it; ``"joined"``: all were shown; ``"came"``,
    ``"replaced"``, ``"left"``: a key did; ``"gap"``: changes of ``shard`` are missing, and ``resync(shard)`` tells what
    is there.
    """

    kind: str
    key: bytes | None = None
    value: bytes | None = None
    """The value, where values are wanted."""
    shard: int | None = None
    """The shard of the key, or of the gap."""
    epoch: int = 0
    """The epoch of the shard in which the change was made."""
    number: int = 0
    """The number of the change, in its shard. Of a gap: that of the last change that is missing."""
    cause: str | None = None
    """Why the key left (``"removed"``, ``"evicted"``)."""
