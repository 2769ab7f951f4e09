"""The bytes of an entry that is more than its value: one that has a tag, an end or a place in an order.

An entry in the table is the codec's bytes. One that is more has these before it::

    E   the letter: the codec's bytes never begin so
    8   when it ends, in seconds since 1970; 0: it does not, or the table knows
    8   its place, where there is an order; 0: it has none
    4   bytes of the tag's value
        the tag, as ``"plain"`` has it, and the codec's bytes
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from oneread import _codecs

HEAD = struct.Struct("<cdQI")
LETTER = b"E"
MARK = LETTER[0]


class Head(NamedTuple):
    """What stands before a value."""

    expire: float | None
    order: int
    tag: bytes


BARE = Head(None, 0, b"")


def split(raw: bytes) -> tuple[Head, bytes]:
    """What stands before a value, and the value as the codec has it. ``ValueError`` if it is cut off."""
    if raw[:1] != LETTER:
        return BARE, raw
    try:
        _, expire, order, tag_len = HEAD.unpack_from(raw)
    except struct.error as error:
        raise ValueError("what stands before the value is cut off") from error
    end = HEAD.size + tag_len
    if len(raw) < end:
        raise ValueError("the tag before the value is cut off")
    return Head(expire or None, order, raw[HEAD.size : end]), raw[end:]


def joined(head: Head, payload: Any) -> bytes:
    """A value behind what stands before it."""
    return b"".join((HEAD.pack(LETTER, head.expire or 0.0, head.order, len(head.tag)), head.tag, payload))


def tag_bytes(tag: Any) -> bytes:
    """A tag as it stands before a value; none for ``None``."""
    return b"" if tag is None else _codecs.plain_dumps(tag)


def tag_of(raw: bytes) -> Any:
    return _codecs.plain_loads(raw) if raw else None
