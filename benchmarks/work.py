"""The handlers that the benchmarks run."""

from __future__ import annotations

import os
import time

from batchq import App

app = App()

# 16 hexadecimal digits and a line end, in one write to the end of a file: nobody tears it, and it costs 2 us.
_out = os.open(os.environ.get("BATCHQ__OUT", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@app.job
def noop(n: int, pad: str) -> None:
    """Nothing."""


@app.job
def doze(n: int, pad: str) -> None:
    """1 ms of waiting, as on a network."""
    time.sleep(0.001)


@app.job
def stamp(due_ns: int) -> None:
    """Notes how late it begins, in ns (CLOCK_REALTIME, the same for all processes of the host). Negative: early."""
    late = time.time_ns() - due_ns
    os.write(_out, b"%d\n" % late)
