"""How values become bytes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

Dumps: TypeAlias = Callable[[Any], "bytes | bytearray | memoryview"]
Loads: TypeAlias = Callable[[bytes], Any]
Codec: TypeAlias = "str | tuple[Dumps, Loads]"


def _same(value: Any) -> bytes:
    return value if isinstance(value, bytes) else bytes(memoryview(value))


def codec_of(codec: Codec) -> tuple[str, Dumps, Loads]:
    """The codec's name, and its two functions."""
    if isinstance(codec, tuple):
        dumps, loads = codec
        if not (callable(dumps) and callable(loads)):
            raise TypeError("a codec of your own is a pair of functions: (dumps, loads)")
        return "own", dumps, loads
    if codec == "pickle":
        return codec, partial(pickle.dumps, protocol=5), pickle.loads
    if codec == "raw":
        return codec, _same, bytes
    if codec == "msgpack":
        try:
            import msgpack  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            raise ImportError("codec='msgpack' needs the package msgpack: pip install msgpack") from error
        return codec, msgpack.packb, partial(msgpack.unpackb, strict_map_key=False)
    raise ValueError(f"no codec {codec!r}: it is 'pickle', 'msgpack', 'raw', or a pair (dumps, loads)")
