"""Imports into a queue that may be full: they wait, and are right all the same."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

from batchq.job import Completed, Mark, NewJob, new_id, pack_row, random_name
from batchq.store import Store
from tests.process.rig import until

from .conftest import DEADLINE_S, Place


def work_off(store: Store, queue: str, seen: list[int], stop: threading.Event) -> None:
    """A worker that looks how much stands there before each of its claims."""
    store.register(queue, "w1", 600_000)
    while not stop.is_set():
        seen.append(store.stats(queue).counts["pending"])
        claims = store.claim(queue, "w1", 100, 0).claims
        store.complete(queue, "w1", [Completed(claim) for claim in claims])
        if not claims:
            stop.wait(0.01)


def test_an_import_never_fills_the_queue(place: Place) -> None:
    """It waits while so many jobs are pending, and all rows are in in the end."""
    place.write("rows.csv", "n\n" + "".join(f"{n}\n" for n in range(3000)))
    seen: list[int] = []
    stop = threading.Event()
    worker = threading.Thread(target=work_off, args=(place.store, "default", seen, stop))
    worker.start()
    try:
        done = place.imported("rows.csv", "--job", "load", "--max-pending", "700")
        until(lambda: place.store.stats("default").totals["completed"] == 3000, "all rows are worked off")
    finally:
        stop.set()
        worker.join()
    assert (done["code"], done["enqueued"], done["chunks"]) == (0, 3000, 7)
    assert max(seen) <= 700
    assert done["err"].count("queue default is full (700 pending): waits for room") == 1


def test_an_import_that_waits_can_be_interrupted_and_goes_on(spool: Place) -> None:
    """Nothing of the chunk that waits is in; the limit is the setting's where no flag says otherwise, and no part of
    what the import is."""
    spool.write("rows.csv", "n\n" + "".join(f"{n}\n" for n in range(1000)))
    waiting = subprocess.Popen(
        spool.command("import", "rows.csv", "--job", "load"),
        cwd=spool.folder,
        env=spool.env(BATCHQ_MAX_PENDING="500"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert waiting.stderr is not None
        for line in waiting.stderr:
            if b"is full" in line:
                break
        waiting.send_signal(signal.SIGINT)
        out, _ = waiting.communicate(timeout=DEADLINE_S)
    finally:
        waiting.kill()
    assert waiting.returncode == 130
    assert b"480 jobs enqueued" in out
    assert len(spool.jobs()) == 480
    done = spool.imported("rows.csv", "--job", "load")
    assert (done["code"], done["earlier"], done["enqueued"]) == (0, 480, 520)
    assert sorted(int(job.kwargs["n"]) for job in spool.jobs()) == list(range(1000))


def test_probes_are_not_kept_waiting_by_an_import(place: Place) -> None:
    """While a file is imported, a job on another queue is enqueued, claimed and done in well under a second."""
    place.write("rows.csv", "n\n" + "".join(f"{n}\n" for n in range(60_000)))
    store = place.store
    store.register("probe", "p1", 600_000)
    importer = subprocess.Popen(
        [sys.executable, "-m", "batchq", "import", "rows.csv", "--job", "load"],
        cwd=place.folder,
        env=place.env(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    taken = []
    try:
        until(lambda: store.stats("default").totals["enqueued"] > 0, "the import is under way")
        while importer.poll() is None:
            began = time.monotonic()
            _probe(store)
            taken.append(time.monotonic() - began)
    finally:
        importer.kill()
        importer.wait()
    assert importer.returncode == 0
    assert len(taken) > 20
    taken.sort()
    assert taken[len(taken) // 2] < 0.1, taken[-5:]
    assert taken[-1] < 1.5, taken[-5:]


def _probe(store: Store) -> None:
    job = NewJob(new_id(), pack_row("probe"))
    store.enqueue("probe", [job], Mark(random_name(), 1))
    [claim] = store.claim("probe", "p1", 1, 0).claims
    assert claim.id == job.id
    store.complete("probe", "p1", [Completed(claim)])
