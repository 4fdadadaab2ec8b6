"""What does an idle pool cost: how much of a core, how much memory, and how many Redis calls a second?

One master with eight workers and nothing to do. CPU is what master and workers used by the kernel's count. Calls are
taken from MONITOR, which tells those of clients from those inside scripts; the sum is checked against the server's own
count of commands. Memory is PSS where the system tells it (shared pages count once), else RSS.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import rig
import work

from batchq.master.guardian import NAME

WORKERS = 8


def measure(args: argparse.Namespace, store: str, new_url: Callable[[], str]) -> None:
    url = new_url()
    work.app.configure({"url": url})
    with rig.workers(url, WORKERS, work.app) as master:
        time.sleep(args.settle)  # What a start costs is not the question.
        pool = [master, *master.children(), *_guardian(master)]
        calls = Calls(url) if store == "redis" else None
        before, began = sum(map(rig.cpu_s, pool)), time.monotonic()
        time.sleep(args.seconds)
        seconds = time.monotonic() - began
        used = sum(map(rig.cpu_s, pool)) - before
        if calls is not None:
            calls.stop()
        memory = sum(map(_memory, pool))
        if any(not process.is_running() for process in pool) or len(master.children()) != WORKERS:
            raise RuntimeError("the pool changed while it was measured")
    work.app.close()
    rig.row(store, f"master and {WORKERS} workers, idle", f"{100 * used / seconds:.2f} % of a core")
    rig.row(store, "memory of all", f"{memory / 2**20:.0f} MiB")
    if calls is not None:
        rate = {name: count / seconds for name, count in calls.by_clients.items()}
        inside = f"inside scripts {calls.inside / seconds:.2f}/s"
        rig.row(store, "calls by clients", f"{sum(rate.values()):.2f}/s", inside)
        rig.row(store, "", ", ".join(f"{name} {per_s:.2f}" for name, per_s in sorted(rate.items())))
        if calls.counted != calls.by_clients.total() + calls.inside:
            seen = calls.by_clients.total() + calls.inside
            rig.row(store, "", f"the server counted {calls.counted}, MONITOR showed {seen}")


class Calls:
    """Listens to what the server is asked, from its making to `stop`. Its own commands are left out."""

    #: What this observer sends itself.
    OWN = ("INFO",)

    def __init__(self, url: str) -> None:
        self.by_clients: Counter[str] = Counter()
        self.inside = 0
        self._asking = rig.client(url)
        self._asking.ping()
        self._monitor: Any = rig.client(url).monitor().__enter__()
        self._end = f"END{time.monotonic_ns()}"
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        self._before = self._commands()

    def _listen(self) -> None:
        while True:
            heard = self._monitor.next_command()
            words = heard["command"].split(" ")
            if self._end in words:
                return
            if heard["client_type"] == "lua":
                self.inside += 1
            elif words[0].upper() not in self.OWN:
                self.by_clients[words[0].upper()] += 1

    def _commands(self) -> int:
        return int(self._asking.info("stats")["total_commands_processed"])

    def stop(self) -> None:
        #: By the server's own count; the first INFO was counted after it was answered.
        self.counted = self._commands() - self._before - 1
        self._asking.echo(self._end)
        self._thread.join(10)
        self._monitor.__exit__(None, None, None)


def _guardian(master: psutil.Process) -> list[psutil.Process]:
    """It is no child of the master's. None as process 1."""
    return [one for one in psutil.process_iter(["cmdline"]) if _guards(one.info["cmdline"] or (), master.pid)]


def _guards(words: Sequence[str], master: int) -> bool:
    return NAME in words and str(master) == words[-2]


def _memory(process: psutil.Process) -> int:
    info = process.memory_full_info()
    return int(getattr(info, "pss", info.rss))


if __name__ == "__main__":
    rig.main(
        __doc__,
        measure,
        seconds=rig.Option(10.0, 1.0, "S", "how long it is looked at"),
        settle=rig.Option(3.0, 0.5, "S", "how long it idles before"),
    )
