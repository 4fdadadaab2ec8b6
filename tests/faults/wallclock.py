"""A wall clock that a test moves, for whole processes: `time.time` and its kin are off by what a file says.

`WallClock(folder).env()` is the environment of a process that obeys it; `move(seconds)` moves it while it runs. The
monotonic clock stays as it is. It works by a `sitecustomize` module, so only for Python processes.
"""

from __future__ import annotations

import os
from pathlib import Path

_SHIM = """
import os as _os, time as _time

_path = _os.environ.get("WALLCLOCK_OFFSET")


def _offset_ns():
    try:
        with open(_path) as file:
            return int(float(file.read() or 0) * 1e9)
    except (OSError, ValueError):
        return 0


if _path:
    _real_ns = _time.time_ns
    _real_gettime = _time.clock_gettime
    _time.time_ns = lambda: _real_ns() + _offset_ns()
    _time.time = lambda: _time.time_ns() / 1e9
    _time.clock_gettime = lambda clock: _time.time() if clock == _time.CLOCK_REALTIME else _real_gettime(clock)
"""


class WallClock:
    """One clock, obeyed by all processes that are started with `env`."""

    def __init__(self, folder: Path, offset_s: float = 0.0) -> None:
        self._shim = folder / "wallclock"
        self._shim.mkdir(exist_ok=True)
        (self._shim / "sitecustomize.py").write_text(_SHIM)
        self._file = self._shim / f"offset-{os.urandom(4).hex()}"
        self.move(offset_s)

    def move(self, offset_s: float) -> None:
        """From now on it is off by so many seconds. In one step: no reader sees half of it."""
        new = self._file.with_suffix(".new")
        new.write_text(str(offset_s))
        os.replace(new, self._file)

    def env(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self._shim), "WALLCLOCK_OFFSET": str(self._file)}
