"""What is asked of every system: one function a question, each answers figures by name."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable

import psutil
import rig

from peers import job
from peers.trial import Failed, Note, Trial

Figures = dict[str, float]

WORKERS = 2


def one(trial: Trial, args: argparse.Namespace) -> Figures:
    """One producer, one call after the other."""
    sent = trial.enqueue("one", seconds=args.seconds)
    return {"one_per_s": sent["jobs"] / sent["seconds"]}


def drain(trial: Trial, args: argparse.Namespace) -> Figures:
    """One producer in bulk; what that takes of Redis; then two workers, from the first job to the last."""
    trial.enqueue("one", jobs=1)
    empty = 0 if trial.system.has_spool else trial.memory()
    sent = trial.enqueue("many", seconds=args.seconds, jobs=args.most)
    jobs = sent["jobs"] + 1
    figures = {"many_per_s": sent["jobs"] / sent["seconds"]}
    if not trial.system.has_spool:
        figures["bytes_a_job"] = (trial.memory() - empty) / sent["jobs"]
    trial.start(WORKERS)
    trial.expect(lambda: trial.count() > 0, "the first job began")
    before, first = trial.spent(), trial.count()
    # Of slow systems a part of the jobs is enough.
    trial.wait(lambda: trial.count() >= jobs, "all jobs ran", 2 * args.seconds + 1)
    after, last = trial.spent(), trial.count()
    began = sorted(note.noted_ns for note in trial.notes())
    if len(began) < 2:
        raise Failed(f"{trial.system.name}: only {len(began)} jobs ran")
    figures["drain_per_s"] = (len(began) - 1) / ((began[-1] - began[0]) / 1e9)
    if last > first:
        figures["workers_us"] = 1e6 * (after.workers - before.workers) / (last - first)
        if not trial.system.has_spool:
            figures["redis_us"] = 1e6 * (after.redis - before.redis) / (last - first)
    return figures


def times(trial: Trial, args: argparse.Namespace) -> Figures:
    """How soon two idle workers begin a job, 5 to 20 ms apart; how late one that was due in 0.2 to 1.2 s begins."""
    trial.start(WORKERS)
    trial.enqueue("one", jobs=20)
    trial.expect(lambda: trial.count() >= 20, "the first 20 jobs ran")
    time.sleep(1.0)  # Idle again: what polls with growing pauses has come to its longest.
    figures: Figures = {}
    for mode, name in (("paced", "pickup"), ("delayed", "late")):
        first = trial.count()
        trial.enqueue(mode, jobs=args.samples)
        last = first + args.samples
        trial.wait(lambda last=last: trial.count() >= last, "they ran", 8.0)
        waited = [(note.noted_ns - note.at_ns) / 1e6 for note in trial.notes(first)]
        if len(waited) < args.samples:
            raise Failed(f"{trial.system.name}: {len(waited)} of {args.samples} {mode} jobs ran within 8 s")
        figures[f"{name}_p50_ms"] = rig.percentile(waited, 0.5)
        figures[f"{name}_p99_ms"] = rig.percentile(waited, 0.99)
    figures["early"] = sum(wait < 0 for wait in waited)
    return figures


def retry(trial: Trial, args: argparse.Namespace) -> Figures:
    """Jobs that fail once and are tried again as soon as the system can: from the first try to the last success."""
    jobs = trial.enqueue("many", jobs=args.failing, kind="fail")["jobs"]
    trial.start(WORKERS)
    trial.expect(lambda: trial.count() > 0, "the first job began")
    trial.wait(lambda: trial.count() >= 2 * jobs, "all jobs went well", 10.0)
    notes = trial.notes()
    good = [note for note in notes if not note.number & job.FAILED]
    if not good:
        raise Failed(f"{trial.system.name}: no job was tried again within 10 s")
    return {"retry_per_s": len(good) / _seconds(notes[0], max(good, key=lambda note: note.noted_ns))}


def heavy(trial: Trial, args: argparse.Namespace) -> Figures:
    """Jobs of 20 ms of pure Python: the time that two workers take, by the time that two cores would."""
    jobs = trial.enqueue("many", jobs=args.heavy, kind="heavy")["jobs"]
    trial.start(WORKERS)
    trial.expect(lambda: trial.count() >= 2 * jobs, "all jobs ran", 20 + 10 * jobs * job.HEAVY_S)
    notes = sorted(trial.notes(), key=lambda note: note.noted_ns)
    return {"heavy": _seconds(notes[0], notes[-1]) / (jobs * job.HEAVY_S / WORKERS)}


def idle(trial: Trial, args: argparse.Namespace) -> Figures:
    """Memory of eight workers, and all that belongs to them, with nothing to do. Shared pages count once."""
    trial.start(8)
    time.sleep(args.settle)
    trial.expect(lambda: len(trial.processes()) >= 8, "eight workers are up")
    total = 0
    for process in trial.processes():
        with contextlib.suppress(psutil.Error):
            info = process.memory_full_info()
            total += getattr(info, "pss", info.rss)
    return {"idle_mib": total / 2**20}


def _seconds(first: Note, last: Note) -> float:
    return (last.noted_ns - first.noted_ns) / 1e9


QUESTIONS: dict[str, Callable[[Trial, argparse.Namespace], Figures]] = {
    "one": one,
    "drain": drain,
    "times": times,
    "retry": retry,
    "heavy": heavy,
    "idle": idle,
}
