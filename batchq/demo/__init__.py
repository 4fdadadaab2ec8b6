"""`batchq demo`: the main job on generated work, on a store that is thrown away afterwards.

Jobs of six kinds, each on its own queue, are enqueued, and a real `batchq start` with eight workers drains them: rows
of a CSV into SQLite, webhooks to a local server that refuses many, CPU work, jobs that fail for good, jobs that kill
their own worker, delayed jobs. The summary compares what the store counts with what others counted: the SQLite table,
the server, and a log in which each attempt signs. Nothing in it is known beforehand.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import FrameType

from batchq.demo import plan, progress, show, summary
from batchq.demo.place import Place
from batchq.demo.pool import Pool
from batchq.demo.receiver import Receiver
from batchq.demo.work import app

#: Workers of the pool. Eight, also on few CPUs: most of the work waits.
WORKERS = 8
#: A run that takes longer hangs; a slow machine needs a third of it.
DEADLINE_S = 180.0


def run(url: str | None = None, *, seed: int | None = None, keep: bool = False, as_json: bool = False) -> int:
    """Runs the demo and prints its summary: 0 where all numbers add up, else 1.

    `url`: a Redis, used under a prefix of its own, or `spool:PATH` for a spool that does not exist yet; None: a spool
    in a temporary folder. `seed` repeats an input. `keep` leaves store and files where they are. Raises ConfigError for
    a url that can't be used, StoreUnavailable.
    """
    seed = random.SystemRandom().randrange(1, 10**6) if seed is None else seed
    planned = plan.draw(seed)
    watch = progress.silent() if as_json else progress.chosen([kind.name for kind in planned.kinds])
    with _ended_by_sigterm(), Place(url, keep=keep) as place, closing(watch):
        app.configure(place.flags)
        watch.say(f"batchq demo: {WORKERS} workers on {place.shown}, seed {seed}")
        with closing(app):
            found = _work(planned, place, watch)
        watch.close()
        show.as_json(found, place) if as_json else show.for_people(found, place)
        return 0 if found.ok else 1


def _work(planned: plan.Plan, place: Place, watch: progress.Watch) -> summary.Summary:
    """Enqueues, lets the workers drain, and asks everybody who counted."""
    app.store.info()
    place.used = True
    with Receiver(planned.seed) as receiver:
        plan.prepare(planned, place.folder)
        began = time.monotonic()
        plan.enqueue(planned, place.folder, receiver.url)
        enqueue_s = time.monotonic() - began
        watch.say(f"{planned.jobs} jobs enqueued in {enqueue_s:.1f} s")
        with Pool(place.folder, workers=WORKERS) as pool:
            ended = pool.follow(lambda: watch.look(app.stats()), deadline_s=DEADLINE_S)
        return summary.collect(app, planned, place.folder, receiver.seen(), ended, enqueue_s)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM unwinds like an exception, so that workers and throw-away store go too."""

    def leave(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
