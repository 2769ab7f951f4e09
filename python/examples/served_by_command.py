"""A server in Rust, the `oneread` command, and readers in Python: `python served_by_command.py [COMMAND]`.

The server is started as an operator does it, `oneread serve`. It knows nothing of Python, and need not be awake when
they read.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import oneread


def main(command: list[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        address = f"shm:{Path(folder) / 'sock'}"
        serve = [*command, "serve", "--at", address, "--anonymous", "--json", "--capacity", "10000"]
        server = subprocess.Popen(serve, stdout=subprocess.PIPE)
        try:
            assert server.stdout is not None and b"ready" in server.stdout.readline()
            subprocess.run([*command, "set", "--at", address, "greeting", "hello"], check=True)
            with oneread.Client(address) as client:
                # From now on, the server sleeps, and does not notice.
                os.kill(server.pid, signal.SIGSTOP)
                greeting = client.get(b"greeting")
                os.kill(server.pid, signal.SIGCONT)
            assert greeting is not None
            return greeting.decode()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    print(main(sys.argv[1:] or [sys.executable, "-m", "oneread"]))
