"""Connections that are there and carry nothing, and calls that arrive when their senders have gone on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from batchq.job import NewJob, new_id, pack_row
from batchq.redis.connect import BRISK_S
from batchq.redis.scripts import load
from batchq.redis.waiting import OVERDUE_S, WAIT_S
from tests.faults.proxy import Proxy
from tests.process.rig import Rig
from tests.servers import Server

Serve = Callable[..., Server]
RigOn = Callable[[Server], Rig]


def slip_in(server: Server, prefix: str, queue: str = "default") -> str:
    """A pending job without a hint: no worker is roused for it. One step, as an enqueue is."""
    job = new_id()
    with server.client.pipeline() as pipe:
        pipe.hset(f"{prefix}:{{{queue}}}:rows", job, b'{"t":1,' + pack_row("work")[1:])
        pipe.rpush(f"{prefix}:{{{queue}}}:pending", job)
        pipe.hincrby(f"{prefix}:{{{queue}}}:meta", "enqueued", 1)
        pipe.execute()
    return job


def test_job_claimed_by_a_late_copy_is_found_within_two_seconds(serve: Serve, rig_on: RigOn) -> None:
    """The claim arrives when its worker has claimed again, found nothing and sleeps: nobody knows of what it takes."""
    server = serve()
    rig = rig_on(server)
    claim = load("claim").sha.encode()
    with Proxy(server.port) as proxy:
        pool = rig.start("--socket-timeout", "300ms", n=1, BATCHQ_URL=proxy.url)
        held = proxy.hold(lambda frame, number: claim in frame)
        rig.enqueue("work")
        rig.until_counts(done=1)
        assert held.caught.is_set()
        # It looks by itself each second: just after it has, there is time for the late copy.
        looked = threading.Event()

        def waits(frame: bytes, number: int) -> bool:
            if b"BLPOP" in frame and b":wake" in frame:
                looked.set()
            return False

        proxy.hold(waits)
        rig.until(looked.is_set, "it has looked once more")
        job = slip_in(server, rig.prefix)
        held.release()
        began = time.monotonic()
        rig.until(
            lambda: rig.stats().counts["active"] == 1 or pool.lines("unknown_claims"), "the late claim has taken it"
        )
        rig.until_counts(done=2, active=0)
        # Two seconds, and what a busy machine adds; the lease is fifteen.
        assert time.monotonic() - began < 4
        assert [entry.job for entry in rig.ledger.ends(job)] == [job]
        assert pool.lines("unknown_claims")
        assert rig.stats().totals["fenced"] == 0
        pool.stop()


@pytest.mark.parametrize(
    ("busy", "places"),
    [("one long job", ()), ("many short ones", ()), ("two long jobs", ("--concurrency", "2", "--threads"))],
    ids=["one long job", "many short ones", "every place taken"],
)
def test_job_claimed_by_a_late_copy_for_a_busy_worker_is_found_within_two_seconds(
    serve: Serve, rig_on: RigOn, busy: str, places: tuple[str, ...]
) -> None:
    """The claim arrives on a queue that its worker does not ask meanwhile: it works off another one."""
    server = serve()
    rig = rig_on(server)
    claim = load("claim").sha.encode()
    first = f"{rig.prefix}:{{default}}:pending".encode()
    with Proxy(server.port) as proxy:
        args = ("-q", "busy", "-q", "default", "--strict-order", "--socket-timeout", "300ms")
        pool = rig.start(*args, *places, n=1, BATCHQ_URL=proxy.url)
        held = proxy.hold(lambda frame, number: claim in frame and first in frame)
        # It has asked both queues once more, and waits.
        rig.enqueue("work", queue="busy")
        rig.until_counts("busy", done=1)
        rig.until(held.caught.is_set, "the claim is on its way")
        seconds, count = {"one long job": (4.0, 1), "two long jobs": (4.0, 2), "many short ones": (0.02, 300)}[busy]
        jobs = rig.enqueue_many("work", [(seconds,)] * count, queue="busy")
        for job in jobs[:2]:
            rig.until_started(job)
        job = slip_in(server, rig.prefix)
        held.release()
        began = time.monotonic()
        rig.until(
            lambda: rig.stats().counts["active"] == 1 or pool.lines("unknown_claims"), "the late claim has taken it"
        )
        rig.until_counts(pending=1, active=0)
        # Two seconds, and what a busy machine adds; the lease is fifteen.
        assert time.monotonic() - began < 4
        rig.until(lambda: rig.ledger.ends(job), "it runs in its turn", within=20)
        assert pool.lines("unknown_claims")
        assert rig.stats().totals["fenced"] == rig.stats("busy").totals["fenced"] == 0
        pool.stop()


def test_waits_on_dead_connections_end_within_a_bound(serve: Serve, rig_on: RigOn) -> None:
    """Half-open: no byte comes any more on what stands. Workers and the master's timer notice by themselves."""
    server = serve()
    rig = rig_on(server)
    with Proxy(server.port) as proxy:
        pool = rig.start("--socket-timeout", "500ms", n=1, BATCHQ_URL=proxy.url)
        rig.enqueue("work")
        rig.until_counts(done=1)
        proxy.forget_all()
        began = forgotten = time.monotonic()
        rig.enqueue("work")
        rig.until_counts(done=2, within=15)
        assert time.monotonic() - began < WAIT_S + OVERDUE_S + BRISK_S

        def waits_of_before() -> list[str]:
            """Those that the server still gives hints to, which nobody hears."""
            age = int(time.monotonic() - forgotten)
            return [
                one["addr"] for one in server.client.client_list() if "b" in one["flags"] and int(one["age"]) >= age
            ]

        rig.until(lambda: not waits_of_before(), "the server has ended the old waits", within=15)
        # All waits stand on new connections: what comes now is heard at once, and on time.
        began = time.monotonic()
        rig.enqueue("work")
        rig.until_counts(done=3)
        # A wait that nobody hears is over only after WAIT_S.
        assert time.monotonic() - began < WAIT_S / 2
        job = rig.enqueue("work", delay_ms=300)
        due_ns = time.monotonic_ns() + 300_000_000
        rig.until_counts(done=4)
        assert (rig.ledger.starts(job)[0].at_ns - due_ns) / 1e9 < WAIT_S / 2
        pool.stop()


def test_silent_server_is_noticed_by_an_idle_pool(serve: Serve, rig_on: RigOn) -> None:
    """Nothing is refused and nothing answered: the outage is told, and its end."""
    server = serve()
    rig = rig_on(server)
    with Proxy(server.port) as proxy:
        pool = rig.start("--socket-timeout", "500ms", n=2, BATCHQ_URL=proxy.url)
        proxy.silent = True
        rig.until(lambda: pool.lines("store_unavailable"), "the outage is seen", within=5 + 2 * BRISK_S)
        proxy.silent = False
        rig.until(lambda: pool.lines("store_back"), "the end is seen", within=12)
        rig.store.enqueue("default", [NewJob(new_id(), pack_row("work"))])
        rig.until_counts(done=1)
        assert len(pool.lines("store_unavailable")) == 1
        pool.stop()
