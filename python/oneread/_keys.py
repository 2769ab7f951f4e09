"""Keys of a :class:`SharedDict` as bytes, and back.

A ``str`` is its UTF-8, so that the ``oneread`` command shows it and asks for it as it is. UTF-8 never begins with a
byte of 0xF7 and above, so these say what else a key is::

    0xFF  bytes           and then these bytes
    0xFE  int             and then its decimal digits
    0xFD  tuple           and then, for each part, its length as one byte and its bytes
    0xFC  the empty str   alone, because no key is empty
    0xFB  what `memoize` keeps, and 0xFA its locks: no keys of the dict
    0xF9  another type    and then a letter for it, and what it is (OTHERS)
    0xF8  a longer key    and then 128 bits of hash: the key itself stands before the value
    0xF7  what `oneread.cache` notes: no key of the dict

What is equal is one key, as in a ``dict``: ``True``, ``1``, ``1.0`` and ``Decimal(1)`` are the key ``1``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from hashlib import blake2b
from typing import Any, TypeAlias, Union
from uuid import UUID

Key: TypeAlias = Union[
    str,
    bytes,
    int,
    float,
    None,
    Decimal,
    dt.date,
    dt.time,
    dt.timedelta,
    UUID,
    frozenset["Key"],
    tuple["Key", ...],
]

BYTES, INT, TUPLE, EMPTY, RESULT, LOCK = b"\xff", b"\xfe", b"\xfd", b"\xfc", b"\xfb", b"\xfa"
OTHER, HASHED, NOTE = b"\xf9", b"\xf8", b"\xf7"

# The longest part of a tuple whose length is one byte.
PART_MAX = 255
# Bytes of the length of a key that stands before its value, and of a part of a set or a long tuple.
LENGTH = 4
MICROSECOND = dt.timedelta(microseconds=1)
# Digits of the longest int that Python writes as text.
DIGITS_MAX = 4_000


def encode(key: Key) -> bytes:
    """The key as bytes, of any length: others for each other key. ``TypeError`` for what is no key."""
    if isinstance(key, str):
        return key.encode() or EMPTY
    if isinstance(key, bytes):
        return BYTES + key
    if isinstance(key, int):
        return b"\xfe%d" % key
    if isinstance(key, tuple):
        parts = list(map(encode, key))
        if all(len(part) <= PART_MAX for part in parts):
            return TUPLE + b"".join(b"%c%b" % (len(part), part) for part in parts)
        return OTHER + b"t" + _joined(parts)
    return _encode_other(key)


def _encode_other(key: Any) -> bytes:
    """A key of another type."""
    if key is None:
        return OTHER + b"n"
    if isinstance(key, float):
        return encode(int(key)) if key.is_integer() else OTHER + b"f" + repr(float(key)).encode()
    if isinstance(key, Decimal):
        return _encode_decimal(key)
    if isinstance(key, dt.datetime):
        # Those of one instant are equal in all time zones.
        return OTHER + b"T" + (key if key.tzinfo is None else key.astimezone(dt.UTC)).isoformat().encode()
    if isinstance(key, dt.date):
        return OTHER + b"D" + key.isoformat().encode()
    if isinstance(key, dt.time):
        return OTHER + b"H" + key.isoformat().encode()
    if isinstance(key, dt.timedelta):
        return OTHER + b"e%d" % (key // MICROSECOND)
    if isinstance(key, UUID):
        return OTHER + b"u" + key.bytes
    if isinstance(key, frozenset):
        return OTHER + b"s" + _joined(sorted(map(encode, key)))
    raise TypeError(
        "a key is a str, bytes, a number, None, a date, a time, a UUID, or a tuple or frozenset of these; this is a "
        f"{type(key).__name__}"
    )


def _encode_decimal(key: Decimal) -> bytes:
    """As the int or the float that equals it, if one does."""
    if key.is_nan():
        return OTHER + b"d" + str(key).encode()
    if key.is_infinite():
        return encode(float(key))
    # No int of more digits is a key.
    if key.adjusted() < DIGITS_MAX and key == key.to_integral_value():
        return encode(int(key))
    if Decimal(float(key)) == key:
        return encode(float(key))
    sign, digits, exponent = key.as_tuple()
    assert isinstance(exponent, int)
    kept = digits
    while len(kept) > 1 and kept[-1] == 0:
        kept = kept[:-1]
    return OTHER + b"d" + str(Decimal((sign, kept, exponent + len(digits) - len(kept)))).encode()


def _joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(LENGTH, "little") + part for part in parts)


def _parts(raw: bytes, length: int) -> list[Key]:
    """Parts, each behind its length, which has ``length`` bytes."""
    parts: list[Key] = []
    while raw:
        end = length + int.from_bytes(raw[:length], "little")
        if len(raw) < end or len(raw) < length:
            raise ValueError(f"a part is cut off: {raw!r}")
        parts.append(decode(raw[length:end]))
        raw = raw[end:]
    return parts


# How each letter is read.
OTHERS: dict[bytes, Any] = {
    b"n": lambda rest: None,
    b"f": float,
    b"d": lambda rest: Decimal(rest.decode()),
    b"T": lambda rest: dt.datetime.fromisoformat(rest.decode()),
    b"D": lambda rest: dt.date.fromisoformat(rest.decode()),
    b"H": lambda rest: dt.time.fromisoformat(rest.decode()),
    b"e": lambda rest: int(rest) * MICROSECOND,
    b"u": lambda rest: UUID(bytes=rest),
    b"s": lambda rest: frozenset(_parts(rest, LENGTH)),
    b"t": lambda rest: tuple(_parts(rest, LENGTH)),
}


def hashed(raw: bytes) -> bytes:
    """What the table has for a key that is longer than it takes."""
    return HASHED + blake2b(raw, digest_size=16).digest()


def before(raw: bytes, value: Any) -> bytes:
    """The value of a longer key, behind that key."""
    return b"".join((len(raw).to_bytes(LENGTH, "little"), raw, value))


def split(stored: bytes) -> tuple[bytes, bytes]:
    """A longer key, and its value. ``ValueError`` if this is none."""
    end = LENGTH + int.from_bytes(stored[:LENGTH], "little")
    if len(stored) < end:
        raise ValueError("the key before the value is cut off")
    return stored[LENGTH:end], stored[end:]


def decode(raw: bytes) -> Key:
    """The key that has these bytes. ``ValueError`` if none has."""
    head = raw[:1]
    if head < NOTE:
        return raw.decode()
    rest = raw[1:]
    if head == BYTES:
        return rest
    if head == INT:
        return int(rest)
    if head == EMPTY:
        return ""
    if head == TUPLE:
        return tuple(_parts(rest, 1))
    if head == OTHER and rest[:1] in OTHERS:
        try:
            return OTHERS[rest[:1]](rest[1:])  # type: ignore[no-any-return]
        except ArithmeticError as error:
            raise ValueError(f"no key of a SharedDict: {raw!r}") from error
    raise ValueError(f"no key of a SharedDict: {raw!r}")


def begins(raw: bytes, prefix: str | bytes | None) -> bool:
    """Whether this is a key that is text, or bytes, and begins so; any is, where nothing is said."""
    if prefix is None:
        return True
    if isinstance(prefix, bytes):
        return raw.startswith(BYTES + prefix)
    return (raw[:1] < NOTE and raw.startswith(prefix.encode())) or (raw == EMPTY and not prefix)


def is_lock(raw: bytes) -> bool:
    """Whether this is a lock of :func:`memoize`'s, or says that an owner of locks is there."""
    return raw[:1] == LOCK


def is_hidden(raw: bytes) -> bool:
    """Whether this is an entry of :func:`memoize`'s or of a cache's own, and no key of the dict."""
    return raw[:1] in (RESULT, LOCK, NOTE)
