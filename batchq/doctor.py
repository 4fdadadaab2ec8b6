"""What is wrong here, and what to do about it: settings, app, store, leases, spool. Reads; the trial of the store's
moves alone writes, under a prefix of its own, and removes what it wrote.
"""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from batchq.app import App
from batchq.clock import SYSTEM
from batchq.config import Settings, masked
from batchq.errors import AppError, BatchqError, SpoolError, StoreDenied, StoreError, StoreFull
from batchq.gates import Admission, Gate
from batchq.job import Buried, Completed, NewJob, Released, Retried, Snoozed, new_id, pack_error, pack_row, random_name
from batchq.kinds import show_duration
from batchq.lifecycle import COUNTED, State
from batchq.selection import host_of
from batchq.store import Concern, Store
from batchq.stores import open_store
from batchq.system.pipes import wait_for
from batchq.tally import NewBatch

Level = Literal["ok", "warn", "bad"]

#: Looks at the store's clock, of which the middle one counts.
PINGS = 15
#: A call that takes so long costs throughput, or makes a pool useless.
SLOW_MS, TOO_SLOW_MS = 10.0, 200.0
#: So far apart clocks make delays of `enqueue_at` wrong; so far, most likely one of them is not set.
SKEW_MS, WRONG_CLOCK_MS = 2_000, 60_000
#: Below that much room a spool is nearly full, or refuses.
LOW_BYTES, NO_BYTES = 1 << 30, 64 << 20
LOW_INODES, NO_INODES = 10_000, 500


class Finding(NamedTuple):
    """One thing that was looked at."""

    level: Level
    #: What was looked at: settings, app, store, queues, spool ...
    about: str
    #: What was found.
    text: str
    #: What to do; "" where nothing is to be done.
    advice: str = ""


def examine(app: App, load: Callable[[], App | None]) -> Iterator[Finding]:
    """All checks, each finding as it is made. `app` is on the store that is meant, its settings were read.

    `load` imports the configured app, and answers None where none is configured.
    """
    settings = app.settings
    # What this look itself has set is nobody's setting.
    given = [f"{key} ({source})" for key, source in settings.sources.items() if source != "--socket-timeout"]
    yield Finding("ok", "settings", f"given are {', '.join(given)}" if given else "all by default")
    yield from _app(load, settings)
    store = app.store
    try:
        yield from _store(store, settings)
        masters = store.masters()
        yield from _queues(store, masters)
        yield from _leases(store)
    except StoreError as error:
        yield Finding("bad", "store", str(error), "start it, or mend url, network or rights; batchq config url")
        masters = []
    yield from _spool(settings, store.traits.kind, masters)


def _app(load: Callable[[], App | None], settings: Settings) -> Iterator[Finding]:
    try:
        app = load()
    except AppError as error:
        yield Finding("bad", "app", str(error).splitlines()[0], "batchq check shows where; batchq start can't run it")
        return
    if app is None:
        yield Finding("warn", "app", "none is configured: its handlers were not looked at", "set BATCHQ_APP=module:app")
        return
    names = app.registry.names()
    if not names:
        yield Finding("bad", "app", "it has no handlers", "every job would be parked; register one with @app.job")
        return
    yield Finding("ok", "app", f"{len(names)} handlers on queues {', '.join(app.registry.queues())}")
    meant, looked_at = _place(app.settings), _place(settings)
    if meant != looked_at:
        text = f"its code names another store ({meant}) than this looks at ({looked_at}): code goes before variables"
        yield Finding("bad", "app", text, "name the store in one place; batchq start --url goes before both")
    unlimited = [name for name in names if not app.registry.get(name).timeout_ms]
    if unlimited and settings.timeout_ms is None:
        shown = ", ".join(unlimited[:5]) + (" ..." if len(unlimited) > 5 else "")
        yield Finding("warn", "app", f"no time limit: {shown}", "a hung handler keeps its worker; set timeout")


def _place(settings: Settings) -> str:
    """The store and its prefix, the same for any way to write it. Connects to nothing."""
    store = open_store(settings.store_url, settings, make=False)
    place = str(getattr(store, "destination", masked(settings.store_url)))
    store.close()
    return place


def _store(store: Store, settings: Settings) -> Iterator[Finding]:
    took: list[float] = []
    for _ in range(PINGS):
        began = SYSTEM.monotonic()
        there = store.now_ms()
        took.append((SYSTEM.monotonic() - began) * 1000)
    here = SYSTEM.now_us() // 1000
    info = store.info()
    middle = statistics.median(took)
    slow: Level = "bad" if middle > TOO_SLOW_MS else "warn" if middle > SLOW_MS else "ok"
    advice = "move the pool nearer to the store, or find what loads it" if slow != "ok" else ""
    yield Finding(
        slow, "store", f"{info.version} at {info.url} answers in {middle:.{1 if middle >= 1 else 2}f} ms", advice
    )
    skew = abs(there - here)
    if skew > SKEW_MS:
        level: Level = "bad" if skew > WRONG_CLOCK_MS else "warn"
        text = f"its clock and this host's are {show_duration(skew)} apart"
        yield Finding(level, "clock", text, "run NTP on both: times given to enqueue_at are by this host's clock")
    else:
        yield Finding("ok", "clock", f"it and this host's are {skew} ms apart")
    for words in store.warnings():
        grave = isinstance(words, Concern) and words.grave
        yield Finding("bad" if grave else "warn", "store", str(words), "see Redis in production, in the documentation")
    if info.kind == "redis":
        yield rights_of(settings)
        if settings.fallback and settings.forward_confirm != "reply":
            yield _confirms(store, settings)


def _confirms(store: Store, settings: Settings) -> Finding:
    """Whether what is forwarded will ever leave the spool."""
    from batchq.redis.store import RedisStore

    assert isinstance(store, RedisStore)
    try:
        store.check_confirm(settings.forward_confirm, syncs=True)
    except (SpoolError, StoreFull) as error:
        return Finding("bad", "spool", str(error), "until then nothing is forwarded, or nothing leaves the spool")
    return Finding("ok", "spool", f"forward_confirm: that server answers to {settings.forward_confirm}")


def rights_of(settings: Settings) -> Finding:
    """Makes every move and every look once, under a prefix that nobody uses, and takes its traces away."""
    from dataclasses import replace

    from batchq.redis.store import RedisStore

    trial = replace(settings, prefix=f"{settings.prefix}:doctor-{random_name(8)}", mark_ttl_ms=60_000, remember_ms=0)
    store = open_store(settings.store_url, trial)
    assert isinstance(store, RedisStore)
    try:
        _try_moves(store)
        return Finding("ok", "rights", "every move is allowed to this user")
    except StoreError as error:
        return Finding("bad", "rights", str(error), "the least rights for an ACL are in Redis in production")
    finally:
        with contextlib.suppress(StoreError):  # The finding says why.
            store.forget("doctor")
        store.close()


def _try_moves(store: Store) -> None:
    """Every move, and every look."""
    queue, worker, batch = "doctor", f"doctor.{random_name(8)}.0.{random_name(8)}", new_id()
    error = pack_error("Trial", "batchq doctor", attempt=1, at_ms=0, trace="a long way\n" * 100)
    row = pack_row("doctor")
    store.begin(queue, NewBatch(batch))
    jobs = [NewJob(new_id(), row, priority, given=True, batch=batch) for priority in (0, 0, 0, 0, 0, 1)]
    store.enqueue(queue, jobs)
    store.conclude(queue, batch)
    store.register(queue, worker, 60_000)
    waiter = store.wake_waiter([queue])
    waiter.arm()
    wait_for(waiter.fileno(), seconds=1.0)
    heard = waiter.take()
    waiter.close()
    if not heard:
        raise StoreDenied("blpop: the hint of an enqueue was not heard; this user needs that right, see docs/redis.md")
    claims = store.claim(queue, worker, len(jobs), 0).claims
    store.renew(queue, [worker], 60_000)
    # One passes, the other waits.
    gates = (Gate("doctor", limit=1, rate=1, period_ms=1000, threshold=1, reset_ms=1000),)
    store.admit(queue, worker, [Admission(claim, gates) for claim in claims[:2]])
    retried, _, buried, snoozed, released, completed = claims
    store.retry(queue, worker, [Retried(retried._replace(gated=True), 60_000, 5, error)])
    store.bury(queue, worker, [Buried(buried, "trial", error)])
    store.snooze(queue, worker, [Snoozed(snoozed, 60_000)])
    store.release(queue, worker, [Released(released)])
    store.complete(queue, worker, [Completed(completed, b"1", 60_000)])
    for state in COUNTED:
        if cursor := store.jobs(queue, state, limit=1).cursor:
            store.jobs(queue, state, cursor=cursor, limit=1)
    store.gates(queue)
    store.trip(queue, "doctor", 1000)
    store.mend(queue, "doctor")
    store.promote(queue)
    store.get(queue, buried.id)
    store.requeue(queue, [buried.id])
    store.pause(queue)
    store.resume(queue)
    store.leases(queue)
    store.seal(queue, worker)
    store.reap(queue, worker, [])
    store.cancel(queue, [claim.id for claim in claims])
    store.purge(queue, State.COMPLETED, [completed.id])
    store.batch(queue, batch)
    store.batches(queue)
    store.stats(queue)
    store.publish(worker, {"id": worker}, 1000)
    store.publish(worker, {}, 0)


def _queues(store: Store, masters: list[dict[str, Any]]) -> Iterator[Finding]:
    served = {name for master in masters for name in master.get("queues", [])}
    workers = [worker for master in masters for worker in master.get("workers", [])]
    yield Finding("ok", "masters", f"{len(masters)} alive, {len(workers)} workers")
    if stopped := [worker for worker in workers if worker.get("state") == "stopped"]:
        pids = ", ".join(f"{worker['pid']} on {worker['host']}" for worker in stopped[:5])
        level: Level = "bad" if len(stopped) == len(workers) else "warn"
        text = f"{len(stopped)} of {len(workers)} workers are stopped by a signal: {pids}"
        yield Finding(level, "workers", text, "kill -CONT, or kill -KILL: then their master replaces them")
    for name in store.queues():
        stats = store.stats(name)
        counts = stats.counts
        if stats.paused:
            yield Finding("warn", "queues", f"{name} is paused", f"batchq resume {name}")
        waiting = counts["pending"] + counts["delayed"]
        if waiting and name not in served:
            text = f"{name}: {waiting} jobs wait and no master serves it"
            yield Finding("bad" if counts["pending"] else "warn", "queues", text, f"batchq start -q {name} module:app")


def _leases(store: Store) -> Iterator[Finding]:
    none_left = True
    for name in store.queues():
        leases = store.leases(name)
        gone = [worker for worker, end in leases.ends.items() if end <= leases.now_ms]
        if not gone:
            continue
        none_left = False
        hosts = sorted({host_of(worker) for worker in gone})
        counts = store.stats(name).counts
        text = (
            f"{name}: {len(gone)} workers of {', '.join(hosts)} left their leases, {counts['active']} jobs are active"
        )
        # Where all have left theirs, whoever kept the time for them hangs: what waits, waits for ever.
        waits = len(gone) == len(leases.ends) and counts["pending"] + counts["delayed"] > 0
        advice = "any master that serves the queue reaps them; is theirs stopped (SIGSTOP), or its host gone?"
        yield Finding("bad" if counts["active"] or waits else "warn", "leases", text, advice)
    if none_left:
        yield Finding("ok", "leases", "none is left over")


def _spool(settings: Settings, kind: str, masters: list[dict[str, Any]]) -> Iterator[Finding]:
    from batchq.fallback.producer import fault_of
    from batchq.spool import fs

    is_store = kind == "spool"
    path = settings.own_spool
    if not is_store and not settings.fallback:
        yield Finding("warn", "spool", "there is no fallback", "while Redis is away producers get StoreUnavailable")
        return
    fault = fault_of(path, ephemeral=is_store or settings.fallback_ephemeral)
    if fault:
        yield Finding("bad", "spool", fault.removeprefix("spool: "), "until then there is no fallback")
        return
    root = fs.real_path(path)
    if not os.path.exists(root):
        yield Finding("ok", "spool", f"{root}: not made yet, it can be")
        return
    wrong = fs.fault_of_dir(root)
    if wrong:
        yield Finding("bad", "spool", f"{root}: {wrong}", "batchq refuses it")
        return
    system = fs.kind_of_fs(root)
    if fs.is_remote(system):
        yield Finding("bad", "spool", f"{root} lies on {system}", "a ledger needs a local disk; set BATCHQ_SPOOL")
    yield _room(root)
    yield from _inbox(root, is_store, masters)


def _room(root: str) -> Finding:
    from batchq.spool import fs

    free, inodes = fs.free_bytes(root), fs.free_inodes(root)
    level: Level = "ok"
    if free < LOW_BYTES or (inodes is not None and inodes < LOW_INODES):
        level = "warn"
    if free < NO_BYTES or (inodes is not None and inodes < NO_INODES):
        level = "bad"
    text = f"{root}: {free / (1 << 30):.1f}GiB free" + (f", {inodes:,} inodes" if inodes is not None else "")
    return Finding(level, "spool", text, "make room, or name another place in BATCHQ_SPOOL" if level != "ok" else "")


def _inbox(root: str, is_store: bool, masters: list[dict[str, Any]]) -> Iterator[Finding]:
    """What waits, and whether anybody will send it."""
    from batchq.spool import fs, inbox

    try:
        found = inbox.census(root)
    except OSError as error:
        yield Finding("bad", "spool", f"{root}: can't be read ({error.strerror})", "check its owner and yours")
        return
    if found.bad:
        yield Finding("warn", "spool", f"{found.bad} files were moved aside", "batchq spool status shows why")
    here = [master for master in masters if master.get("host") == platform.node()]
    cared_for = here if is_store else [one for one in here if one.get("spool") and fs.real_path(one["spool"]) == root]
    if found.files and not cared_for:
        advice = "batchq start, on this host" if is_store else "batchq spool forward; or start a master on this host"
        yield Finding("bad", "spool", f"{found.jobs} jobs wait in {root} and no master of this host takes them", advice)
    elif found.files:
        yield Finding("ok", "spool", f"{found.jobs} jobs wait in {root}; a master of this host takes them")


def failed(error: BatchqError) -> Finding:
    """The finding for settings or an app that stopped the examination before it began."""
    return Finding("bad", "app" if isinstance(error, AppError) else "settings", str(error).splitlines()[0])
