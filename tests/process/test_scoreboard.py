"""The scoreboard is read while it is written, and after its writer was killed in the middle of a record."""

from __future__ import annotations

import errno
import os
import signal
import struct
import time
from pathlib import Path

import pytest

from batchq.errors import ConfigError
from batchq.job import Claim
from batchq.system.notices import Notice
from batchq.system.scoreboard import ENTRY, HEADER, MOST, SLOT, Owner, Scoreboard
from tests.unit.spool.mounts import fill, small


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


def test_room_for_a_board_is_taken_where_none_can_be_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS knows no such call, and musl refuses it on some file systems. A hole would be the end of whoever writes
    into it when the disk is full."""

    def refused(fd: int, at: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refused)
    path = tmp_path / "b"
    board = Scoreboard.at(str(path))
    board.own(Owner(17, 4711, 3, "abcdefgh"))
    size = HEADER + MOST * SLOT
    assert path.stat().st_blocks * 512 >= size
    assert len(board.slot(511).widen(8)) == 8
    assert path.stat().st_blocks * 512 >= size + 8 * ENTRY


def test_board_on_a_full_disk_is_refused(tmp_path: Path) -> None:
    """Told at the start, with the reason: not by the end of a process later."""
    with small(tmp_path / "disk") as disk:
        fill(disk)
        with pytest.raises(ConfigError, match="No space left"):
            Scoreboard.at(str(disk / "b"))


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


def test_notices_are_told_in_order_and_outlive_their_master(tmp_path: os.PathLike[str]) -> None:
    """The master's stand where a new owner finds them, in whatever part of the ring; a worker's go with its place. One
    that finds no room says so."""
    path = os.path.join(tmp_path, "b")
    board = Scoreboard.at(path)
    me = Owner(17, 4711, 3, "abcdefgh")
    board.own(me)
    mine, workers = board.notices(), board.slot(511).notices
    assert workers.note(Notice("q", "gone with the place"))
    noted = told = 0
    while mine.note(Notice("q" * 64, f"{noted:0200d}")):
        noted += 1
    assert noted >= 1000
    for _ in range(noted // 2):
        mine.tell()
        told += 1
        assert mine.note(Notice("q" * 64, f"{noted:0200d}"))
        noted += 1
    assert not mine.note(Notice("q", "no room"))
    again = Scoreboard.at(path)
    assert again.notices(511).open() == [Notice("q", "gone with the place")]
    again.own(me)
    assert again.notices(511).open() == []
    assert again.notices().open() == [Notice("q" * 64, f"{number:0200d}") for number in range(told, noted)]
    assert again.slot(0).worker == ""
    again.notices().clear()
    assert board.notices().open() == []
