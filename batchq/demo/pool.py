"""The workers of the demo: a real `batchq start` in a process of its own, as one would call it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

LOG = "workers.log"

#: How often progress is looked at.
LOOK_S = 0.2
#: A stopped pool gives its jobs back within this, or is killed.
STOP_S = 10.0


class Ended(NamedTuple):
    """How the pool ended. `code` None: it did not within the deadline. `log`: its last lines where that is of use."""

    code: int | None
    seconds: float
    log: str


class Pool:
    """A context: `batchq start --burst` in the demo's folder, whose pyproject.toml names app and store."""

    def __init__(self, folder: Path, *, workers: int) -> None:
        self._log = folder / LOG
        self._began = time.monotonic()
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "batchq", "start", "-n", str(workers), "--burst"],
                cwd=folder,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C is for the demo alone, which then stops the pool in order.
                start_new_session=True,
            )

    def follow(self, look: Callable[[], object], *, deadline_s: float) -> Ended:
        """Calls `look` again and again until the pool has ended by itself, or the deadline is over."""
        while (code := self._process.poll()) is None and time.monotonic() - self._began < deadline_s:
            look()
            try:
                self._process.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                continue
        seconds = time.monotonic() - self._began
        look()
        return Ended(code, seconds, "" if code == 0 else self._tail())

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.poll() is not None:
            return
        for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL):
            self._process.send_signal(number)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                continue
            return


def _environment() -> dict[str, str]:
    """This process's, without settings of batchq: those stand in the folder. The workers import the same batchq."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BATCHQ_")}
    package = str(Path(__file__).resolve().parents[2])
    path = [package, *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(path)}
