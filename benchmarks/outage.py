"""How soon does the work go on after Redis was killed, what does an enqueue cost meanwhile, and what is lost?

The server (with an append-only file) gets a SIGKILL while a pool works on jobs of 5 ms, and is started again some
seconds later. A producer enqueues all the while: into the fallback spool, from which the pool's master forwards.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import rig
import work

WORKERS = 4
#: Over so many seconds a rate is taken.
WINDOW_S = 0.25


class Outcome(NamedTuple):
    """What one outage came to; seconds count from the start of the server's process."""

    answers_s: float
    first_s: float
    full_rate_s: float
    #: Seconds that each enqueue took while there was no server.
    enqueues: list[float]
    lost: int
    extra: int


class Killable:
    """A server that comes back with what it had."""

    def __init__(self, kind: str | None, folder: Path) -> None:
        self._kind, self._folder, self.port = kind, folder, rig.free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> int:
        """Answers when its process was started, in ns."""
        began = time.time_ns()
        self._process = rig.start_server(self._kind, self._folder, self.port, "yes")
        rig.wait_until(lambda: rig.answers(self.port), "the server answers", look_s=0.002)
        return began

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def ended(out: Path) -> list[tuple[int, int]]:
    """(number of the job, when it ended in ns), by time."""
    pairs = (line.split() for line in out.read_bytes().splitlines())
    return sorted(((int(n), int(at)) for n, at in pairs), key=lambda pair: pair[1])


def full_rate_after(times: list[int], since: int, wanted: float) -> float:
    """Seconds from `since` to the first window in which jobs end at nine tenths of the wanted rate."""
    after = [(at - since) / 1e9 for at in times if at > since]
    need = max(1, int(0.9 * wanted * WINDOW_S))
    for first, last in zip(after, after[need - 1 :], strict=False):
        if last - first <= WINDOW_S:
            return first
    return float("nan")


@contextmanager
def spooling(folder: Path) -> Iterator[None]:
    """Pool and producer fall back to this folder, wherever it lies."""
    settings = {"BATCHQ_SPOOL": str(folder), "BATCHQ_FALLBACK_EPHEMERAL": "yes"}
    os.environ |= settings
    try:
        yield
    finally:
        for name in settings:
            del os.environ[name]


def outage(args: argparse.Namespace) -> Outcome:
    with TemporaryDirectory(dir=args.folder) as name, spooling(Path(name) / "spool"):
        folder = Path(name)
        out = folder / "ended"
        out.touch()
        server = Killable(args.server, folder)
        try:
            work.app.configure({"url": server.url})
            work.note.enqueue_many((n, rig.PAD) for n in range(args.jobs))
            with rig.workers(server.url, WORKERS, work.app, out):
                rig.wait_until(lambda: len(ended(out)) >= args.jobs // 4, "a quarter is done", look_s=0.02)
                before = [at for _, at in ended(out)]
                took, sent = [], args.jobs
                server.kill()
                until = time.monotonic() + args.away
                while time.monotonic() < until or len(took) < 2:
                    began = time.perf_counter()
                    work.note.enqueue(sent, rig.PAD)
                    took.append(time.perf_counter() - began)
                    sent += 1
                    time.sleep(0.01)
                back = server.start()
                answers = time.time_ns()
                with suppress(TimeoutError):  # Then some are lost.
                    rig.wait_until(lambda: len({n for n, _ in ended(out)}) >= sent, "all are done", look_s=0.05)
            found = ended(out)
            work.app.close()
        finally:
            server.kill()
    times, different = [at for _, at in found], len({n for n, _ in found})
    rate = (len(before) - 1) / ((before[-1] - before[0]) / 1e9)
    first = next(at for at in times if at > back)
    return Outcome(
        answers_s=(answers - back) / 1e9,
        first_s=(first - back) / 1e9,
        full_rate_s=full_rate_after(times, back, rate),
        enqueues=took,
        lost=sent - different,
        extra=len(found) - different,
    )


def spread(values: list[float]) -> str:
    return f"{rig.middle(values):.2f} s  ({min(values):.2f}-{max(values):.2f})"


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    if store != "redis":
        return  # A spool is not away while its disk is there.
    runs = [outage(args) for _ in range(args.repeat)]
    rig.row(store, "the server answers", spread([run.answers_s for run in runs]))
    rig.row(store, "first job done", spread([run.first_s for run in runs]))
    rig.row(store, "full rate again", spread([run.full_rate_s for run in runs]))
    first = [1000 * run.enqueues[0] for run in runs]
    later = [1000 * took for run in runs for took in run.enqueues[1:]]
    rig.row(store, "first enqueue while it is away", f"{rig.middle(first):.0f} ms")
    told = f"median {rig.percentile(later, 0.5):.2f}  p99 {rig.percentile(later, 0.99):.2f}  max {max(later):.2f} ms"
    rig.row(store, "those after it", told, f"n={len(later)}")
    rig.row(store, "lost", str(sum(run.lost for run in runs)))
    rig.row(store, "run twice", f"at most {max(run.extra for run in runs)} of {WORKERS} workers in a run")


if __name__ == "__main__":
    rig.main(
        __doc__,
        measure,
        jobs=rig.Option(4000, 1000, "N", "jobs that wait at the beginning"),
        away=rig.Option(5.0, 1.0, "S", "seconds between the kill and the start"),
    )
