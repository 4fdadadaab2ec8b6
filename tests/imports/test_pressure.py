"""Imports into a queue that may be full: they wait, and are right all the same."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from batchq.job import Completed, Mark, NewJob, new_id, pack_row, random_name
from batchq.store import Store
from tests.process.rig import Rig, opened, until
from tests.servers import Server, flavours

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
    said = place.folder / "said"
    command = place.command("import", "rows.csv", "--job", "load", "--max-pending", "700", "--json")
    with said.open("wb") as err:
        importer = subprocess.Popen(command, cwd=place.folder, env=place.env(), stdout=subprocess.PIPE, stderr=err)
    try:
        # Nobody makes room before: a quick worker and a slow import would never meet.
        until(lambda: b"is full" in said.read_bytes(), "it waits for room")
        worker.start()
        out, _ = importer.communicate(timeout=DEADLINE_S)
        until(lambda: place.store.stats("default").totals["completed"] == 3000, "all rows are worked off")
    finally:
        importer.kill()
        stop.set()
        if worker.ident is not None:
            worker.join()
    done = json.loads(out.splitlines()[-1])
    assert (importer.returncode, done["enqueued"], done["chunks"]) == (0, 3000, 7)
    assert max(seen) <= 700
    assert said.read_text().count("queue default is full (700 pending): waits for room") == 1


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
            if b"waiting for room" in line:
                break
        # Not how long it may take: who knows?
        assert line == b"rows.csv: 480 rows, waiting for room\n"
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
    """While a file is imported, a job on another queue is enqueued, claimed and done soon."""
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
    assert taken[-1] < 5, taken[-5:]


def _probe(store: Store) -> None:
    job = NewJob(new_id(), pack_row("probe"))
    store.enqueue("probe", [job], Mark(random_name(), 1))
    [claim] = store.claim("probe", "p1", 1, 0).claims
    assert claim.id == job.id
    store.complete("probe", "p1", [Completed(claim)])


PROBES = """
@app.job(queue="busy")
def small(n):
    pass


@app.job(queue="probe")
def probe():
    note("S")


@app.job(queue="rows")
def load(n: str):
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("flavour", flavours())
def test_a_large_import_leaves_the_server_responsive(flavour: str, tmp_path: Path, prefix: str) -> None:
    """500,000 rows beside four busy workers: no call of the server is slow, memory stays small, probes start at once,
    and it says how far it is."""
    server = Server(flavour, "--slowlog-log-slower-than", "20000", "--slowlog-max-len", "1000")
    try:
        with opened(tmp_path, flavour, server.url, prefix) as rig:
            _import_beside_probes(rig, server)
    finally:
        server.stop()


def _import_beside_probes(rig: Rig, server: Server) -> None:
    rig.app(PROBES)
    with open(tmp := rig.folder / "rows.csv", "w") as file:
        file.write("n\n")
        file.writelines(f"{n}\n" for n in range(500_000))
    rig.start("-q", "probe:100", "-q", "busy", n=4, queue="probe")
    importer = subprocess.Popen(
        [sys.executable, "-m", "batchq", "import", tmp.name, "--job", "load", "-q", "rows"],
        cwd=rig.folder,
        env=rig.env(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    probes: list[tuple[str, int]] = []
    memory = 0
    try:
        while importer.poll() is None:
            rig.enqueue_many("small", [(n,) for n in range(200)], "busy")
            probes.append((rig.enqueue("probe", queue="probe"), time.monotonic_ns()))
            with contextlib.suppress(psutil.Error):
                memory = max(memory, psutil.Process(importer.pid).memory_info().rss)
            time.sleep(0.1)
        assert importer.stderr is not None
        told = importer.stderr.read().decode()
    finally:
        importer.kill()
        importer.wait()
    assert importer.returncode == 0, told
    assert "rows/s" in told
    rig.until(lambda: len(rig.ledger.starts()) >= len(probes), "all probes have run", 30)
    began = {entry.job: entry.at_ns for entry in rig.ledger.starts()}
    waits = sorted((began[job] - sent) / 1e9 for job, sent in probes)
    assert waits[int(len(waits) * 0.99) - 1] < 0.5, waits[-10:]
    assert memory < 200 << 20
    assert rig.stats("rows").counts["pending"] == 500_000
    # By the server's own CPU time a chunk is short, whoever else is at work here; by the clock nearly all are.
    chunks = 500_000 // 480
    used = server.client.info("cpu")
    assert (used["used_cpu_user"] + used["used_cpu_sys"]) / chunks < 0.02
    slow = [entry for entry in server.client.slowlog_get(1000) if b"EVALSHA" in entry["command"]]
    assert len(slow) < chunks / 10, slow[:3]
