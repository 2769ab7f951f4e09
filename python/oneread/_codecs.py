"""How values become bytes.

A number alone is decimal text in ``"plain"``, ``"pickle"`` and ``"msgpack"``, so that :meth:`SharedDict.incr` and
``oneread incr`` add to it. What else these write begins with another byte than a digit or a sign.
"""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

from oneread import _native
from oneread._errors import Invalid

Dumps: TypeAlias = Callable[[Any], "bytes | bytearray | memoryview"]
Loads: TypeAlias = Callable[[bytes], Any]
Codec: TypeAlias = "str | tuple[Dumps, Loads]"

# The bytes that a number begins with.
NUMERIC = frozenset(b"-0123456789")
# Numbers of 64 bits are below this.
INT_END = 1 << 63


def _same(value: Any) -> bytes:
    return value if isinstance(value, bytes) else bytes(memoryview(value))


def number_of(raw: bytes) -> int:
    """The number that is this decimal text."""
    try:
        if raw and raw[0] in NUMERIC and raw == b"%d" % (number := int(raw)):
            return number
    except ValueError:
        pass
    raise Invalid(f"the value, {len(raw)} bytes long, is no decimal text of a number; put one first")


def is_int(value: Any) -> bool:
    return type(value) is int


def is_like_int(value: Any) -> bool:
    """Whether msgpack writes it as a number: so does it with a member of an ``IntEnum``."""
    return isinstance(value, int) and type(value) is not bool


def with_numbers(dumps: Dumps, loads: Loads, is_number: Callable[[Any], bool] = is_int) -> tuple[Dumps, Loads]:
    """A codec whose bytes never begin as a number does, with numbers as decimal text."""

    def dump(value: Any) -> Any:
        return b"%d" % value if is_number(value) and -INT_END <= value < INT_END else dumps(value)

    def load(raw: bytes) -> Any:
        return int(raw) if raw and raw[0] in NUMERIC else loads(raw)

    return dump, load


# Types of `"plain"` that Python reads and writes, by their letters.
def _other(value: Any) -> tuple[bytes, bytes]:
    """A letter, and bytes. ``TypeError`` for what ``"plain"`` does not keep."""
    kind = type(value)
    if kind is dt.datetime:
        if not (value.tzinfo is None or isinstance(value.tzinfo, dt.timezone)):
            raise TypeError(refusal("a datetime in a time zone with rules"))
        return b"T", value.isoformat().encode()
    if kind is dt.date:
        return b"D", value.isoformat().encode()
    if kind is dt.time and value.tzinfo is None:
        return b"H", value.isoformat().encode()
    if kind is dt.timedelta:
        return b"e", b"%d,%d,%d" % (value.days, value.seconds, value.microseconds)
    if kind is Decimal:
        return b"d", str(value).encode()
    if kind is UUID:
        return b"u", value.bytes
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        return b"a", _array(value)
    raise TypeError(refusal(f"a {kind.__module__}.{kind.__qualname__}"))


def refusal(what: str) -> str:
    return (
        f"the codec 'plain' does not keep {what}; it keeps None, numbers, str, bytes, lists, tuples, dicts, sets, dates, "
        "times, Decimal, UUID and NumPy arrays; take codec='pickle' where only this user's programs put values"
    )


def _array(array: Any) -> bytes:
    """Its dtype, shape and order, and its bytes."""
    if array.dtype.hasobject or array.dtype.names is not None:
        raise TypeError(refusal("a NumPy array of objects or records"))
    order = b"F" if array.flags.f_contiguous and not array.flags.c_contiguous else b"C"
    head = b"%b %b %b\n" % (array.dtype.str.encode(), order, b",".join(b"%d" % side for side in array.shape))
    return head + bytes(array.tobytes(order.decode()))


def _to_array(raw: bytes) -> Any:
    import numpy as np

    head, _, body = raw.partition(b"\n")
    dtype, order, shape = head.decode().split(" ")
    sides = [int(side) for side in shape.split(",") if side]
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise ValueError("an array of objects is no plain value")
    # Its memory is its own, and may be written.
    return np.ndarray(sides, kind, bytearray(body), order="F" if order == "F" else "C")


def _timedelta(raw: bytes) -> dt.timedelta:
    return dt.timedelta(*map(int, raw.split(b",")))


MADE: dict[bytes, Callable[[bytes], Any]] = {
    b"T": lambda raw: dt.datetime.fromisoformat(raw.decode()),
    b"D": lambda raw: dt.date.fromisoformat(raw.decode()),
    b"H": lambda raw: dt.time.fromisoformat(raw.decode()),
    b"e": _timedelta,
    b"d": lambda raw: Decimal(raw.decode()),
    b"u": lambda raw: UUID(bytes=raw),
    b"a": _to_array,
}


def _made(letter: bytes, raw: bytes) -> Any:
    return MADE[letter](raw)


def plain_dumps(value: Any) -> bytes:
    return _native.plain_dumps(value, _other)


def plain_loads(raw: bytes) -> Any:
    return _native.plain_loads(raw, _made)


def _unpickled(raw: bytes) -> Any:
    """Of what this codec wrote, and nothing else: text or bytes of another codec may be what a stranger has sent."""
    if raw[:1] != pickle.PROTO:
        raise pickle.UnpicklingError("the codec 'pickle' has not written this")
    return pickle.loads(raw)


def codec_of(codec: Codec) -> tuple[str, Dumps, Loads]:
    """The codec's name, and its two functions."""
    if isinstance(codec, tuple):
        dumps, loads = codec
        if not (callable(dumps) and callable(loads)):
            raise TypeError("a codec of your own is a pair of functions: (dumps, loads)")
        return "own", dumps, loads
    if codec == "plain":
        return codec, plain_dumps, plain_loads
    if codec == "pickle":
        return codec, *with_numbers(partial(pickle.dumps, protocol=5), _unpickled)
    if codec == "raw":
        return codec, _same, bytes
    if codec == "msgpack":
        try:
            import msgpack  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            raise ImportError("codec='msgpack' needs the package msgpack: pip install msgpack") from error
        return codec, *with_numbers(msgpack.packb, partial(msgpack.unpackb, strict_map_key=False), is_like_int)
    raise ValueError(
        f"no codec {codec!r}: it is 'plain', 'pickle', 'msgpack', 'raw', or a pair (dumps, loads)"
    )
