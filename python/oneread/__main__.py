"""The command ``oneread``: ``python -m oneread``, or ``oneread`` where pip has installed it."""

from __future__ import annotations

import sys

from oneread import _native


def main() -> int:
    """Runs the command with the words of this process."""
    return _native.main([sys.executable, "-m", "oneread"], sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
