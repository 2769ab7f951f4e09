"""The command ``oneread``: ``python -m oneread``, or ``oneread`` where pip has installed it."""

from __future__ import annotations

import sys

from oneread import _native


def main() -> int:
    """Runs the command with the words of this process."""
    if sys.argv[1:3] == ["import", "diskcache"]:
        # It reads SQLite, which Python has.
        from oneread.cache import _importing

        return _importing.main(sys.argv[3:])
    return _native.main([sys.executable, "-m", "oneread"], sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
