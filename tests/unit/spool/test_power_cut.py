"""A power cut: everything is stopped, what has reached the disk is copied, mounted, and opened.

The disk is a file that holds a journaled ext4: what its own file system has not sent there is lost, as it would be. It
does not model a disk that lies about its cache.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batchq.job import Completed, NewJob, pack_row
from batchq.lifecycle import Word
from batchq.spool import SpoolStore, drop, inbox
from batchq.spool.check import Level, check
from batchq.spool.ledger import Durability
from tests.unit.spool.helpers import Q, check_books, fork, wait_for
from tests.unit.spool.mounts import mounted

MIB = 96


@contextmanager
def disk(folder: Path, image: Path) -> Iterator[Path]:
    """The image, mounted with a journal."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("CUTS NO POWER: needs mkfs.ext4; durability is not tested here")
    if not image.exists():
        with image.open("wb") as file:
            file.truncate(MIB << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True)
    # A journal that is written each minute: nothing is saved by its timer alone.
    with mounted(folder, "-o", "loop,commit=60", str(image)) as place:
        yield place


class Note:
    """What was promised, written outside of the disk whose power is cut."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def __call__(self, names: list[str]) -> None:
        os.write(self._fd, "".join(f"{name}\n" for name in names).encode())


def produce(spool: Path, notes: Path, name: str, durability: Durability) -> None:
    """Enqueues one by one and in batches, and drops files."""
    store = SpoolStore(spool, durability=durability)
    accepted = Note(notes / "accepted")
    for n in range(10**9):
        ids = [f"{name}-{n}-{m}" for m in range(1 + n % 3)]
        jobs = [NewJob(id, pack_row("x", [id])) for id in ids]
        if n % 5 == 4:
            drop(spool, [(Q, job) for job in jobs])
            Note(notes / "dropped")(ids)
        else:
            assert set(store.enqueue(Q, jobs)) == {Word.OK}
            accepted(ids)


def consume(spool: Path, notes: Path, durability: Durability) -> None:
    """Takes files in, claims, settles."""
    store = SpoolStore(spool, durability=durability)
    started, completed = Note(notes / "started"), Note(notes / "completed")
    store.register(Q, "w", 60_000)
    while True:
        store.sweep_inbox()
        claims = store.claim(Q, "w", 16, 0).claims
        started([claim.id for claim in claims])
        assert set(store.complete(Q, "w", [Completed(claim) for claim in claims])) <= {Word.OK}
        completed([claim.id for claim in claims])
        time.sleep(0.005)


def noted(path: Path) -> set[str]:
    return set(path.read_text().split()) if path.exists() else set()


@pytest.mark.parametrize("durability", ["power", "strict", "process"])
def test_power_cut_takes_no_more_than_the_mode_says(tmp_path: Path, durability: Durability) -> None:
    """power: nothing accepted. strict: nothing acknowledged. process: the tail. None: a torn ledger or file."""
    image, after = tmp_path / "image", tmp_path / "after"
    notes = tmp_path / "notes"
    notes.mkdir()
    with disk(tmp_path / "disk", image) as place:
        spool = place / "s"
        SpoolStore(spool).close()
        subprocess.run(["sync", "-f", str(place)], check=True)
        children = [fork(lambda n=n: produce(spool, notes, f"p{n}", durability)) for n in range(2)]
        children.append(fork(lambda: consume(spool, notes, durability)))
        try:
            wait_for(
                lambda: len(noted(notes / "completed")) > 150 and len(noted(notes / "dropped")) > 20, "some work", 60
            )
            for pid in children:
                os.kill(pid, signal.SIGSTOP)
            for pid in children:
                assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
            # What was promised by now is what the cut must not take.
            promised = {name: noted(notes / name) for name in ("accepted", "dropped", "started", "completed")}
            shutil.copyfile(image, after)
        finally:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    with disk(tmp_path / "again", after) as place:
        spool = place / "s"
        found = [one for one in check(str(spool)) if one.level is not Level.NOTE]
        assert not found
        check_books(spool)
        store = SpoolStore(spool)
        while inbox.census(spool).files:
            store.sweep_inbox()
        standing = {id for (id,) in store._ledger.look("SELECT id FROM job")}
        lost = (promised["accepted"] | promised["dropped"]) - standing - promised["started"]
        again = promised["completed"] & standing
        print(f"{durability}: { ({k: len(v) for k, v in promised.items()}) }, lost {len(lost)}, run again {len(again)}")
        # Files are flushed in every mode.
        assert not lost & promised["dropped"]
        if durability != "process":
            assert not lost
        if durability == "strict":
            assert not again
        assert os.listdir(spool / "inbox" / "bad") == []
        store.close()
        check_books(spool)
