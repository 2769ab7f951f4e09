"""Keys of a :class:`SharedDict` as bytes, and back.

A ``str`` is its UTF-8, so that the ``oneread`` command shows it and asks for it as it is. UTF-8 never begins with a
byte of 0xF8 and above, so these say what else a key is::

    0xFF  bytes           and then these bytes
    0xFE  int             and then its decimal digits
    0xFD  tuple           and then, for each part, its length as one byte and its bytes
    0xFC  the empty str   alone, because no key is empty
    0xFB  what `memoize` keeps, and 0xFA its locks: no keys of the dict

``True`` is the key ``1``, as in a ``dict``.
"""

from __future__ import annotations

from typing import TypeAlias, Union

from oneread._errors import KeyTooLong

Key: TypeAlias = Union[str, bytes, int, tuple["Key", ...]]

BYTES, INT, TUPLE, EMPTY, RESULT, LOCK = b"\xff", b"\xfe", b"\xfd", b"\xfc", b"\xfb", b"\xfa"

# A key of a table, whatever its options.
PART_MAX = 255


def encode(key: Key) -> bytes:
    """The key as bytes: others for each other key. ``TypeError`` for what is no key."""
    if isinstance(key, str):
        return key.encode() or EMPTY
    if isinstance(key, bytes):
        return BYTES + key
    if isinstance(key, int):
        return b"\xfe%d" % key
    if isinstance(key, tuple):
        return TUPLE + b"".join(map(_part, key))
    raise TypeError(f"a key is a str, bytes, an int, or a tuple of these; this is a {type(key).__name__}")


def _part(key: Key) -> bytes:
    raw = encode(key)
    if len(raw) > PART_MAX:
        raise KeyTooLong(f"a part of a tuple has {len(raw)} bytes as a key; at most {PART_MAX} are possible")
    return b"%c%b" % (len(raw), raw)


def decode(raw: bytes) -> Key:
    """The key that has these bytes. ``ValueError`` if none has."""
    head = raw[:1]
    if head < b"\xf8":
        return raw.decode()
    rest = raw[1:]
    if head == BYTES:
        return rest
    if head == INT:
        return int(rest)
    if head == EMPTY:
        return ""
    if head == TUPLE:
        parts: list[Key] = []
        while rest:
            end = 1 + rest[0]
            if len(rest) < end:
                break
            parts.append(decode(rest[1:end]))
            rest = rest[end:]
        else:
            return tuple(parts)
    raise ValueError(f"no key of a SharedDict: {raw!r}")


def is_lock(raw: bytes) -> bool:
    """Whether this is a lock of :func:`memoize`'s, or says that an owner of locks is there."""
    return raw[:1] == LOCK


def is_hidden(raw: bytes) -> bool:
    """Whether this is an entry of :func:`memoize`'s, and no key of the dict."""
    return raw[:1] in (RESULT, LOCK)
