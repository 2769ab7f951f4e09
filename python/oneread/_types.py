"""What calls give that is more than bytes and numbers."""

from __future__ import annotations

from typing import NamedTuple


class Life(NamedTuple):
    """Which entry a key has, whose it is, and how long it lives."""

    number: int
    """Another one with each value that the key is given."""
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
