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
