"""Why a call failed: one class for each thing that a caller can do about it.

Every error is an :class:`OnereadError`, and its text says what to do. Some are also the error that Python has for
such a thing, so that code which knows nothing of oneread catches them.
"""

from __future__ import annotations

from typing import Any


class OnereadError(Exception):
    """Any error of this package.

    ``position`` says which key of a batch it is about, counted from 0; ``None`` otherwise. ``rejected`` has all keys of
    a batch that the table did not take. ``unknown`` has those of which nobody knows (:class:`Unknown`). ``maybe_made``:
    a change was asked for, and may have been made all the same.
    """

    position: int | None = None
    rejected: list[int] = []
    unknown: list[int] = []
    maybe_made: bool = False


class Invalid(OnereadError, ValueError):
    """The call asks for what cannot be: a length, an option, an address. The same call fails again."""


class KeyTooLong(Invalid):
    """The key's length is none that this table takes. An empty key is one, too."""


class ValueTooLong(Invalid):
    """The value is longer than this table takes."""


class TooShort(Invalid):
    """The value does not fit the buffer that it was to land in. ``needed`` says how long it is."""

    needed: int = 0


class Closed(Invalid):
    """The object was closed, or stopped, before."""


class Disconnected(OnereadError, ConnectionError):
    """No server is there, or it went away. ``maybe_made`` says whether a change may have been made."""


class Timeout(OnereadError, TimeoutError):
    """No answer in time. A change may still happen."""


class Unavailable(Timeout):
    """No value of the key could be believed in time: there is no lease on the node that serves it, or none serves it."""


class NotDone(Timeout):
    """The cluster took no change in time, and it was certainly not made. It can be made again."""


class Unknown(Timeout):
    """The cluster did not answer in time: the change may have been made, or may yet be. Get the key to see."""


class Busy(OnereadError):
    """Others were in the way, each time; or a signal's handler interrupts just such a call. Try again, later."""


class Full(OnereadError):
    """The table has no room, or what could make room is pinned."""


class HolderGone(OnereadError):
    """The holder of blocks was dropped, or its table is another one. Register it again."""


class Refused(OnereadError, PermissionError):
    """This user, or whoever has this token, may not do that; or a file is open to others."""


class Incompatible(OnereadError):
    """The other side, a file or this build has another version, or lacks what is asked for."""


class Corrupt(OnereadError):
    """Bytes are not what was written."""


class Undecrypted(OnereadError):
    """A value does not decrypt: another secret key, or no encrypted value."""


class Undecoded(OnereadError, ValueError):
    """The codec of a dict cannot read a value, or a key is none of a dict's. ``key`` says which: as it is in the dict,
    or its bytes. The codec's own error is the ``__cause__``."""

    key: Any = None


class SystemRefused(OnereadError, OSError):
    """The operating system refused: memory, descriptors, a disk, a port."""


class Cancelled(OnereadError):
    """The caller broke it off."""


# They are named where a program finds them.
for _name, _class in list(globals().items()):
    if isinstance(_class, type) and issubclass(_class, OnereadError):
        _class.__module__ = "oneread"
