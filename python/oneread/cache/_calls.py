"""Which entry a call's result is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from oneread import _keys


class Constant:
    """A value that is nothing else."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> str:
        return self._name


ENOVAL, UNKNOWN = Constant("ENOVAL"), Constant("UNKNOWN")


def full_name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def frozen(value: Any) -> Any:
    """An argument as a part of a key."""
    kind = type(value)
    if kind is list:
        return ("[]", *map(frozen, value))
    if kind is tuple:
        return tuple(map(frozen, value))
    if kind is dict:
        return ("{}", *sorted(((frozen(key), frozen(one)) for key, one in value.items()), key=_keys.encode))
    if kind is set or kind is frozenset:
        return frozenset(map(frozen, value))
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, Constant):
        return repr(value)
    return value


def args_to_key(
    base: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any], typed: bool, ignore: Iterable[Any]
) -> tuple[Any, ...]:
    """The key of a call's result."""
    args = tuple(one for nth, one in enumerate(args) if nth not in ignore)
    named = sorted((name, one) for name, one in kwargs.items() if name not in ignore)
    key: tuple[Any, ...] = (*base, *args, None)
    for pair in named:
        key += pair
    if typed:
        key += tuple(map(type, args)) + tuple(type(one) for _, one in named)
    return tuple(map(frozen, key))


def sort_key(key: Any) -> tuple[int, Any]:
    """Numbers, then text, then bytes, then all else."""
    if isinstance(key, (int, float)):
        return (0, key)
    if isinstance(key, str):
        return (1, key)
    if isinstance(key, bytes):
        return (2, key)
    return (3, _keys.encode(key))
