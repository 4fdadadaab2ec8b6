"""`batchq stop`, `reload`, `quiet`, `unquiet` and `ping`: the master of this host, by pid file and control socket."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from batchq.cli.endings import Failed, complain, say
from batchq.cli.params import F, span_ms

if TYPE_CHECKING:
    from batchq.system.pidfile import PidFile

#: Between two looks.
LOOK_S = 0.05


def takes_pid_file(command: F) -> F:
    """Adds --pid-file."""
    return click.option(
        "--pid-file", metavar="PATH", help="The pid file of this host's master.  [default: BATCHQ_PID_FILE]"
    )(command)


def takes_wait(default: str) -> Callable[[F], F]:
    """Adds --wait."""
    return click.option(
        "--wait", "wait_ms", type=span_ms, default=default, show_default=True, help="How long to wait for it; 0: not."
    )


def find(pid_file: str | None) -> PidFile | None:
    """The pid file that the flag, the environment or the file names; None where none does. Raises ConfigError."""
    from batchq import config
    from batchq.system.pidfile import PidFile

    named = config.load({"pid_file": pid_file}).pid_file
    return PidFile(named) if named is not None else None


def needed(pid_file: str | None) -> PidFile:
    """The same. Raises UsageError where none is named."""
    found = find(pid_file)
    if found is None:
        raise click.UsageError("which master? Write --pid-file PATH, or set BATCHQ_PID_FILE, or pid_file in a file")
    return found


def local_status(pid_file: str | None) -> dict[str, Any] | None:
    """What this host's master says by its control socket; None where there is none."""
    from batchq.master.control import NoControl, ask

    found = find(pid_file)
    if found is None:
        return None
    try:
        return ask(found.socket, {"do": "status"})
    except NoControl:
        return None


def _tell(pid_file: str | None, request: dict[str, Any], number: int) -> tuple[PidFile, dict[str, Any]]:
    """Tells the master by its socket, or by a signal where that does not answer. Answers what it said, if anything."""
    from batchq.master.control import NoControl, ask

    found = needed(pid_file)
    try:
        return found, ask(found.socket, request)
    except NoControl:
        pid = found.holder()
        if pid is None:
            complain(f"pid_file: no master runs by {found.path}")
            raise Failed from None
        os.kill(pid, number)
        return found, {"pid": pid}


def _until(condition: Callable[[], bool], wait_ms: int) -> bool:
    deadline = time.monotonic() + wait_ms / 1000
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_S)
    return True


@click.command("stop")
@click.option("--now", is_flag=True, help="At once: what runs is cut off and given back.")
@takes_wait("60s")
@takes_pid_file
def stop(now: bool, wait_ms: int, pid_file: str | None) -> None:
    """Stop the master of this host: running jobs end, the rest is given back.

    Exit code 1 if none runs, or it still does after the wait.

    \b
    batchq stop --pid-file /run/batchq/master.pid
    """
    found, said = _tell(pid_file, {"do": "stop", "at_once": now}, signal.SIGQUIT if now else signal.SIGTERM)
    if wait_ms and not _until(lambda: found.holder() is None, wait_ms):
        complain(f"the master (pid {said['pid']}) is still finishing jobs; wait on, or --now")
        raise Failed
    say(f"batchq: {'stopped' if wait_ms else 'told to stop'}, pid {said['pid']}")


@click.command("reload")
@takes_wait("150s")
@takes_pid_file
def reload(wait_ms: int, pid_file: str | None) -> None:
    """Let the master of this host read settings and app anew, without losing capacity.

    Exit code 1 if none runs, or the app can't be imported: then the old code works on.

    \b
    batchq reload --pid-file /run/batchq/master.pid
    """
    from batchq.master.control import ask

    before = local_status(pid_file) or {}
    found, said = _tell(pid_file, {"do": "reload"}, signal.SIGHUP)
    if not before or not wait_ms:
        say(f"batchq: told to reload, pid {said['pid']}")
        return
    now: dict[str, Any] = {}

    def is_over() -> bool:
        nonlocal now
        now = ask(found.socket, {"do": "status"}, max(5.0, wait_ms / 1000))
        moved = any(now[count] > before[count] for count in ("reloads", "failed_reloads"))
        return moved and now["state"] != "reloading"

    if not _until(is_over, wait_ms):
        complain("the reload is not over yet; the log of the master says more")
        raise Failed
    if now["reload_error"]:
        complain(f"not reloaded, the old code works on: {now['reload_error']}")
        raise Failed
    say(f"batchq: reloaded, pid {now['pid']}")


@click.command("ping")
@takes_pid_file
def ping(pid_file: str | None) -> None:
    """Ask the master of this host for a sign of life; it answers also while its store is away. For health checks.

    Exit code 1 if none answers.

    \b
    batchq ping --pid-file /run/batchq/master.pid
    """
    from batchq.master.control import ask

    found = needed(pid_file)
    said = ask(found.socket, {"do": "ping"})
    say(f"batchq: {said['state']}, pid {said['pid']}")


@click.command("quiet")
@takes_pid_file
def quiet(pid_file: str | None) -> None:
    """Let the master of this host claim nothing more: what runs ends, the rest is given back.

    \b
    batchq quiet --pid-file /run/batchq/master.pid
    """
    _, said = _tell(pid_file, {"do": "quiet"}, signal.SIGTSTP)
    say(f"batchq: quiet, pid {said['pid']}; `batchq unquiet` lets it go on")


@click.command("unquiet")
@takes_pid_file
def unquiet(pid_file: str | None) -> None:
    """Let the master of this host go on claiming.

    \b
    batchq unquiet --pid-file /run/batchq/master.pid
    """
    _, said = _tell(pid_file, {"do": "resume"}, signal.SIGCONT)
    say(f"batchq: going on, pid {said['pid']}")
