"""A deque and an ordered dict in a directory, which never let entries go: :class:`Deque`, :class:`Index`."""

from __future__ import annotations

import operator
import os
from collections import OrderedDict
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, MutableMapping, Sequence, ValuesView
from typing import Any

from oneread.cache.core import AT_ONCE, ENOVAL, Cache


class Deque(Sequence[Any]):
    """A deque in a directory, which all processes of this user share. Its items have numbers, and none leaves by itself."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        iterable: Iterable[Any] = (),
        directory: str | os.PathLike[str] | None = None,
        maxlen: int | None = None,
    ) -> None:
        self._begin(Cache(directory, eviction_policy="none"), iterable, maxlen)

    def _begin(self, cache: Cache, iterable: Iterable[Any], maxlen: int | None) -> None:
        self._cache = cache
        self._maxlen = float("inf") if maxlen is None else maxlen
        self.extend(iterable)

    @classmethod
    def fromcache(cls, cache: Cache, iterable: Iterable[Any] = (), maxlen: int | None = None) -> Deque:
        self = cls.__new__(cls)
        self._begin(cache, iterable, maxlen)
        return self

    @property
    def cache(self) -> Cache:
        return self._cache

    @property
    def directory(self) -> str:
        return self._cache.directory

    @property
    def maxlen(self) -> float:
        return self._maxlen

    @maxlen.setter
    def maxlen(self, value: float) -> None:
        self._maxlen = value
        self._shorten(self.popleft)

    def _shorten(self, pop: Callable[[], Any]) -> None:
        while len(self) > self._maxlen:
            try:
                pop()
            except IndexError:
                # Another process was quicker.
                return

    def _found(self, reverse: bool = False) -> Iterator[tuple[int, Any]]:
        """The numbers of all items, with their values."""
        numbers = self._cache._queue(None)[2]
        ordered = numbers[::-1] if reverse else numbers
        for first in range(0, len(ordered), AT_ONCE):
            for number in ordered[first : first + AT_ONCE]:
                value = self._cache.get(number, ENOVAL)
                if value is not ENOVAL:
                    yield number, value

    def _number(self, index: int) -> tuple[int, Any]:
        """The number of the item at an index, and its value."""
        found = self._found() if index >= 0 else self._found(reverse=True)
        skipped = index if index >= 0 else -index - 1
        for nth, item in enumerate(found):
            if nth == skipped:
                return item
        raise IndexError("deque index out of range")

    def __getitem__(self, index: Any) -> Any:
        return self._number(operator.index(index))[1]

    def __setitem__(self, index: int, value: Any) -> None:
        self._cache[self._number(operator.index(index))[0]] = value

    def __delitem__(self, index: int) -> None:
        del self._cache[self._number(operator.index(index))[0]]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(directory={self.directory!r})"

    def __iadd__(self, iterable: Iterable[Any]) -> Deque:
        self.extend(iterable)
        return self

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._found())

    def __reversed__(self) -> Iterator[Any]:
        return (value for _, value in self._found(reverse=True))

    def __len__(self) -> int:
        return len(self._cache)

    def __getstate__(self) -> Any:
        return self.directory, self._maxlen

    def __setstate__(self, state: Any) -> None:
        directory, maxlen = state
        self._begin(Cache(directory, eviction_policy="none"), (), maxlen)

    def _compare(self, other: object, by: Callable[[Any, Any], bool]) -> Any:
        if not isinstance(other, Sequence):
            return NotImplemented
        return by(list(self), list(other))

    def __eq__(self, other: object) -> Any:
        return self._compare(other, operator.eq)

    def __ne__(self, other: object) -> Any:
        return self._compare(other, operator.ne)

    def __lt__(self, other: object) -> Any:
        return self._compare(other, operator.lt)

    def __le__(self, other: object) -> Any:
        return self._compare(other, operator.le)

    def __gt__(self, other: object) -> Any:
        return self._compare(other, operator.gt)

    def __ge__(self, other: object) -> Any:
        return self._compare(other, operator.ge)

    def append(self, value: Any) -> None:
        self._cache.push(value)
        self._shorten(self.popleft)

    def appendleft(self, value: Any) -> None:
        self._cache.push(value, side="front")
        self._shorten(self.pop)

    def clear(self) -> None:
        self._cache.clear()

    def copy(self) -> Deque:
        """The deque of the same directory, once more."""
        return type(self).fromcache(self._cache, (), None if self._maxlen == float("inf") else int(self._maxlen))

    def count(self, value: Any) -> int:
        return sum(one == value for one in self)

    def extend(self, iterable: Iterable[Any]) -> None:
        for value in iterable:
            self.append(value)

    def extendleft(self, iterable: Iterable[Any]) -> None:
        for value in iterable:
            self.appendleft(value)

    def _at(self, what: str, found: tuple[Any, Any]) -> Any:
        if found[1] is ENOVAL:
            raise IndexError(f"{what} from an empty deque")
        return found[1]

    def peek(self) -> Any:
        """The last item, which stays."""
        return self._at("peek", self._cache.peek(default=(None, ENOVAL), side="back"))

    def peekleft(self) -> Any:
        """The first item, which stays."""
        return self._at("peek", self._cache.peek(default=(None, ENOVAL), side="front"))

    def pop(self) -> Any:
        return self._at("pop", self._cache.pull(default=(None, ENOVAL), side="back"))

    def popleft(self) -> Any:
        return self._at("pop", self._cache.pull(default=(None, ENOVAL), side="front"))

    def remove(self, value: Any) -> None:
        for number, one in self._found():
            # If another process has removed it, the next such item goes.
            if one == value and self._cache.delete(number):
                return
        raise ValueError("deque.remove(value): value not in deque")

    def reverse(self) -> None:
        values = list(reversed(self))
        self.clear()
        self.extend(values)

    def rotate(self, steps: int = 1) -> None:
        if not isinstance(steps, int):
            raise TypeError(f"steps is an int, and this is a {type(steps).__name__}")
        length = len(self)
        if length == 0:
            return
        pop, push = (self.pop, self.appendleft) if steps >= 0 else (self.popleft, self.append)
        for _ in range(abs(steps) % length):
            try:
                value = pop()
            except IndexError:
                # Another process has taken the rest.
                return
            push(value)

    def transact(self) -> Any:
        return self._cache.transact()


class Index(MutableMapping[Any, Any]):
    """A dict in a directory, in the order in which keys came. All processes of this user share it, and no entry leaves by
    itself. What goes in order looks at all entries."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        directory, args = (args[0], args[1:]) if args and _is_directory(args[0]) else (None, args)
        self._begin(Cache(directory, eviction_policy="none"), *args, **kwargs)

    def _begin(self, cache: Cache, *args: Any, **kwargs: Any) -> None:
        self._cache = cache
        cache._ordered = True
        self.update(*args, **kwargs)

    @classmethod
    def fromcache(cls, cache: Cache, *args: Any, **kwargs: Any) -> Index:
        self = cls.__new__(cls)
        self._begin(cache, *args, **kwargs)
        return self

    @property
    def cache(self) -> Cache:
        return self._cache

    @property
    def directory(self) -> str:
        return self._cache.directory

    def __getitem__(self, key: Any) -> Any:
        return self._cache[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._cache[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._cache[key]

    def __contains__(self, key: object) -> bool:
        return key in self._cache

    def setdefault(self, key: Any, default: Any = None) -> Any:
        while (value := self._cache.get(key, ENOVAL)) is ENOVAL:
            self._cache.add(key, default)
        return value

    def peekitem(self, last: bool = True) -> Any:
        return self._cache.peekitem(last)

    def pop(self, key: Any, default: Any = ENOVAL) -> Any:
        value = self._cache.pop(key, ENOVAL)
        if value is not ENOVAL:
            return value
        if default is ENOVAL:
            raise KeyError(key)
        return default

    def popitem(self, last: bool = True) -> Any:
        keys = list(self)
        for key in reversed(keys) if last else keys:
            value = self._cache.pop(key, ENOVAL)
            # Another process may have taken it.
            if value is not ENOVAL:
                return key, value
        raise KeyError("dictionary is empty")

    def push(self, value: Any, prefix: str | None = None, side: str = "back") -> Any:
        return self._cache.push(value, prefix, side)

    def pull(self, prefix: str | None = None, default: Any = (None, None), side: str = "front") -> Any:
        return self._cache.pull(prefix, default, side)

    def clear(self) -> None:
        self._cache.clear()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cache)

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self._cache)

    def __len__(self) -> int:
        return len(self._cache)

    def keys(self) -> KeysView[Any]:
        return KeysView(self)

    def values(self) -> ValuesView[Any]:
        return ValuesView(self)

    def items(self) -> ItemsView[Any, Any]:
        return ItemsView(self)

    def __getstate__(self) -> Any:
        return self.directory

    def __setstate__(self, state: Any) -> None:
        self.__init__(state)  # type: ignore[misc]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        if isinstance(other, (Index, OrderedDict)):
            return list(self.items()) == list(other.items())
        return dict(self.items()) == dict(other.items())

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.directory!r})"

    def memoize(self, name: str | None = None, typed: bool = False, ignore: Iterable[Any] = ()) -> Any:
        return self._cache.memoize(name, typed, ignore=ignore)

    def transact(self) -> Any:
        return self._cache.transact()


def _is_directory(value: Any) -> bool:
    return value is None or isinstance(value, (str, bytes, os.PathLike))
