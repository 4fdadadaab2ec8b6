"""Several hosts on one server: one is cut off for longer than its lease, another takes its jobs, and it comes back."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.faults.proxy import Proxy
from tests.process.rig import Pool, Rig
from tests.servers import Server

Serve = Callable[..., Server]
RigOn = Callable[[Server], Rig]

LEASE = ("--lease", "1.5s", "--socket-timeout", "300ms")


def cut_off(proxy: Proxy, how: str) -> None:
    """The way of one host to the server: packets are swallowed, or all is refused."""
    if how == "swallowed":
        proxy.silent = True
    else:
        proxy.refusing = True
        proxy.cut_all()


def heal(proxy: Proxy) -> None:
    proxy.silent = proxy.refusing = False


def claims_of(rig: Rig, pool: Pool) -> int:
    """How often workers of that pool have begun a job."""
    pids = set(pool.workers())
    return sum(entry.pid in pids for entry in rig.ledger.starts())


@pytest.mark.parametrize("how", ["swallowed", "refused"])
def test_host_that_is_cut_off_loses_its_jobs_to_others_and_goes_on_when_it_is_back(
    serve: Serve, rig_on: RigOn, how: str
) -> None:
    """Its running jobs are taken over when its leases are over; its own results come too late and are refused."""
    server = serve()
    rig = rig_on(server)
    with Proxy(server.port) as proxy:
        far = rig.start(*LEASE, n=2, BATCHQ_URL=proxy.url)
        held = [rig.enqueue("slow") for _ in range(2)]
        for job in held:
            rig.until_started(job)
        near = rig.start(*LEASE, n=2, ready=False)
        rig.until(lambda: len(near.registered("default")) == 2, "the other host is there")
        cut_off(proxy, how)
        began = time.monotonic()
        for job in held:
            rig.until_started(job, times=2, within=15)
        taken_after = time.monotonic() - began
        second = [rig.ledger.starts(job)[1].pid for job in held]
        assert set(second) <= set(near.workers()), "somebody else took them"
        assert taken_after > 1.0, "it was still within its lease"
        totals = rig.stats().totals
        assert (totals["lost"], totals["fenced"], totals["crashed"]) == (2, 0, 0)
        # It ends its run while nobody hears it.
        for job in held:
            rig.until(lambda job=job: rig.ledger.ends(job), "the first run has ended", within=15)
        heal(proxy)
        rig.until_counts(done=2, active=0, pending=0, delayed=0, within=15)
        rig.until(lambda: far.lines("store_back"), "the outage is over", within=15)
        rig.until(lambda: len(far.lines("sealed")) == 2, "its workers have heard that they were given up", within=15)
        # Refused as stale, or where the answer to a first sending was lost, as settled before: nothing changes.
        assert len(far.lines("fenced")) == rig.stats().totals["fenced"] <= 2
        assert rig.stats().totals["completed"] == 2
        assert [len(rig.ledger.starts(job)) for job in held] == [2, 2]
        # Both hosts work on: the first one under new ids.
        before = claims_of(rig, far)
        rig.until(lambda: len(far.registered("default")) == 2, "its workers are registered again", within=15)
        near.stop()
        more = rig.enqueue_many("work", [()] * 20)
        rig.until_counts(done=22, active=0, within=15)
        assert {entry.job for entry in rig.ledger.ends()} >= set(more)
        assert claims_of(rig, far) == before + 20
        assert not far.lines("worker_died")
        far.stop()
