"""A hash index in shared memory: any process of this host reads it without asking the server.

>>> import oneread
>>> with oneread.Server(keys=1000) as server, oneread.Client(server.address) as client:
...     client.put(b"ACME", b"101.25")
...     client.get(b"ACME")
True
b'101.25'
"""

from __future__ import annotations

from oneread._errors import (
    Busy,
    Cancelled,
    Closed,
    Corrupt,
    Disconnected,
    Full,
    HolderGone,
    Incompatible,
    Invalid,
    KeyTooLong,
    NotDone,
    OnereadError,
    Refused,
    SystemRefused,
    Timeout,
    TooShort,
    Unavailable,
    Undecoded,
    Undecrypted,
    Unknown,
    ValueTooLong,
)
from oneread._keys import Key
from oneread._native import (
    Changes,
    Client,
    ClusterChanges,
    ClusterClient,
    ClusterScan,
    EventStream,
    Holder,
    Index,
    LocationIndex,
    PlacementIndex,
    PutTicket,
    Scan,
    Server,
    __version__,
    block_hashes,
    log_level,
)
from oneread._types import FOUND, Change, Cleaned, ClusterChange, EventOutcome, Life, Location, SnapshotStatus
from oneread.aio import AsyncChanges, DictChange, DictChanges, changes_async
from oneread.cache import Cache
from oneread.shared import SharedDict, delete_dict, memoize, metrics

__all__ = [
    "FOUND",
    "AsyncChanges",
    "Busy",
    "Cache",
    "Cancelled",
    "Change",
    "Changes",
    "Cleaned",
    "Client",
    "Closed",
    "ClusterChange",
    "ClusterChanges",
    "ClusterClient",
    "ClusterScan",
    "Corrupt",
    "DictChange",
    "DictChanges",
    "Disconnected",
    "EventOutcome",
    "EventStream",
    "Full",
    "Holder",
    "HolderGone",
    "Incompatible",
    "Index",
    "Invalid",
    "Key",
    "KeyTooLong",
    "Life",
    "Location",
    "LocationIndex",
    "NotDone",
    "OnereadError",
    "PlacementIndex",
    "PutTicket",
    "Refused",
    "Scan",
    "Server",
    "SharedDict",
    "SnapshotStatus",
    "SystemRefused",
    "Timeout",
    "TooShort",
    "Unavailable",
    "Undecoded",
    "Undecrypted",
    "Unknown",
    "ValueTooLong",
    "__version__",
    "block_hashes",
    "changes_async",
    "delete_dict",
    "log_level",
    "memoize",
    "metrics",
]
