"""A reload: the next image of the same process. It is checked in a child first, then takes over by an exec.

    HUP -> check: a fresh interpreter runs the same command line up to the app      (fails: logged, nothing changes)
        -> exec in place: same pid; scoreboard, pid-file lock and the table of workers are handed over
        -> the new image adopts the old workers, and replaces them one by one

What is handed over stands in a file without a name, whose descriptor and pid are in BATCHQ__HANDOVER. The master
decides when; here is how.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any, NamedTuple, NoReturn, Self

from batchq import config, log
from batchq.clock import SYSTEM
from batchq.config import Settings
from batchq.digest import sha256
from batchq.errors import ConfigError
from batchq.jsons import orjson
from batchq.master.children import Child, Unreaped, signal_one
from batchq.master.signals import block
from batchq.master.sweeps import Death
from batchq.system.parent import die_with_parent
from batchq.system.scoreboard import MAGIC, Run, Scoreboard, unnamed_file

#: The check of an app that takes longer to import has failed.
CHECK_S = 120.0
#: Characters of the check's words that are logged, the last ones.
WORDS = 1500

_HANDOVER, _CHECK = "HANDOVER", "CHECK"


class Origin(NamedTuple):
    """How this process was started: what its next image is started by. Taken before the app's code has run."""

    argv: list[str]
    environ: dict[str, str]
    #: As it was named: where a deployment is a link, its next image is wherever that points to then.
    folder: str


def origin() -> Origin:
    """Called once, at the very beginning."""
    return Origin([sys.executable, *sys.orig_argv[1:]], config.environment(), config.working_folder())


def identity(settings: Settings) -> str:
    """What a reload can't change, in one word: the store, the pid file, and the layout of what is handed over."""
    parts = (MAGIC.decode(), settings.store_url, settings.prefix, settings.pid_file or "")
    return sha256("\0".join(parts).encode()).hexdigest()


# -- the check --------------------------------------------------------------------------------------------------


class Check:
    """A child that reads the settings and imports the app as the next image will."""

    def __init__(self, origin: Origin, settings: Settings) -> None:
        self._words = unnamed_file("check")
        self.began = SYSTEM.monotonic()
        try:
            self._process = subprocess.Popen(
                origin.argv,
                env=origin.environ | {config.own(_CHECK): f"{os.getpid()}:{identity(settings)}"},
                cwd=origin.folder,
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                process_group=0,
            )
        except BaseException:
            os.close(self._words)
            raise
        self.pid = self._process.pid

    def ended(self, code: int) -> str:
        """What it said, and that it was collected by somebody else."""
        self._process.returncode = code
        size = os.fstat(self._words).st_size
        text = os.pread(self._words, WORDS, max(0, size - WORDS)).decode(errors="replace").strip()
        os.close(self._words)
        return text.removeprefix("batchq: error: ")

    @property
    def is_late(self) -> bool:
        return SYSTEM.monotonic() - self.began > CHECK_S


def asked_to_check() -> str | None:
    """In the child: what identity is expected; None where this process is no check."""
    asked = config.take_own(_CHECK)
    if asked is None:
        return None
    parent, _, wanted = asked.partition(":")
    # Race: the master may be gone already. Never a pool of its own then: it ends here.
    die_with_parent(int(parent))
    return wanted


def check_identity(wanted: str, settings: Settings) -> None:
    """Raises ConfigError where the next image could not take over."""
    if identity(settings) != wanted:
        raise ConfigError(
            "reload: another url, prefix, pid_file or version of batchq's scoreboard can't take over running workers; "
            "stop this pool and start it anew"
        )


# -- the handover -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Heritage:
    """What one image leaves to the next."""

    pid: int
    board_fd: int
    pid_fd: int | None
    life: tuple[int, int]
    control_fd: int | None
    #: See `Signals`.
    signal_fds: tuple[int, int]
    master: str
    started_ms: int
    processes: int
    want: int
    shutdown_timeout_ms: int
    #: Queues that the workers so far may hold claims of.
    queues: list[str]
    reloads: int
    failed_reloads: int
    #: A reload was asked for meanwhile.
    again: bool
    outage_since: float | None
    outages: int
    #: A process of ours that asks for reloads.
    watcher: int | None = None
    #: The socket to the guardian.
    guardian_fd: int | None = None
    children: list[dict[str, Any]] = field(default_factory=list)
    unreaped: list[dict[str, Any]] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)

    def keep(self, children: Mapping[int, Child], unreaped: list[Unreaped]) -> None:
        self.children = [
            {
                "pid": child.pid,
                "place": child.place,
                "born": child.born,
                "ended_by": asdict(child.ended_by) if child.ended_by else None,
                # JSON's keys are strings.
                "orders": list(child.orders.items()),
                "culprit": child.culprit,
                "retiring": child.retiring,
                # JSON knows no infinity.
                "doomed_at": child.doomed_at if child.doomed_at < inf else None,
                "stacks_fd": child.stacks_fd,
                "asks_fd": child.asks_fd,
            }
            for child in children.values()
        ]
        self.unreaped = [
            {"worker": dead.worker, "death": asdict(dead.death), "runs": [list(run) for run in dead.runs]}
            for dead in unreaped
        ]

    def workers(self, board: Scoreboard) -> dict[int, Child]:
        """The workers so far: an old generation from now on."""
        out = {}
        for told in self.children:
            ended_by = Death(**told["ended_by"]) if told["ended_by"] else None
            doomed_at = inf if told["doomed_at"] is None else told["doomed_at"]
            slot = board.slot(told["place"])
            out[told["pid"]] = Child(
                **{
                    **told,
                    "slot": slot,
                    "ended_by": ended_by,
                    "doomed_at": doomed_at,
                    "orders": dict(told["orders"]),
                    "old": True,
                }
            )
        return out

    def dead(self) -> list[Unreaped]:
        return [
            Unreaped(told["worker"], Death(**told["death"]), tuple(Run(*run) for run in told["runs"]))
            for told in self.unreaped
        ]

    def _fds(self) -> list[int]:
        asked = (child.get(name, -1) for child in self.children for name in ("stacks_fd", "asks_fd"))
        fds = [self.board_fd, *self.life, *self.signal_fds, *asked]
        return [fd for fd in (*fds, self.pid_fd, self.control_fd, self.guardian_fd) if fd is not None and fd >= 0]

    def replace_process(self, origin: Origin) -> NoReturn:
        """Goes on as the next image. Raises OSError where that can't be: all is as before, but signals are blocked."""
        fd = unnamed_file("handover")
        fds = [fd, *self._fds()]
        here = os.getcwd()
        try:
            os.write(fd, orjson.dumps(asdict(self)))
            os.chdir(origin.folder)
            for one in fds:
                os.set_inheritable(one, True)
            sys.stdout.flush()
            sys.stderr.flush()
            told = {config.own(_HANDOVER): f"{self.pid}:{fd}"}
            environ = origin.environ | told
            # As late as can be: while the main thread takes them no other is asked.
            block()
            os.execve(origin.argv[0], origin.argv, environ)
        finally:
            for one in fds:
                os.set_inheritable(one, False)
            os.close(fd)
            os.chdir(here)

    @classmethod
    def take(cls) -> Self | None:
        """What the image before this one left; None at a first start."""
        told = config.take_own(_HANDOVER)
        pid, _, number = (told or "").partition(":")
        if pid != str(os.getpid()):
            return None
        with os.fdopen(int(number), "rb") as file:
            file.seek(0)
            kept = orjson.loads(file.read())
        heritage = cls(**kept)
        for fd in heritage._fds():
            os.set_inheritable(fd, False)
        return heritage

    def give_up(self, why: BaseException) -> None:
        """The next image can't work, although its check went well: the workers end in order, as in a graceful stop."""
        log.event("error", "reload_broke", pid=self.pid, why=str(why), workers=len(self.children))
        left = {child["pid"] for child in self.children}
        for pid in left:
            signal_one(pid, signal.SIGTERM)
        deadline = SYSTEM.monotonic() + self.shutdown_timeout_ms / 1000
        while left and SYSTEM.monotonic() < deadline:
            for pid in list(left):
                try:
                    ended = os.waitpid(pid, os.WNOHANG)[0]
                except ChildProcessError:
                    ended = pid
                if ended:
                    left.discard(pid)
            time.sleep(0.02)
