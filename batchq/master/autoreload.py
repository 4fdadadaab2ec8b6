"""For development: asks the master for a reload when a file of the app changes. A process of its own that dies with it.

    python -m batchq.master.autoreload MASTER_PID FOLDER

Needs watchfiles (the extra `dev-reload`). What can't be imported changes nothing: see `handover`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from batchq.errors import ConfigError
from batchq.system.parent import die_with_parent


def check_installed() -> None:
    """Raises ConfigError where watchfiles is not there."""
    try:
        import watchfiles  # noqa: F401
    except ImportError:
        raise ConfigError(
            "autoreload: it needs watchfiles; pip install 'batchq[dev-reload]', or leave --autoreload out"
        ) from None


def start(master: int, folder: str) -> int:
    """Starts the watcher; answers its pid. Its end is collected by the master's loop, as any child's."""
    process = subprocess.Popen(
        [sys.executable, "-m", "batchq.master.autoreload", str(master), folder],
        stdin=subprocess.DEVNULL,
        process_group=0,
    )
    process.returncode = 0  # Nobody waits for it through this object.
    return process.pid


def main(master: int, folder: str) -> None:
    die_with_parent(master)
    from watchfiles import PythonFilter, watch

    for _ in watch(folder, watch_filter=PythonFilter(), raise_interrupt=False):
        if os.getppid() != master:
            return
        os.kill(master, signal.SIGHUP)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
