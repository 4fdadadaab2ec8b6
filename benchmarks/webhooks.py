"""How long do ten thousand deliveries to slow hosts take, against the ideal, and what does a dead host cost the others?

A receiver answers each POST after 50 ms, one in twenty with 503. The ideal is what the places of all workers could do
if a delivery cost nothing but that wait: deliveries * (1 + errors) * latency / places. Beside it a bare loop of httpx
posts in as many processes with as many places: what the client alone costs this machine. Then one host of ten is dead:
the nine others' deliveries are timed, and the attempts that the dead one's jobs have spent are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import hooks
import rig

WORKERS, PLACES, HOSTS = 2, 100, 10
LATENCY_S, ERRORS = 0.05, 0.05


@contextmanager
def receiver() -> Iterator[list[str]]:
    """Urls of ten hosts that answer."""
    sockets = [socket.create_server(("127.0.0.1", 0), backlog=512) for _ in range(HOSTS)]
    process = multiprocessing.get_context("fork").Process(
        target=hooks.receive, args=(sockets, LATENCY_S, ERRORS), daemon=True
    )
    process.start()
    try:
        yield [f"http://127.0.0.1:{one.getsockname()[1]}/hook" for one in sockets]
    finally:
        process.kill()
        process.join()
        for one in sockets:
            one.close()


def deliveries(url: str, hosts: list[str], dead: list[str], jobs: int) -> tuple[float, int]:
    """Seconds until all jobs to hosts that live are delivered, and the attempts that those to dead ones have spent."""
    hooks.app.configure({"url": url})
    everywhere = [*hosts, *dead]
    hooks.deliver.enqueue_many((everywhere[n % len(everywhere)], {"n": n}) for n in range(jobs))
    living = sum(1 for n in range(jobs) if n % len(everywhere) < len(hosts))
    os.environ["BATCHQ__PER_HOST"] = str(WORKERS * PLACES // HOSTS)

    def done() -> int:
        return int(hooks.app.stats()["queues"]["default"]["totals"]["completed"])

    with rig.workers(url, WORKERS, hooks.app, module="hooks", args=["-c", str(PLACES)]):
        rig.wait_until(lambda: done() > 0, "the first delivery")
        before, began = done(), time.monotonic()
        rig.wait_until(lambda: done() >= living, f"{living} deliveries", look_s=0.02)
        took = (time.monotonic() - began) * living / max(1, living - before)
        spent = sum(job.attempt for job in hooks.app.jobs(limit=jobs) if job.args[0] in dead)
    hooks.app.close()
    return took, spent


def bare(hosts: list[str], jobs: int) -> float:
    """Seconds of httpx alone."""

    def loop() -> int:
        import httpx

        async def main() -> int:
            left = iter(range(jobs // WORKERS))
            async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(keepalive_expiry=60)) as client:

                async def post() -> int:
                    count = 0
                    for n in left:
                        await client.post(hosts[n % len(hosts)], json={"n": n})
                        count += 1
                    return count

                return sum(await asyncio.gather(*(post() for _ in range(PLACES))))

        return asyncio.run(main())

    return rig.race(WORKERS, loop)[0]


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    jobs = args.jobs
    with receiver() as hosts:
        ideal = jobs * (1 + ERRORS) * LATENCY_S / (WORKERS * PLACES)
        took, _ = deliveries(new_url(), hosts, [], jobs)
        alone = bare(hosts, jobs)
        rig.row(
            store,
            f"{jobs} deliveries, {HOSTS} hosts",
            f"{took:.2f} s",
            f"ideal {ideal:.2f} s ({100 * ideal / took:.0f} %)",
            f"httpx alone {alone:.2f} s",
        )
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}/hook"
            with_dead, spent = deliveries(new_url(), hosts[1:], [nowhere], jobs)
        without, _ = deliveries(new_url(), hosts[1:], [], jobs * (HOSTS - 1) // HOSTS)
        rig.row(
            store,
            "the nine beside a dead host",
            f"{with_dead:.2f} s",
            f"without it {without:.2f} s",
            f"attempts spent on it {spent}",
        )


if __name__ == "__main__":
    rig.main(__doc__, measure, jobs=rig.Option(10_000, 200, "N", "deliveries of each case"))
