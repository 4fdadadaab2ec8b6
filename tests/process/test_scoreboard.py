"""The scoreboard is read while it is written, and after its writer was killed in the middle of a record."""

from __future__ import annotations

import os
import signal
import struct
import time

from batchq.job import Claim
from batchq.system.scoreboard import Scoreboard


def claim(number: int) -> Claim:
    return Claim("q" * (number % 60 + 1), f"{number:020d}", number, b"{}")


def test_reading_while_the_worker_writes_mixes_no_two_runs() -> None:
    """Each whole reading is of one run: its id, token, start and limit belong together."""
    board = Scoreboard(1)
    slot = board.slot(0)
    pid = os.fork()
    if pid == 0:
        number = 0
        while True:
            number += 1
            slot.begin(claim(number), f"handler-{number}", number, number)
            slot.end()
    try:
        seen: set[int] = set()
        until = time.monotonic() + 30.0
        while len(seen) < 2000 and time.monotonic() < until:
            run = slot.run()
            if run is None or run.torn:
                continue
            seen.add(run.number)
            expected = claim(run.number)
            assert run.is_of(expected), f"a mixture: {run}"
            assert (run.started_ns, run.timeout_ms) == (run.number, run.number), f"a mixture: {run}"
            assert run.handler == f"handler-{run.number}"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert len(seen) == 2000, "too few runs were seen to prove anything"


def test_record_that_was_cut_off_counts_as_a_start() -> None:
    """Only the front number is written: the run is torn and, to be on the safe side, under way."""
    board = Scoreboard(1)
    slot = board.slot(0)
    assert slot.run() is None
    slot.begin(claim(1), "handler", 1, 0)
    slot.end()
    run = slot.run()
    assert run is not None
    assert (run.under_way, run.torn) == (False, False)
    slot._memory[slot._at + 160 : slot._at + 168] = struct.pack("<Q", 2)
    run = slot.run()
    assert run is not None
    assert (run.number, run.under_way, run.torn) == (2, True, True)
