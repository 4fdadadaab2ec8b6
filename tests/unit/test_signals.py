"""The order of signals, and that none is lost or doubled."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.master.signals import Signals, blocked


@pytest.fixture
def signals() -> Iterator[Signals]:
    made = Signals()
    yield made
    made.close()


def busy() -> None:
    """In C for a while: the interpreter calls its handlers only behind it."""
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", 1_000_000)


@pytest.mark.parametrize("order", [("TSTP", "CONT"), ("CONT", "TSTP"), ("USR1", "HUP", "TTOU", "TTIN")])
def test_order_is_that_of_arrival(signals: Signals, order: tuple[str, ...]) -> None:
    """Also where the numbers say otherwise: who is told to be quiet and then to go on, goes on."""
    script = "; ".join(f"kill -{name} {os.getpid()}; sleep 0.02" for name in order)
    sender = subprocess.Popen(["sh", "-c", f"sleep 0.05; {script}"])
    while sender.poll() is None:
        busy()
    came = [signal.Signals(number).name for number in signals.came() if number != signal.SIGCHLD]
    assert came == [f"SIG{name}" for name in order]
    assert not signals.came()


def test_those_that_are_put_back_come_first(signals: Signals) -> None:
    """What one image has not acted on, the next does before all else."""
    os.kill(os.getpid(), signal.SIGUSR1)
    signals.again([signal.SIGHUP, signal.SIGTTIN])
    assert signals.came() == [signal.SIGHUP, signal.SIGTTIN, signal.SIGUSR1]


def test_blocked_signals_wait(signals: Signals) -> None:
    """Until the block is over."""
    with blocked():
        # To this thread: one for the process would go to a thread that has not blocked it, where there are others.
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        assert not signals.came()
    assert signals.came() == [signal.SIGUSR1]


#: Forks without end, as a master that replaces its workers, and says when asked what a pool would be: quiet or not.
FORKING = """
import os, select, signal, sys
from batchq.master.signals import Signals, blocked

signals, quiet = Signals(), None
print("up", flush=True)
while True:
    asked = select.select([0], [], [], 0)[0] and os.read(0, 1)
    with blocked():
        os.waitpid(os.fork() or os._exit(0), 0)
    for number in signals.came():
        if number in (signal.SIGTSTP, signal.SIGCONT):
            quiet = number == signal.SIGTSTP
    if asked:
        print(quiet, flush=True)
"""


def test_order_is_that_of_arrival_behind_a_block() -> None:
    """What has waited is delivered in one go, each handler on top of the last: one that came then would overtake."""
    forking = subprocess.Popen(
        [sys.executable, "-c", FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert forking.stdin is not None
    assert forking.stdout is not None
    try:
        assert forking.stdout.readline() == "up\n"
        for _ in range(1000):
            for name in ("USR1", "TTIN", "TTOU", "TSTP", "CONT"):
                forking.send_signal(signal.Signals[f"SIG{name}"])
            forking.stdin.write("?")
            forking.stdin.flush()
            assert forking.stdout.readline() == "False\n"
    finally:
        forking.kill()
        forking.communicate()


def test_a_flood_loses_no_kind(signals: Signals) -> None:
    """More than the pipe holds, and then another: it is there."""
    for _ in range(70_000):
        os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert signals.came()[-1] == signal.SIGTERM


def test_handlers_are_as_before_at_the_end() -> None:
    """Nothing of it stays."""
    before = signal.getsignal(signal.SIGTERM)
    made = Signals()
    assert signal.getsignal(signal.SIGTERM) != before
    made.close()
    assert signal.getsignal(signal.SIGTERM) == before
    assert signal.set_wakeup_fd(-1) == -1


#: Goes on as another image while a thread of its own takes one signal after the other.
RELOADED = """
import mmap, os, signal, sys, threading, time
from batchq.master.handover import Heritage, origin
from batchq.master.signals import Signals

began, heritage = origin(), Heritage.take()
with open(sys.argv[1], "r+b") as file:
    sent = mmap.mmap(file.fileno(), 8)


def bother():
    for number in range(1, 10_000):
        signal.pthread_kill(threading.get_ident(), signal.SIGTTIN)
        sent[:] = number.to_bytes(8, "little")
        time.sleep(0.00002)


if heritage is None:
    signals = Signals()
    threading.Thread(target=bother, daemon=True).start()
    while not any(sent):
        time.sleep(0.001)
    fds = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
    left = Heritage(
        pid=os.getpid(), board_fd=fds[0], pid_fd=None, life=(fds[1], fds[2]), control_fd=None, signal_fds=signals.fds,
        master="", started_ms=0, processes=1, want=1, shutdown_timeout_ms=0, queues=[], reloads=0, failed_reloads=0,
        again=False, outage_since=None, outages=0, signals=signals.came(),
    )
    known = int.from_bytes(sent[:], "little")
    while int.from_bytes(sent[:], "little") < known + 10:
        time.sleep(0.001)
    left.replace_process(began)
signals = Signals(heritage.signal_fds)
came = [*heritage.signals, *signals.came()]
print(len(heritage.signals), came.count(signal.SIGTTIN), int.from_bytes(sent[:], "little"))
"""


def test_no_signal_is_lost_that_another_thread_takes_in_an_exec(tmp_path: Path) -> None:
    """An app may have threads, and signals are not blocked in them: what they take before they end is not forgotten."""
    count = tmp_path / "sent"
    count.write_bytes(bytes(8))
    done = subprocess.run(
        [sys.executable, "-c", RELOADED, str(count)], capture_output=True, text=True, timeout=30, check=True
    )
    before, came, sent = map(int, done.stdout.split())
    # The last may have come, and not have been counted.
    assert sent <= came <= sent + 1
    assert came >= before + 10
