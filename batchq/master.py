"""The prefork master: one single-threaded loop of signals, children, timers and a store handle. Runs no handler, ever.

It forks the workers, owns their leases, keeps the time (promotes what is due), notices a dead worker at once and reaps
it, enforces time limits, and stops everything in order. gunicorn's arbiter is the model. A signal handler only records
the signal; the loop acts.
"""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import selectors
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from batchq import __version__, autoreload, log, newborn, scoreboard, stacks
from batchq.admin import spool_stats
from batchq.app import App
from batchq.children import Child, Unreaped, death_of, is_stopped, named, signal_group, signal_one
from batchq.clock import SYSTEM
from batchq.config import MAX_PROCESSES, Settings, masked
from batchq.control import ControlServer
from batchq.errors import BatchqError, ConfigError, StoreDenied, StoreError, StoreUnavailable
from batchq.exporter import Exporter, Health
from batchq.handover import CHECK_S, Check, Heritage, Origin
from batchq.job import Claim, random_name
from batchq.leavings import clear_away
from batchq.lifecycle import Word
from batchq.limits import Limits, give_order, interrupt
from batchq.memory import KillCount
from batchq.meters import Meters
from batchq.mourning import Mourning
from batchq.notify import Notifier
from batchq.parent import birth_of, die_with, reap_child
from batchq.pidfile import PidFile
from batchq.report import log_workers, workers_of
from batchq.runner import Runner
from batchq.scoreboard import Owner, Run, Scoreboard
from batchq.signals import Signals, block, unblock
from batchq.store import PROMOTE_LIMIT, Waiter
from batchq.stores import attach_inbox, make_offline, open_store
from batchq.sweeps import Death, LeaseWatch, expire, reap_left, reap_lost, reap_own
from batchq.titles import set_title
from batchq.watchdog import Step, Watchdog
from batchq.worker import ORDER_SIGNAL, UNSETTLED, boot_id

if TYPE_CHECKING:
    from batchq.offline import Offline, Shelf

Burst = Literal["all", "ready"]

#: Exit codes of `batchq start`.
DONE, FAILED, CANT_START, NO_STORE, GAVE_UP = 0, 1, 3, 4, 5

#: The loop looks at least so often.
TICK_S = 1.0
#: While the store is away it is tried so often at most.
TRY_S = 0.1
#: While handlers with time limits run, or a stop is under way.
SHORT_TICK_S = 0.05
#: After an interrupt or a cancel at shutdown a handler has this long, or its grace if that is shorter.
LAST_GRACE_S = 2.0
#: So many workers in a row that ended before their first claim was answered, and none that works: they can't start.
MOST_YOUNG = 5
PUBLISH_S = 5.0
EXPIRE_S = 60.0

#: While a reload replaces workers the loop looks so often, to see that a new one is up.
REPLACE_TICK_S = 0.01


@dataclass(slots=True)
class Timers:
    """When what is due next, on the monotonic clock."""

    sweep: float = 0.0
    renew: float = 0.0
    renewed: float = 0.0
    watch: float = 0.0
    publish: float = 0.0
    expire: float = 0.0
    fire: dict[str, float] = field(default_factory=dict)


class Master:
    """`run` answers the exit code: 0 done; 1 stopped with work that could not be given back, or another failure; 3
    workers can't start; 4 the store can't be reached at the start; 5 the watchdog gave up.

    `queues`: (name, weight); empty: every queue that the handlers name, and `default`. `burst`: end when nothing is
    left; "ready" does not wait for the delayed ones. `origin`: how the next image is started; without it there is no
    reload. `heritage`: what the image before this one left, with the signals that are recorded since.
    """

    def __init__(
        self,
        app: App,
        settings: Settings,
        queues: Sequence[tuple[str, int]] = (),
        burst: Burst | None = None,
        origin: Origin | None = None,
        heritage: Heritage | None = None,
        signals: Signals | None = None,
        watches_files: bool = False,
    ) -> None:
        self._app = app
        self._settings = settings
        self._queues = list(queues) or [(name, 1) for name in app.registry.queues()]
        self._names = [name for name, _ in self._queues]
        self._burst = burst
        self._want = settings.processes
        self._children: dict[int, Child] = {}
        self._unreaped: list[Unreaped] = []
        self._origin = origin
        self._heritage = heritage
        self._early_signals = signals
        self._check: Check | None = None
        self._autoreload = watches_files
        #: The process that asks for reloads when files change.
        self._watcher = heritage.watcher if heritage is not None else None
        #: A reload is asked for, and not yet begun.
        self._reload_wanted = False
        self._reloads = 0
        self._failed_reloads = 0
        #: Why the last one failed.
        self._reload_error: str | None = None
        self._replacing_since: float | None = None
        #: Queues that workers of an older generation may hold claims of.
        self._old_names: list[str] = []
        #: Where workers count for the metrics; None: nobody asked for them.
        self._meters: Meters | None = None
        self._dump: stacks.Dump | None = None
        self._runner = Runner(app.registry, settings)
        self._watch = LeaseWatch(settings.lease_ms)
        self._watchdog = Watchdog(settings.watchdog_ms / 1000)
        #: Jobs that were claimed by workers that are gone.
        self._claimed_before = 0
        self._kills = KillCount()
        self._is_ready = heritage is not None
        self._timers = Timers()
        self._pid = os.getpid()
        self._notify = Notifier(self._pid)
        self._id = f"{platform.node()}.{boot_id()}.{self._pid}.{random_name(8)}"
        self._started_ms = SYSTEM.now_us() // 1000
        self._stop_at: float | None = None
        self._at_once = False
        self._interrupted = False
        self._outage_since: float | None = None
        #: Runs what may run meanwhile.
        self._offline: Offline | None = None
        #: How often the store was away.
        self._outages = 0
        self._waiter_fd: int | None = None
        #: While the store is away: when it is tried next.
        self._try_store_at = 0.0
        self._young_deaths = 0
        self._spawn_not_before = 0.0
        self._code = DONE
        self._pid_file = PidFile(settings.pid_file) if settings.pid_file else None
        self._limits = Limits(settings, app.registry)

    # -- life

    def run(self) -> int:
        mine = False
        self._signals = self._early_signals or Signals()
        try:
            if self._heritage is None:
                self._take_board()
            else:
                self._inherit(self._heritage)
            mine = True
            waiting = [(queue, job_id) for queue, job_id in self._heritage.mourned] if self._heritage else []
            self._mourning = Mourning(self._board, wanted=bool(self._app.dead_hooks), waiting=waiting)
            self._store = open_store(self._settings.store_url, self._settings)
            self._store.be_brisk()
            attach_inbox(self._store, self._settings)
            self._offline = make_offline(
                self._store, self._settings, self._app.registry, self._names, self._serve_offline
            )
            try:
                return self._run()
            finally:
                self._store.close()
        finally:
            if self._pid_file is not None:
                # What could not be given back is the next start's.
                self._pid_file.remove(board=mine and not self._unreaped and not self._children)
            self._signals.close()

    def _take_board(self) -> None:
        """The pid file's lock, and the scoreboard beside it with what a killed master left there."""
        self._me = Owner(self._pid, birth_of(self._pid), os.getsid(0), boot_id())
        if self._pid_file is None:
            self._board = Scoreboard()
            return
        self._pid_file.take()
        where = self._pid_file.board
        self._board = Scoreboard.at(where)
        death = Death("lost", "its master was killed")
        self._unreaped = [Unreaped(left.worker, death, left.runs) for left in clear_away(self._board, self._me, where)]

    def _inherit(self, left: Heritage) -> None:
        """Goes on where the image before this one stopped."""
        self._me = Owner(self._pid, birth_of(self._pid), os.getsid(0), boot_id())
        self._board = Scoreboard(fd=left.board_fd)
        if self._pid_file is not None:
            self._pid_file.adopt(left.pid_fd)
        self._life_r, self._life_w = left.life
        self._id, self._started_ms = left.master, left.started_ms
        if left.processes == self._settings.processes:
            self._want = left.want
        self._old_names = [name for name in left.queues if name not in self._names]
        self._reloads, self._failed_reloads = left.reloads + 1, left.failed_reloads
        self._reload_wanted = left.again
        self._outage_since, self._outages = left.outage_since, left.outages
        self._children = left.workers(self._board)
        self._unreaped = left.dead()
        self._replacing_since = SYSTEM.monotonic()
        self._signals.again(left.signals)

    def _run(self) -> int:
        if not self._store.traits.shared:
            raise ConfigError(
                f"url: a {self._store.traits.kind} store is seen by one process only; "
                "start needs redis://... or spool:PATH"
            )
        began, server, warnings = SYSTEM.monotonic(), "", list[str]()
        try:
            info = self._store.info()
            server, warnings = info.version, self._store.warnings()
            for queue in self._names:
                self._store.promote(queue)
            self._reap()
        except StoreUnavailable as error:
            # With a fallback jobs come in all the same: the pool stands ready for the store's return.
            has_fallback = self._settings.fallback and self._store.traits.kind == "redis"
            if self._heritage is None and (not has_fallback or isinstance(error, StoreDenied)):
                log.event("error", "store_unavailable", error=str(error))
                return NO_STORE
            self._lost_store(error, began)
        if self._heritage is None:
            self._board.own(self._me)
            self._life_r, self._life_w = os.pipe()
        # What the app's module used while it was loaded stays on this side of the forks.
        self._app.close()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._signals.fd, selectors.EVENT_READ)
        self._control = self._open_control()
        self._exporter = self._open_exporter()
        self._waiter: Waiter = self._store.timer_waiter(self._names)
        log.event(
            "info",
            "started" if self._heritage is None else "took_over",
            version=__version__,
            pid=os.getpid(),
            app=self._app.name,
            store=masked(self._settings.store_url),
            server=server or None,
            processes=self._want,
            queues=",".join(self._names),
            handlers=len(self._app.registry),
            **self._settings.limits(),
        )
        for warning in warnings if self._heritage is None else ():
            log.event("warning", "store_warning", why=warning)
        self._name_unlimited()
        # Not collected before: the holes would be filled by the children, each page of them a copy.
        gc.freeze()
        try:
            set_title(f"master of {self._app.name}")
            if self._is_ready:
                self._notify.ready()
            if self._autoreload and self._origin is not None and self._watcher is None:
                self._watcher = autoreload.start(self._pid, self._origin.folder)
            while not self._turn():
                pass
        finally:
            self._end()
        log.event("info", "stopped", pid=os.getpid(), code=self._code)
        return self._code

    def _name_unlimited(self) -> None:
        names = [name for name in self._app.registry.names() if not self._app.registry.get(name).timeout_ms]
        if names and self._settings.timeout_ms is None:
            log.event("info", "no_time_limit", handlers=",".join(names))

    def _turn(self) -> bool:
        """One round of the loop; True when the master is to end."""
        self._listen()
        for key, mask in self._selector.select(self._patience()):
            if key.data is not None:
                key.data(mask)
            elif key.fd == self._waiter_fd:
                self._heard()
        for number in self._signals.came():
            self._on_signal(number)
        self._bury_children()
        self._limits.enforce(self._children.values(), stopping=self._interrupted)
        self._keep_time()
        self._tell_manager()
        if self._dump is not None and self._dump.is_done(self._children.values()):
            self._dump = None
        if self._stop_at is not None:
            return self._stopped()
        self._drive_offline()
        self._mourning.drive(self._children.values(), quiet=self._board.quiet)
        self._watch_claims()
        self._drive_reload()
        self._spawn_missing()
        self._retire_surplus()
        if self._burst is not None and self._is_drained():
            self._begin_stop("burst")
        return False

    def _tell_manager(self) -> None:
        """A sign of life; and that the pool is ready, once a worker is up, or only the store is missing."""
        self._notify.beat()
        up = self._outage_since is not None or any(child.is_up for child in self._children.values())
        if up and not self._is_ready:
            self._is_ready = True
            self._notify.ready()

    def _patience(self) -> float:
        """How long the loop may sleep: to the next fire-time, sweep or limit."""
        now = SYSTEM.monotonic()
        t = self._timers
        due = min(t.sweep, t.renew, t.watch, t.publish, *t.fire.values())
        wait = min(TICK_S, due - now)
        if self._stop_at is not None or self._burst is not None or self._unreaped:
            wait = min(wait, SHORT_TICK_S)
        if not self._is_ready:
            wait = min(wait, SHORT_TICK_S)
        if self._settings.watchdog_ms:
            wait = min(wait, self._watchdog.look_s)
        if self._notify.beat_s is not None:
            wait = min(wait, self._notify.beat_s)
        if self._dump is not None:
            wait = min(wait, self._dump.due - now)
        if self._replacing_since is not None or self._mourning.is_under_way:
            wait = min(wait, REPLACE_TICK_S)
        if self._outage_since is not None:
            wait = min(wait, self._try_store_at - now)
        if len(self._children) < self._want and self._stop_at is None:
            wait = min(wait, self._spawn_not_before - now)
        if self._limits.is_pressing(self._children.values()):
            wait = min(wait, SHORT_TICK_S)
        elif self._limits.may_come:
            wait = min(wait, TICK_S / 4)
        return max(0.0, wait)

    # -- signals

    def _on_signal(self, number: int) -> None:
        match number:
            case signal.SIGTERM | signal.SIGINT:
                if self._stop_at is None:
                    self._begin_stop(signal.Signals(number).name)
                else:
                    self._kill_all()
            case signal.SIGQUIT:
                self._begin_stop("SIGQUIT")
                self._kill_all()
            case signal.SIGHUP:
                self.reload()
            case signal.SIGTTIN:
                self.resize(self._want + 1)
            case signal.SIGTTOU:
                self.resize(self._want - 1)
            case signal.SIGTSTP:
                self.be_quiet(True)
            case signal.SIGCONT:
                self.be_quiet(False)
            case signal.SIGUSR1:
                self.dump()

    @property
    def state(self) -> str:
        """stopping, reloading, quiet or running."""
        if self._stop_at is not None:
            return "stopping"
        if self._reload_wanted or self._check is not None or self._replacing_since is not None:
            return "reloading"
        return "quiet" if self._board.quiet else "running"

    def resize(self, want: int) -> None:
        """So many workers from now on; at least one."""
        want = max(1, min(MAX_PROCESSES, want))
        if want != self._want:
            self._want = want
            log.event("info", "resized", processes=want)

    def be_quiet(self, quiet: bool) -> None:
        """Claim nothing more, and give back what has not started; or go on."""
        if self._board.quiet == quiet or self._stop_at is not None:
            return
        self._board.quiet = quiet
        # The workers will have said so by then.
        self._timers.publish = SYSTEM.monotonic() + SHORT_TICK_S
        log.event("info", "quiet" if quiet else "going_on", workers=len(self._children))
        for child in self._children.values():
            # An order that is none: it wakes who waits.
            signal_one(child.pid, ORDER_SIGNAL)

    def dump(self) -> None:
        """The scoreboard goes to the log now, the workers' stacks as soon as they have written them."""
        log.event(
            "info",
            "scoreboard",
            pid=self._pid,
            workers=len(self._children),
            want=self._want,
            quiet=self._board.quiet,
            unreaped=len(self._unreaped),
            store="up" if self._outage_since is None else "away",
        )
        log_workers(self._children.values())
        self._dump = stacks.Dump(self._children.values())

    # -- the control socket

    def _open_control(self) -> ControlServer | None:
        if self._pid_file is None:
            return None
        inherited = self._heritage.control_fd if self._heritage is not None else None
        try:
            return ControlServer(self._pid_file.socket, self._selector, self._answer, inherited)
        except OSError as error:
            log.event("warning", "no_control", path=self._pid_file.socket, error=error.strerror or str(error))
            return None

    def _open_exporter(self) -> Exporter | None:
        """Raises ConfigError at the start; a reload goes on without."""
        s = self._settings
        if s.metrics_port is None:
            return None
        self._meters = Meters(self._names, self._app.registry.names(), scoreboard.MOST)
        try:
            address = (s.metrics_host, s.metrics_port)
            made = Exporter(address, self._selector, self._store, self._meters, self._health, self._spooled)
        except ConfigError as error:
            if self._heritage is None:
                raise
            log.event("error", "no_metrics", error=str(error))
            return None
        log.event("info", "metrics", pid=self._pid, address=f"{s.metrics_host}:{made.port}")
        return made

    def _health(self) -> Health:
        away = self._outage_since is not None
        unready = "the store is away" if away else "" if self._is_ready else "no worker is up yet"
        if self.state in ("stopping", "quiet"):
            unready = self.state
        return Health(self.state, unready, not away, self._status())

    def _spooled(self) -> tuple[int, int, int] | None:
        """What lies in the inbox of this host's spool; None where there is none."""
        found = spool_stats(self._settings.own_spool)
        return None if "error" in found else (found["files"], found["jobs"], found["bad"])

    def _answer(self, request: dict[str, object]) -> dict[str, object]:
        match request:
            case {"do": "ping"}:
                pass
            case {"do": "status"}:
                return self._status()
            case {"do": "workers"}:
                return {"workers": self._status()["workers"]}
            case {"do": "stop", **options}:
                self._begin_stop("asked to")
                if options.get("at_once"):
                    self._kill_all()
            case {"do": "reload"}:
                if self._origin is None:
                    raise BatchqError("reload: this pool was not started by the command line; start it anew")
                self.reload()
            case {"do": "quiet" | "resume" as word}:
                self.be_quiet(word == "quiet")
            case {"do": "resize", "processes": int(want)} if 1 <= want <= MAX_PROCESSES:
                self.resize(want)
            case {"do": "resize"}:
                raise BatchqError(f"resize: expected processes from 1 to {MAX_PROCESSES}")
            case _:
                raise BatchqError("do: expected ping, status, workers, stop, reload, quiet, resume or resize")
        return {"pid": self._pid, "state": self.state}

    # -- reload

    def reload(self) -> None:
        """Asks for a reload: it begins when none is under way."""
        if self._stop_at is not None:
            return
        if self._origin is None:
            log.event("error", "reload_failed", why="this pool was not started by the command line; start it anew")
            return
        self._reload_wanted = True

    def _drive_reload(self) -> None:
        if self._check is not None:
            if self._check.is_late:
                signal_group(self._check.pid, signal.SIGKILL)
            return
        # New workers that can't start must not keep out the code that mends them.
        if not self._reload_wanted or (self._replacing_since is not None and not self._young_deaths):
            return
        assert self._origin is not None
        self._reload_wanted = False
        log.event("info", "reloading", pid=self._pid, workers=len(self._children))
        self._notify.reloading()
        try:
            self._check = Check(self._origin, self._settings)
        except OSError as error:
            self._reload_failed(f"the check can't be started: {error}")

    def _checked(self, check: Check, code: int) -> None:
        words = check.ended(code)
        self._check = None
        if self._stop_at is not None:
            return
        if code != 0:
            late = f"the app was not imported within {CHECK_S:g} s"
            self._reload_failed(late if check.is_late else words or death_of(code).text.replace("worker", "check"))
        elif not self._reload_wanted:
            self._hand_over(SYSTEM.monotonic() - check.began)
        # Else what was checked may have changed since then: the loop begins anew.

    def _reload_failed(self, why: str) -> None:
        self._reload_error = why
        self._failed_reloads += 1
        self._notify.ready()
        log.event("error", "reload_failed", pid=self._pid, why=why, workers=len(self._children))

    def _hand_over(self, took_s: float) -> None:
        """The next image of this process goes on. Comes back only where that fails."""
        assert self._origin is not None
        # Nobody renews, and nobody gives a sign of life, while the app is imported.
        self._notify.beat(now=True)
        self._with_store(lambda: self._renew(self._settings.lease_ms + int(took_s * 4000)))
        self._deafen()
        self._waiter.close()
        if self._offline is not None:
            # It ends by itself; should the store still be away, the next image begins another.
            self._offline.stop()
        self._store.before_fork()
        block()
        left = Heritage(
            pid=self._pid,
            board_fd=self._board.fd,
            pid_fd=self._pid_file.fd if self._pid_file is not None else None,
            life=(self._life_r, self._life_w),
            control_fd=self._control.fd if self._control is not None else None,
            master=self._id,
            started_ms=self._started_ms,
            processes=self._settings.processes,
            want=self._want,
            shutdown_timeout_ms=self._settings.shutdown_timeout_ms,
            queues=self._all_names(),
            reloads=self._reloads,
            failed_reloads=self._failed_reloads,
            again=self._reload_wanted,
            outage_since=self._outage_since,
            outages=self._outages,
            watcher=self._watcher,
            mourned=list(self._mourning.waiting),
            signals=self._signals.came(),
        )
        left.keep(self._children, self._unreaped)
        try:
            left.replace_process(self._origin)
        except Exception as error:  # noqa: BLE001 - whatever it is, the workers need this master
            self._reload_failed(f"the next image can't be started: {error!r}")
            self._signals.again(left.signals)
        finally:
            unblock()
            self._waiter = self._store.timer_waiter(self._names)

    def _all_names(self) -> list[str]:
        """All queues that a worker of this master may hold claims of."""
        return [*self._names, *self._old_names]

    def _retire_surplus(self) -> None:
        """Lets those go that are too many: of an old generation one for each new worker that is up, so that never fewer
        than before claim; else the youngest."""
        fresh = [child for child in self._children.values() if not child.old and not child.retiring]
        old = [child for child in self._children.values() if child.old and not child.retiring]
        for child in sorted(fresh, key=lambda child: -child.born)[: max(0, len(fresh) - self._want)]:
            self._retire(child)
        surplus = sum(child.is_up for child in fresh) + len(old) - self._want
        if old and len(self._children) >= scoreboard.MOST and all(child.is_up for child in fresh):
            # No room for another: one has to go first.
            surplus = max(surplus, 1)
        for child in old[: max(0, surplus)]:
            self._retire(child)
        replaced = len(old) <= max(0, surplus) and sum(child.is_up for child in fresh) >= self._want
        if self._replacing_since is not None and replaced:
            took_s, self._replacing_since = SYSTEM.monotonic() - self._replacing_since, None
            self._reload_error = None
            finishing = sum(child.old for child in self._children.values())
            log.event("info", "reloaded", pid=self._pid, took_ms=int(took_s * 1000), finishing=finishing)

    def _retire(self, child: Child) -> None:
        child.retiring = True
        signal_one(child.pid, signal.SIGTERM)

    def _begin_stop(self, why: str) -> None:
        if self._stop_at is not None:
            return
        log.event("info", "stopping", why=why, workers=len(self._children))
        self._notify.stopping()
        self._stop_at = SYSTEM.monotonic() + self._settings.shutdown_timeout_ms / 1000
        if self._check is not None:
            signal_group(self._check.pid, signal.SIGKILL)
        if self._offline is not None:
            self._offline.stop()
        for child in self._children.values():
            signal_one(child.pid, signal.SIGTERM)

    def _kill_all(self) -> None:
        self._at_once = True
        for child in self._children.values():
            child.ended_by = child.ended_by or Death("stopped", "stopped at once")
            signal_group(child.pid, signal.SIGKILL)

    def _stopped(self) -> bool:
        """Drives the stop on; True when nothing is left to wait for."""
        assert self._stop_at is not None
        now = SYSTEM.monotonic()
        last_grace = min(LAST_GRACE_S, self._settings.grace_ms / 1000)
        if self._children and now >= self._stop_at and not self._interrupted:
            self._interrupted = True
            for child in self._children.values():
                log.event("warning", "interrupted", worker=child.slot.worker, **named(child.runs()))
                interrupt(child)
        if self._children and now >= self._stop_at + last_grace and not self._at_once:
            self._kill_all()
        if self._offline is not None and self._offline.pid is not None and not self._at_once:
            # It has the same time to stop in, and a moment to give back what it interrupts.
            return now >= self._stop_at + 2 * last_grace
        return not self._children and (not self._unreaped or self._at_once or now >= self._stop_at)

    # -- children

    def _spawn_missing(self) -> None:
        while (
            self._lacks_worker()
            and len(self._children) < scoreboard.MOST
            and SYSTEM.monotonic() >= self._spawn_not_before
            and self._stop_at is None
        ):
            self._spawn()

    def _lacks_worker(self) -> bool:
        """While an old generation works on, new workers come one by one: for a while there are more than wanted."""
        fresh = [child for child in self._children.values() if not child.retiring and not child.old]
        old = any(child.old and not child.retiring for child in self._children.values())
        return len(fresh) < self._want and (not old or all(child.is_up for child in fresh))

    def _spawn(self) -> None:
        taken = {child.place for child in self._children.values()}
        place = next(n for n in range(scoreboard.MOST) if n not in taken)
        slot = self._board.slot(place)
        slot.clear()
        slot.meter = self._meters.of(place) if self._meters is not None else None
        self._store.before_fork()
        sys.stdout.flush()
        sys.stderr.flush()
        stacks_fd = stacks.new_file()
        # A signal that comes between the fork and the child's own handlers waits until they stand.
        block()
        try:
            pid = os.fork()
            if pid == 0:
                newborn.live(self._app, self._settings, self._queues, slot, stacks_fd, self._let_go)
        except OSError as error:
            # No memory, or too many processes: those that there are work on.
            log.event("error", "fork_failed", error=str(error), workers=len(self._children))
            self._spawn_not_before = SYSTEM.monotonic() + TICK_S
            os.close(stacks_fd)
            return
        finally:
            unblock()
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        self._children[pid] = Child(pid, place, slot, SYSTEM.monotonic(), stacks_fd=stacks_fd)
        log.event("debug", "spawned", worker=place, pid=pid)

    def _let_go(self) -> None:
        """In a child: what is the master's is closed, and the child does not outlive it."""
        self._signals.let_go()
        die_with(self._life_r, self._life_w, parent=self._pid)
        self._store.after_fork()
        if self._pid_file is not None:
            self._pid_file.let_go()
        self._waiter.close()
        self._selector.close()
        for server in (self._control, self._exporter):
            if server is not None:
                server.let_go()
        for child in self._children.values():
            os.close(child.stacks_fd)

    # -- handlers that run while the store is away

    def _drive_offline(self) -> None:
        offline = self._offline
        if offline is None:
            return
        if self._outage_since is not None:
            offline.drive(self._outage_since)
        else:
            self._with_store(lambda: offline.drive(None))

    def _serve_offline(self, shelf: Shelf) -> int:
        """Forks the pool that serves what waits here; its workers are as many as this one's."""
        settings = replace(
            self._settings,
            url=f"spool:{shelf.path}",
            pid_file=None,
            metrics_port=None,
            fallback=False,
            processes=self._want,
        )
        self._store.before_fork()
        sys.stdout.flush()
        sys.stderr.flush()
        block()
        try:
            pid = os.fork()
            if pid == 0:
                code = FAILED
                try:
                    os.setpgid(0, 0)
                    self._let_go()
                    from batchq.offline import reopen

                    reopen(shelf)
                    code = Master(self._app, settings, self._queues).run()
                except BaseException as error:  # noqa: BLE001 - whatever it is, it must not run the master's code
                    log.event("error", "offline_failed", pid=os.getpid(), error=str(error) or repr(error))
                finally:
                    os._exit(code)
        finally:
            unblock()
        return pid

    def _bury_children(self) -> None:
        """Notices the dead, kills what they left running, and reaps their claims."""
        while (dead := reap_child(self._kill_group_of)) is not None:
            pid, code, peak = dead
            child = self._children.pop(pid, None)
            if self._check is not None and pid == self._check.pid:
                self._checked(self._check, code)
            if self._offline is not None and pid == self._offline.pid:
                self._offline.ended()
            if pid == self._watcher:
                # Its number may become another's.
                self._watcher = None
                log.event("warning", "not_watching", why=f"the watcher of files has ended with {code}")
            if child is None:
                continue  # A stranger: adopted as PID 1, or a handler's.
            self._claimed_before += child.slot.claimed
            os.close(child.stacks_fd)
            self._count_young(child, code)
            death = child.ended_by or death_of(code, peak, self._kills.has_grown() if code == -signal.SIGKILL else None)
            if code not in (0, UNSETTLED) and child.ended_by is None:
                log.event(
                    "error",
                    "worker_died",
                    worker=child.slot.worker,
                    pid=pid,
                    why=death.text,
                    **named(child.runs()),
                )
            if child.slot.worker:
                self._unreaped.append(Unreaped(child.slot.worker, death, child.charged()))
        if self._unreaped:
            self._with_store(self._reap)

    def _kill_group_of(self, pid: int) -> None:
        """What handlers spawned goes with their worker; the group of a stranger is none of ours."""
        if pid in self._children or (self._check is not None and pid == self._check.pid):
            signal_group(pid, signal.SIGKILL)

    def _count_young(self, child: Child, code: int) -> None:
        """Workers that can't start end the master; until then each is tried a little later than the one before."""
        if child.slot.state != scoreboard.BOOTING or code == 0 or child.ended_by:
            self._young_deaths = 0
            return
        self._young_deaths += 1
        self._spawn_not_before = SYSTEM.monotonic() + min(5.0, 0.1 * 2**self._young_deaths)
        some_work = any(child.slot.state != scoreboard.BOOTING for child in self._children.values())
        if self._young_deaths >= MOST_YOUNG and not some_work and self._stop_at is None:
            log.event("error", "workers_cant_start", tries=self._young_deaths, why=death_of(code).text)
            self._code = CANT_START
            self._begin_stop("workers can't start")

    def _reap(self) -> None:
        while self._unreaped:
            dead = self._unreaped[0]

            def ran(claim: Claim, runs: tuple[Run, ...] = dead.runs) -> bool:
                return any(run.is_of(claim) for run in runs)

            terms, settings = self._runner.terms, self._settings
            if dead.death.cause == "lost":
                queues = sorted({*self._all_names(), *self._store.queues()})
                text = f"worker {dead.worker} ended with its master, which was killed"
                counted = reap_left(
                    self._store, queues, dead.worker, ran, terms, settings.max_lost, self._mourning.add, text
                )
            elif dead.death.cause == "crashed" and len(dead.runs) > 1:
                text = f"{dead.death.text}; {len(dead.runs)} jobs were under way, nobody knows whose fault it was"
                counted = reap_left(
                    *(self._store, self._all_names(), dead.worker, ran, terms, settings.max_lost),
                    *(self._mourning.add, text),
                )
            else:
                counted = reap_own(
                    self._store,
                    self._all_names(),
                    dead.worker,
                    dead.death,
                    ran,
                    terms,
                    settings.max_crashes,
                    self._mourning.add,
                )
            self._unreaped.pop(0)
            if counted["lost"]:
                log.event("warning", "reaped_lost", worker=dead.worker, jobs=counted["lost"], why=dead.death.text)
            if counted["released"]:
                log.event("info", "released", worker=dead.worker, jobs=counted["released"], why=dead.death.text)
        self._timers.sweep = 0.0

    def _watch_claims(self) -> None:
        """Does what the watchdog says about a pool that consumes nothing."""
        for child in self._children.values():
            if SYSTEM.monotonic() >= child.doomed_at and child.slot.state == scoreboard.IDLE and not child.ended_by:
                child.ended_by = Death("stopped", "replaced: it claimed nothing")
                signal_group(child.pid, signal.SIGKILL)
        if self._board.quiet or self._outage_since is not None:
            return
        idle = [child for child in self._children.values() if child.slot.state == scoreboard.IDLE]
        claimed = self._claimed_before + sum(child.slot.claimed for child in self._children.values())
        step = self._watchdog.look(
            SYSTEM.monotonic(), claimed, some_idle=bool(idle), is_ready=lambda: bool(self._ready_queues())
        )
        if step is None:
            return
        why = f"jobs are ready on {','.join(self._ready_queues())}, {len(idle)} workers are idle, and none is claimed"
        log.event("error", "stalled", pid=self._pid, step=step.name.lower(), why=why)
        for child in idle:
            if step is Step.RECONNECT:
                child.slot.want_anew()
                signal_one(child.pid, ORDER_SIGNAL)
            elif step is Step.REPLACE:
                self._retire(child)
                child.doomed_at = SYSTEM.monotonic() + min(LAST_GRACE_S, self._settings.grace_ms / 1000)
        if step is Step.GIVE_UP:
            self._code = GAVE_UP
            self._begin_stop("the watchdog gave up")

    def _ready_queues(self) -> list[str]:
        """Queues from which jobs could be claimed now."""
        ready: list[str] = []

        def ask() -> None:
            looks = ((queue, self._store.stats(queue)) for queue in self._names)
            ready.extend(queue for queue, stats in looks if stats.counts["pending"] and not stats.paused)

        self._with_store(ask)
        return ready

    # -- time, leases, sweeps

    def _listen(self) -> None:
        """Waits for news of the earliest fire-time, in the selector."""
        if self._is_away():
            return
        began = SYSTEM.monotonic()
        try:
            self._waiter.arm()
            fd = self._waiter.fileno()
        except StoreUnavailable as error:
            self._lost_store(error, began)
            return
        if fd != self._waiter_fd:
            self._deafen()
            self._selector.register(fd, selectors.EVENT_READ)
            self._waiter_fd = fd

    def _deafen(self) -> None:
        if self._waiter_fd is not None:
            with contextlib.suppress(KeyError, ValueError, OSError):
                self._selector.unregister(self._waiter_fd)
            self._waiter_fd = None

    def _heard(self) -> None:
        # Taking the news may close the descriptor, and another may get its number.
        self._deafen()
        if self._waiter.take():
            self._timers.fire = dict.fromkeys(self._names, 0.0)

    def _with_store(self, act: Callable[[], None]) -> None:
        """Runs one errand; an outage is one line when it begins and one when it ends, and errands wait for its end."""
        if self._is_away():
            return
        began = SYSTEM.monotonic()
        try:
            act()
        except StoreUnavailable as error:
            self._lost_store(error, began)
        except StoreError as error:
            log.event("error", "store_failed", error=str(error))
        except Exception as error:  # noqa: BLE001 - one errand that fails must not end the pool, nor the other errands
            log.event("error", "errand_failed", error=repr(error), exc=error)

    def _is_away(self) -> bool:
        """Tries a store that was away, now and then; all errands are done at once when it is back."""
        if self._outage_since is None:
            return False
        began = SYSTEM.monotonic()
        if began < self._try_store_at:
            return True
        try:
            # A write: a server that has become a replica, or can't save, answers reads all the same.
            self._store.promote(self._names[0], 1)
        except StoreUnavailable as error:
            self._lost_store(error, began)
            return True
        log.event(
            "warning",
            "store_back",
            after_ms=int((SYSTEM.monotonic() - self._outage_since) * 1000),
            spooled=self._store.waiting_here(),
            outages=self._outages,
        )
        self._outage_since = None
        self._timers = Timers(fire=dict.fromkeys(self._names, 0.0))
        return False

    def _lost_store(self, error: StoreUnavailable, began: float) -> None:
        self._deafen()
        now = SYSTEM.monotonic()
        # A refusal costs nothing, a server that hangs costs a time-out: the loop has other things to do.
        self._try_store_at = now + min(TICK_S, max(TRY_S, now - began))
        if self._outage_since is None:
            self._outage_since = now
            self._outages += 1
            log.event("error", "store_unavailable", error=str(error))

    def _keep_time(self) -> None:
        now, t, s = SYSTEM.monotonic(), self._timers, self._settings
        if now >= t.sweep:
            for server in (self._control, self._exporter):
                if server is not None:
                    server.tidy()
        if now >= t.sweep:
            t.sweep = now + min(TICK_S, s.sweep_ms / 1000)
            t.fire = dict.fromkeys(self._names, 0.0)
            self._with_store(self._ingest)
            if self._unreaped:
                self._with_store(self._reap)
        if any(due <= now for due in t.fire.values()):
            self._with_store(self._promote)
        # Cancel marks come with the renewals: while a job is active they are asked for each second.
        busy = any(child.slot.state == scoreboard.BUSY for child in self._children.values())
        if now >= t.renew or (busy and now >= t.renewed + TICK_S):
            t.renewed, t.renew = now, now + s.lease_ms / 3000
            self._with_store(self._renew)
        if now >= t.watch:
            t.watch = now + s.lease_ms / 3000
            self._with_store(self._look_for_lost)
        if now >= t.publish:
            t.publish = now + PUBLISH_S
            states = [child.slot.state for child in self._children.values()]
            self._notify.status(f"{self.state}, {len(states)} workers, {states.count(scoreboard.BUSY)} busy")
            self._with_store(self._publish)
        if now >= t.expire:
            t.expire = now + EXPIRE_S
            self._with_store(self._expire)

    def _promote(self) -> None:
        """Moves what is due, and learns when the next one is. A full sweep is repeated at once."""
        fire = self._timers.fire
        for queue in [queue for queue, due in fire.items() if due <= SYSTEM.monotonic()]:
            # Should the store be away: the next sweep asks again.
            fire[queue] = SYSTEM.monotonic() + TICK_S
            promoted = self._store.promote(queue)
            if promoted.moved >= PROMOTE_LIMIT:
                fire[queue] = 0.0
            elif promoted.next_in_ms is not None:
                fire[queue] = SYSTEM.monotonic() + max(0.0, promoted.next_in_ms) / 1000

    def _renew(self, lease_ms: int | None = None) -> None:
        # A stopped child is not renewed: when its lease is over it is reaped like any other.
        children = {c.slot.worker: c for c in self._children.values() if c.slot.worker and not is_stopped(c.pid)}
        if not children:
            return
        for queue in self._all_names():
            renewal = self._store.renew(queue, list(children), lease_ms or self._settings.lease_ms)
            for worker, word in zip(children, renewal.words, strict=True):
                if word is Word.SEALED:
                    log.event("warning", "lease_lost", queue=queue, worker=worker)
            for worker, job_id, token in renewal.marks:
                child = children[worker]
                for entry, run in child.slot.under_way():
                    # One of many can't be interrupted alone: the mark is obeyed with its outcome.
                    is_it = (run.queue, run.id, run.token) == (queue, job_id, token) and not run.whole
                    if is_it and run.number not in child.orders:
                        log.event("info", "cancelling", worker=worker, **named([run]))
                        give_order(child, entry, run, scoreboard.CANCEL)

    def _look_for_lost(self) -> None:
        for queue in self._names:
            for worker, end in self._watch.look(queue, self._store.leases(queue), SYSTEM.monotonic()):
                reap_lost(
                    self._store, queue, worker, end, self._runner.terms, self._settings.max_lost, self._mourning.add
                )

    def _ingest(self) -> None:
        """Takes in what other programs dropped into the store's inbox; the next round goes on where there is more."""
        took = self._store.sweep_inbox()
        if took.jobs:
            log.event("info", "ingested", files=took.files, jobs=took.jobs)
        if took.bad:
            log.event("warning", "moved_aside", files=took.bad, why="no valid parcels; their reasons stand beside them")
        if took.files or took.bad:
            self._timers.sweep = 0.0

    def _expire(self) -> None:
        for queue in self._names:
            expire(self._store, queue, dead_keep_ms=self._settings.dead_keep_ms, dead_limit=self._settings.dead_limit)

    def _publish(self) -> None:
        self._store.publish(self._id, self._status(), int(PUBLISH_S * 3000))

    def _status(self) -> dict[str, object]:
        """What `batchq workers` shows of this master."""
        return {
            "id": self._id,
            "host": platform.node(),
            "pid": os.getpid(),
            "since_ms": self._started_ms,
            "at_ms": SYSTEM.now_us() // 1000,
            "state": self.state,
            "processes": self._want,
            "reloads": self._reloads,
            "failed_reloads": self._failed_reloads,
            "reload_error": self._reload_error,
            "queues": self._names,
            "outages": self._outages,
            "spool": self._settings.spool if self._settings.fallback else "",
            "workers": workers_of(self._children.values()),
        }

    def _is_drained(self) -> bool:
        """For --burst: nothing is left on any queue that is not paused, and nobody works."""
        before = self._work_done()
        if (
            self._unreaped
            or self._mourning.waiting
            or any(state not in (scoreboard.IDLE, scoreboard.QUIET) for state, _ in before)
        ):
            return False
        left = 0

        def count() -> None:
            nonlocal left
            left = 0
            for queue in self._names:
                stats = self._store.stats(queue)
                left += stats.counts["active"]
                if not stats.paused:
                    left += stats.counts["pending"] + (stats.counts["delayed"] if self._burst == "all" else 0)

        left = 1
        self._with_store(count)
        # Race: a job that ran between the looks at two queues may have put another into the first.
        return left == 0 and self._work_done() == before

    def _work_done(self) -> list[tuple[int, int]]:
        """What each worker does, and how many jobs it has claimed so far."""
        return [(child.slot.state, child.slot.claimed) for child in self._children.values()]

    # -- the end

    def _end(self) -> None:
        """Whatever happened: no child is left, nothing is held that could be given back."""
        if self._watcher is not None:
            signal_group(self._watcher, signal.SIGKILL)
        if self._offline is not None and self._offline.pid is not None:
            # Its workers die with it; what they held is found by its lease.
            signal_one(self._offline.pid, signal.SIGKILL)
        for child in self._children.values():
            child.ended_by = child.ended_by or Death("stopped", "stopped with its master")
            signal_group(child.pid, signal.SIGKILL)
        while self._children:
            self._bury_children()
            if self._children:
                time.sleep(0.005)
        if self._unreaped:
            self._with_store(self._reap)
        unmourned = len(self._mourning.waiting)
        if unmourned:
            log.event("warning", "hooks_not_called", hook="on_dead", jobs=unmourned, why="the pool has ended")
        if self._unreaped:
            log.event(
                "error",
                "not_given_back",
                workers=len(self._unreaped),
                why="the store is away; leases will tell"
                + ("" if self._pid_file is None else ", or the next start here"),
            )
            self._code = self._code or FAILED
        self._with_store(lambda: self._store.publish(self._id, {}, 0))
        self._waiter.close()
        for server in (self._control, self._exporter):
            if server is not None:
                server.close()
        self._selector.close()
        for fd in (self._life_r, self._life_w):
            os.close(fd)
