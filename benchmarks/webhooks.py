"""How long do ten thousand deliveries to slow hosts take, and what do a dead and a very slow host cost the others?

A receiver answers each POST after 50 ms, one in twenty with 503, and counts what it took. The ideal is what the places
of all workers could do if a delivery cost nothing but that wait: deliveries * (1 + errors) * latency / places. Beside
it a bare loop of httpx posts in as many processes with as many places: what the client alone costs this machine. Then
one host of ten is dead and one answers after two seconds: the eight others' deliveries are timed with those two and
without, and the attempts that the dead one's jobs have spent are counted. Times are from the first delivery to all but
one in a thousand: the last tries of single jobs say nothing.

Before that one worker alone, with 200 places and calls of 100 ms that cost no CPU: what is left of the ideal is what
batchq itself takes.

The same work is given to other queues that can make many calls at once: as many processes and places, the same client,
a failed delivery tried again. They have no limits of a host and no circuits: that is part of the answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import hooks
import rig
from peers import systems
from peers.delivery import PLACES, apost
from peers.environments import NotInstallable
from peers.trial import Failed, Trial

WORKERS, HOSTS = 2, 10
#: Places of a worker that is alone.
MANY = 200
LATENCY_S, SLOW_S, ERRORS = 0.05, 2.0, 0.05
#: Other queues, with the question that names their configuration.
PEERS = {
    "arq": ("arq", "deliver"),
    "taskiq": ("taskiq", "deliver"),
    "saq": ("saq", "deliver"),
    "celery-threads": ("celery", "deliver"),
    "celery-gevent": ("celery", "deliver_gevent"),
}
#: One that takes so much longer than the ideal is stopped.
MOST_S = 90.0


class Hosts(NamedTuple):
    """Where deliveries go to."""

    #: Those that answer in time.
    good: list[str]
    slow: list[str]
    dead: list[str]
    #: How many the good ones have taken.
    taken: Callable[[], int]

    @property
    def all(self) -> list[str]:
        return [*self.dead, *self.slow, *self.good]

    def share(self, jobs: int) -> int:
        """Of so many deliveries to all of them, how many go to the good ones: but for one in a thousand."""
        whole = sum(1 for n in range(jobs) if self.all[n % len(self.all)] in self.good)
        return whole - whole // 1000


@contextmanager
def receiver(good: int, *, slow: int = 0, dead: int = 0) -> Iterator[Hosts]:
    """So many hosts of each kind."""
    sockets = [socket.create_server(("127.0.0.1", 0), backlog=512) for _ in range(good + slow)]
    context = multiprocessing.get_context("fork")
    delivered = context.Array("Q", good + slow, lock=False)
    latencies = [LATENCY_S] * good + [SLOW_S] * slow
    process = context.Process(target=hooks.receive, args=(sockets, latencies, ERRORS, delivered), daemon=True)
    process.start()
    # Bound and not listening: nobody else gets the port, and nobody is answered.
    closed = [socket.socket() for _ in range(dead)]
    for one in closed:
        one.bind(("127.0.0.1", 0))
    try:
        urls = [f"http://127.0.0.1:{one.getsockname()[1]}/hook" for one in (*sockets, *closed)]
        yield Hosts(urls[:good], urls[good : good + slow], urls[good + slow :], lambda: sum(delivered[:good]))
    finally:
        process.kill()
        process.join()
        for one in (*sockets, *closed):
            one.close()


def timed(hosts: Hosts, jobs: int, wait: Callable[[Callable[[], bool], str], Any]) -> float:
    """Seconds from the first delivery to a good host to the last that counts."""
    wait(lambda: hosts.taken() > 0, "the first delivery")
    before, began = hosts.taken(), time.monotonic()
    share = hosts.share(jobs)
    wait(lambda: hosts.taken() >= share, f"{share} deliveries")
    return (time.monotonic() - began) * share / max(1, share - before)


def ours(url: str, hosts: Hosts, jobs: int) -> tuple[float, int]:
    """Seconds, and the attempts that jobs to dead hosts have spent."""
    hooks.app.configure({"url": url})
    hooks.deliver.enqueue_many((hosts.all[n % len(hosts.all)], {"n": n}) for n in range(jobs))
    os.environ["BATCHQ__PER_HOST"] = str(WORKERS * PLACES // HOSTS)
    with rig.workers(url, WORKERS, hooks.app, module="hooks", args=["-c", str(PLACES)]):
        took = timed(hosts, jobs, rig.wait_until)
        spent = sum(job.attempt for job in hooks.app.jobs(limit=jobs) if job.args[0] in hosts.dead)
    hooks.app.close()
    return took, spent


def alone(url: str, jobs: int) -> float:
    """Seconds of one worker for calls that only wait."""
    hooks.app.configure({"url": url})
    store = hooks.app.store
    store.pause("default")
    hooks.waits.enqueue_many(() for _ in range(jobs))
    with rig.workers(url, 1, hooks.app, module="hooks", args=["-c", str(MANY)]):
        began = time.monotonic()
        store.resume("default")
        rig.wait_completed(store, jobs)
        took = time.monotonic() - began
    hooks.app.close()
    return took


def theirs(args: argparse.Namespace, system: systems.System, question: str, hosts: Hosts, jobs: int) -> float:
    """Seconds of another queue. Raises NotInstallable, Failed."""
    child = system.install_to_deliver()
    with Trial(system, child, question, server=args.server, folder=args.folder, hosts=hosts.all) as trial:
        trial.enqueue("many", jobs=jobs, kind="deliver")
        trial.start(WORKERS)
        return timed(hosts, jobs, lambda true, what: trial.expect(true, what, MOST_S))


def bare(hosts: Sequence[str], jobs: int) -> float:
    """Seconds of httpx alone."""

    def loop() -> int:
        async def main() -> int:
            left = iter(range(jobs // WORKERS))

            async def post() -> int:
                count = 0
                for n in left:
                    with contextlib.suppress(ValueError):
                        await apost({"number": n, "url": hosts[n % len(hosts)]})
                    count += 1
                return count

            return sum(await asyncio.gather(*(post() for _ in range(PLACES))))

        return asyncio.run(main())

    return rig.race(WORKERS, loop)[0]


def ask(store: str, name: str, jobs: int, deliver: Callable[[Hosts], tuple[float, str]], *more: str) -> None:
    """All figures of one system."""
    ideal = jobs * (1 + ERRORS) * LATENCY_S / (WORKERS * PLACES)
    try:
        with receiver(HOSTS) as hosts:
            took, _ = deliver(hosts)
        share = f"ideal {ideal:.2f} s ({100 * ideal / took:.0f} %)"
        rig.row(store, f"{name}: {jobs} deliveries, {HOSTS} hosts", f"{took:.2f} s", share, *more)
        with receiver(HOSTS - 2, slow=1, dead=1) as hosts:
            beside, told = deliver(hosts)
        with receiver(HOSTS - 2) as hosts:
            without, _ = deliver(hosts)
        without *= (HOSTS - 2) / HOSTS
        cells = (f"{beside:.2f} s", f"without them {without:.2f} s ({beside / without:.2f} times)", told)
        rig.row(store, f"{name}: eight beside a dead and a slow", *cells)
    except (Failed, NotInstallable, TimeoutError) as error:
        print(f"LEFT OUT: {name}: {error}", file=sys.stderr, flush=True)


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    jobs = args.jobs
    took, ideal = alone(new_url(), jobs), jobs * hooks.CALL_S / MANY
    rig.row(
        store,
        f"one worker, {MANY} calls of 100 ms",
        f"{took:.2f} s",
        f"ideal {ideal:.2f} s ({100 * ideal / took:.0f} %)",
    )
    with receiver(HOSTS) as hosts:
        client = bare(hosts.good, jobs)

    def by_us(hosts: Hosts) -> tuple[float, str]:
        took, spent = ours(new_url(), hosts, jobs)
        return took, f"attempts spent on the dead {spent}" if hosts.dead else ""

    ask(store, "batchq", jobs, by_us, f"httpx alone {client:.2f} s")
    for name in args.peers if store == "redis" else ():
        system, question = systems.read(PEERS[name][0]), PEERS[name][1]
        ask(store, name, jobs, lambda hosts, system=system, question=question: _told(args, system, question, hosts))


def _told(args: argparse.Namespace, system: systems.System, question: str, hosts: Hosts) -> tuple[float, str]:
    return theirs(args, system, question, hosts, args.jobs), ""


if __name__ == "__main__":
    rig.main(
        __doc__,
        measure,
        jobs=rig.Option(10_000, 200, "N", "deliveries of each case"),
        peers=rig.Option(
            list(PEERS), [], "NAME", f"other queues that are asked: {', '.join(PEERS)}; none in a smoke run"
        ),
    )
