"""The prefork master: one single-threaded loop of signals, children, timers and a store handle. Runs no handler, ever.

It forks the workers, owns their leases, keeps the time (promotes what is due), notices a dead worker at once and reaps
it, enforces time limits, and stops everything in order. gunicorn's arbiter is the model. A signal handler only records
the signal; the loop acts. What it does at the store: `keeper`; the workers: `crew`; reloads: `reload`; the end:
`stopping`.
"""

from __future__ import annotations

import gc
import os
import platform
import selectors
import signal
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from batchq import log
from batchq.app import App
from batchq.clock import SYSTEM
from batchq.config import MAX_PROCESSES, Settings
from batchq.errors import ConfigError
from batchq.job import random_name
from batchq.master import autoreload, newborn, orders, stacks
from batchq.master.children import Child, Unreaped, death_of, signal_group, signal_one
from batchq.master.control import ControlServer
from batchq.master.crew import Crew
from batchq.master.exporter import Exporter, Health
from batchq.master.guardian import Guardian
from batchq.master.handover import Heritage, Origin
from batchq.master.keeper import TICK_S, Keeper
from batchq.master.leavings import clear_away
from batchq.master.limits import Limits
from batchq.master.mourning import Mourning
from batchq.master.reload import Reload
from batchq.master.report import log_started, log_workers, waiting_in_spool, workers_of
from batchq.master.signals import Signals, unblock
from batchq.master.stalls import Stalls
from batchq.master.stopping import Stop
from batchq.master.sweeps import Death
from batchq.stores import attach_inbox, make_offline, open_store
from batchq.system import scoreboard, streams
from batchq.system.meters import Meters
from batchq.system.notify import Notifier
from batchq.system.parent import birth_of, die_with, reap_child
from batchq.system.pidfile import PidFile
from batchq.system.scoreboard import Owner, Scoreboard
from batchq.system.titles import Title
from batchq.worker.base import ORDER_SIGNAL
from batchq.worker.desk import boot_id
from batchq.worker.runner import Runner

if TYPE_CHECKING:
    from batchq.fallback.offline import Offline, Shelf

Burst = Literal["all", "ready"]

#: Exit codes of `batchq start`.
DONE, FAILED, CANT_START, NO_STORE, GAVE_UP = 0, 1, 3, 4, 5

#: The loop looks so often while handlers with time limits run, or a stop is under way.
SHORT_TICK_S = 0.05
#: While a reload replaces workers it looks so often, to see that a new one is up.
REPLACE_TICK_S = 0.01


class Master:
    """`run` answers the exit code: 0 done; 1 stopped with work that could not be given back, or another failure; 3
    workers can't start; 4 the store can't be reached at the start; 5 the watchdog gave up.

    `origin`: how the next image is started; without it there is no reload. `burst`: end when nothing is left; "ready"
    does not wait for the delayed ones. `heritage`: what the image before this one left, with the signals that are
    recorded since.
    """

    def __init__(
        self,
        app: App,
        settings: Settings,
        origin: Origin | None = None,
        *,
        burst: Burst | None = None,
        heritage: Heritage | None = None,
        signals: Signals | None = None,
        watches_files: bool = False,
    ) -> None:
        self._app = app
        self._settings = settings
        self._origin = origin
        #: (name, weight); where none is named all that the handlers name, and `default`.
        self._queues = list(settings.queues) or [(name, 1) for name in app.registry.queues()]
        self._names = [name for name, _ in self._queues]
        self._burst = burst
        self._pid = os.getpid()
        self._notify = Notifier(self._pid)
        self._crew = Crew(settings.processes)
        self._stop = Stop(settings, self._crew)
        self._reload = Reload(origin, settings, self._crew, self._notify)
        self._heritage = heritage
        self._early_signals = signals
        self._autoreload = watches_files
        #: The process that asks for reloads when files change.
        self._watcher = heritage.watcher if heritage is not None else None
        #: Runs what may run while the store is away.
        self._offline: Offline | None = None
        #: Where workers count for the metrics; None: nobody asked for them.
        self._meters: Meters | None = None
        self._dumps = stacks.Dumps()
        self._limits = Limits(settings, app.registry)
        self._is_ready = heritage is not None
        self._id = f"{platform.node()}.{boot_id()}.{self._pid}.{random_name(8)}"
        self._started_ms = SYSTEM.now_us() // 1000
        self._pid_file = PidFile(settings.pid_file) if settings.pid_file else None
        self._code = DONE

    # -- life

    @property
    def _is_all_done(self) -> bool:
        """Nothing stands on the board that the next start would look after."""
        return not self._crew.unreaped and not self._crew.children and not self._mourning.waiting

    def run(self) -> int:
        mine = False
        self._signals = self._early_signals or Signals()
        try:
            self._me = Owner(self._pid, birth_of(self._pid), os.getsid(0), boot_id())
            if self._heritage is None:
                self._take_board()
            else:
                self._inherit(self._heritage)
            mine = True
            self._mourning = Mourning(self._board, wanted=bool(self._app.dead_hooks))
            if self._heritage is None:
                self._mourning.gather()
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
                self._pid_file.remove(board=mine and self._is_all_done)
            self._signals.deafen()

    def _take_board(self) -> None:
        """The pid file's lock, and the scoreboard beside it with what a killed master left there."""
        if self._pid_file is None:
            self._board = Scoreboard()
            return
        self._pid_file.take()
        where = self._pid_file.board
        self._board = Scoreboard.at(where)
        death = Death("lost", "its master was killed")
        self._crew.unreaped = [
            Unreaped(left.worker, death, left.runs) for left in clear_away(self._board, self._me, where)
        ]

    def _inherit(self, left: Heritage) -> None:
        """Goes on where the image before this one stopped: see `_hand_over`."""
        self._board = Scoreboard(fd=left.board_fd)
        if self._pid_file is not None:
            self._pid_file.adopt(left.pid_fd)
        self._life_r, self._life_w = left.life
        self._id, self._started_ms = left.master, left.started_ms
        if left.processes == self._settings.processes:
            self._crew.want = left.want
        self._reload.took_over(left.reloads, left.failed_reloads, again=left.again)
        self._crew.children = left.workers(self._board)
        self._crew.unreaped = left.dead()
        self._signals.again(left.signals)

    def _run(self) -> int:
        if not self._store.traits.shared:
            raise ConfigError(
                f"url: a {self._store.traits.kind} store is seen by one process only; "
                "start needs redis://... or spool:PATH"
            )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._signals.fd, selectors.EVENT_READ)
        self._keeper = self._new_keeper(self._heritage)
        period_s = self._settings.watchdog_ms / 1000
        self._stalls = Stalls(self._crew, self._keeper, period_s=period_s, patience_s=self._stop.last_grace_s)
        met = self._keeper.begin(may_be_away=self._heritage is not None)
        if met is None:
            return NO_STORE
        if self._heritage is None:
            self._board.own(self._me)
            self._life_r, self._life_w = os.pipe()
        guarding = self._heritage.guardian_fd if self._heritage is not None else None
        self._guardian = Guardian(self._board.fd, self._me, self._selector, guarding)
        # What the app's module used while it was loaded stays on this side of the forks.
        self._app.close()
        self._control = self._open_control()
        self._servers = [one for one in (self._control, self._open_exporter()) if one is not None]
        verb = "started" if self._heritage is None else "took_over"
        log_started(verb, self._app, self._settings, queues=self._queues, processes=self.processes, server=met[0])
        for warning in met[1] if self._heritage is None else ():
            log.event("warning", "store_warning", why=warning)
        # Not collected before: the holes would be filled by the children, each page of them a copy.
        gc.freeze()
        try:
            self._title = Title(f"master of {self._app.name}")
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

    def _new_keeper(self, left: Heritage | None) -> Keeper:
        return Keeper(
            self._store,
            self._settings,
            self._crew,
            self._mourning,
            self._selector,
            names=self._names,
            old_names=[name for name in left.queues if name not in self._names] if left else [],
            terms_of=Runner(self._app.registry, self._settings).terms,
            master=self._id,
            tell=self._tell,
            outage_since=left.outage_since if left else None,
            outages=left.outages if left else 0,
        )

    # -- the loop

    def _turn(self) -> bool:
        """One round; True when the master is to end."""
        self._keeper.listen()
        for key, mask in self._selector.select(self._patience()):
            if key.data is not None:
                key.data(mask)
        came = self._signals.came()
        for number in came:
            orders.obey(self, number)
        if signal.SIGCHLD in came:
            self._crew.lay_off_stopped()
        self._bury_children()
        self._guardian.keep()
        self._limits.enforce(list(self._crew), stopping=self._stop.interrupted)
        self._keeper.keep_time()
        self._tell_manager()
        if (lost := streams.take_loss()) is not None:
            log.event("warning", "output_lost", bytes=lost.bytes, why=lost.why)
        for server in self._servers:
            server.tidy()
        self._dumps.look(self._crew)
        if self.is_stopping:
            return self._stop.drive(others=self._offline is not None and self._offline.pid is not None)
        self._drive_offline()
        self._mourning.drive(list(self._crew), quiet=self._board.quiet)
        if self._stalls.look(quiet=self._board.quiet):
            self._give_up(GAVE_UP, "the watchdog gave up")
        self._reload.drive()
        while self._crew.is_short and self._spawn():
            pass
        if self._crew.retire_surplus():
            self._reload.replaced()
        if self._burst is not None and self._is_drained(self._burst):
            self.stop("burst", at_once=False)
        return False

    def _patience(self) -> float:
        """How long the loop may sleep: to the next fire-time, sweep or limit."""
        now = SYSTEM.monotonic()
        wait = self._keeper.patience()
        if self.is_stopping or self._burst is not None or not self._is_ready:
            wait = min(wait, SHORT_TICK_S)
        if self._stalls.look_s:
            wait = min(wait, self._stalls.look_s)
        if self._notify.beat_s is not None:
            wait = min(wait, self._notify.beat_s)
        if self._dumps.due is not None:
            wait = min(wait, self._dumps.due - now)
        if self._reload.is_replacing or self._mourning.is_under_way:
            wait = min(wait, REPLACE_TICK_S)
        if len(self._crew) < self._crew.want and not self.is_stopping:
            wait = min(wait, self._crew.spawn_at - now)
        if self._limits.is_pressing(self._crew):
            wait = min(wait, SHORT_TICK_S)
        elif self._limits.may_come:
            wait = min(wait, TICK_S / 4)
        return max(0.0, wait)

    def _tell_manager(self) -> None:
        """A sign of life, the title; and that the pool is ready, once a worker is up, or only the store is missing."""
        self._notify.beat()
        self._title.say(f"{self.state}, {len(self._crew)} workers")
        if not self._is_ready and (self._keeper.outage_since is not None or self._crew.some_up):
            self._is_ready = True
            self._notify.ready()
            # Who asks at once is not to hear of no worker until the next time.
            self._keeper.publish_in(SHORT_TICK_S)

    # -- orders: see `orders`

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_under_way

    @property
    def processes(self) -> int:
        return self._crew.want

    @property
    def state(self) -> str:
        """stopping, reloading, quiet or running."""
        if self.is_stopping:
            return "stopping"
        if self._reload.is_under_way:
            return "reloading"
        return "quiet" if self._board.quiet else "running"

    def stop(self, why: str, *, at_once: bool) -> None:
        """In order; or without waiting for what runs, also when it has begun in order."""
        if not self.is_stopping:
            self._notify.stopping()
            self._reload.give_up()
            if self._offline is not None:
                self._offline.stop()
            self._stop.begin(why)
        if at_once:
            self._stop.at_once()

    def reload(self) -> None:
        """Asks for a reload: it begins when none is under way."""
        if not self.is_stopping:
            self._reload.ask()

    def resize(self, want: int) -> None:
        """So many workers from now on; at least one."""
        want = max(1, min(MAX_PROCESSES, want))
        if want != self._crew.want:
            self._crew.want = want
            log.event("info", "resized", processes=want)

    def be_quiet(self, quiet: bool) -> None:
        """Claim nothing more, and give back what has not started; or go on."""
        if self._board.quiet == quiet or self.is_stopping:
            return
        self._board.quiet = quiet
        # The workers will have said so by then.
        self._keeper.publish_in(SHORT_TICK_S)
        log.event("info", "quiet" if quiet else "going_on", workers=len(self._crew))
        for child in self._crew:
            # An order that is none: it wakes who waits.
            signal_one(child.pid, ORDER_SIGNAL)

    def dump(self) -> None:
        """The scoreboard goes to the log now, the workers' stacks as soon as they have written them."""
        log.event(
            "info",
            "scoreboard",
            pid=self._pid,
            workers=len(self._crew),
            want=self._crew.want,
            quiet=self._board.quiet,
            unreaped=len(self._crew.unreaped),
            store="up" if self._keeper.outage_since is None else "away",
        )
        log_workers(self._crew)
        self._dumps.ask(self._crew)

    # -- what others are told

    def _open_control(self) -> ControlServer | None:
        if self._pid_file is None:
            return None
        inherited = self._heritage.control_fd if self._heritage is not None else None
        try:
            return ControlServer(self._pid_file.socket, self._selector, partial(orders.answer, self), inherited)
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
            spooled = partial(waiting_in_spool, s)
            made = Exporter(address, self._selector, self._store, self._meters, self._health, self.status, spooled)
        except ConfigError as error:
            if self._heritage is None:
                raise
            log.event("error", "no_metrics", error=str(error))
            return None
        log.event("info", "metrics", pid=self._pid, address=f"{s.metrics_host}:{made.port}")
        return made

    def _health(self) -> Health:
        away = self._keeper.outage_since is not None
        unready = "the store is away" if away else "" if self._is_ready else "no worker is up yet"
        if self.state in ("stopping", "quiet"):
            unready = self.state
        return Health(self.state, unready, not away)

    def _tell(self) -> dict[str, object]:
        """What is published each few seconds; the service manager hears the short form of it."""
        busy = len(self._crew.in_state(scoreboard.BUSY, scoreboard.STOPPING))
        self._notify.status(f"{self.state}, {len(self._crew)} workers, {busy} busy")
        return self.status()

    def status(self) -> dict[str, object]:
        """What `batchq workers` shows of this master."""
        return {
            "id": self._id,
            "host": platform.node(),
            "pid": os.getpid(),
            "since_ms": self._started_ms,
            "at_ms": SYSTEM.now_us() // 1000,
            "state": self.state,
            "processes": self.processes,
            "reloads": self._reload.done,
            "failed_reloads": self._reload.failed,
            "reload_error": self._reload.error,
            "queues": self._names,
            "outages": self._keeper.outages,
            "spool": self._settings.spool if self._settings.fallback else "",
            "workers": workers_of(self._crew),
        }

    # -- children

    def _spawn(self) -> bool:
        """One worker more. False where there can't be one now."""
        place = self._crew.free_place()
        slot = self._board.slot(place)
        slot.clear()
        slot.meter = self._meters.of(place) if self._meters is not None else None
        self._store.before_fork()
        try:
            pid, stacks_fd, asks_fd = newborn.fork(self._app, self._settings, self._queues, slot, self._let_go)
        except OSError as error:
            # No memory, or too many processes or files: those that there are work on.
            log.event("error", "fork_failed", error=str(error), workers=len(self._crew))
            self._crew.count_failed_fork()
            self._look_who_can_start(f"no process can be forked: {error}")
            return False
        self._crew.add(Child(pid, place, slot, SYSTEM.monotonic(), stacks_fd=stacks_fd, asks_fd=asks_fd))
        log.event("debug", "spawned", worker=place, pid=pid)
        return True

    def _let_go(self) -> None:
        """In a child: what is the master's is closed, and the child does not outlive it."""
        self._signals.let_go()
        die_with(self._life_r, self._life_w, parent=self._pid)
        self._store.after_fork()
        if self._pid_file is not None:
            self._pid_file.let_go()
        self._keeper.let_go()
        self._guardian.let_go()
        self._selector.close()
        for server in self._servers:
            server.let_go()
        for child in self._crew:
            child.let_go()

    def _bury_children(self) -> None:
        """Notices the dead, kills what they left running, and reaps their claims."""
        while (dead := reap_child(self._kill_group_of)) is not None:
            if (child := self._crew.bury(dead)) is not None:
                self._mourning.bury(child)
                self._look_who_can_start(death_of(dead.code).text)
            elif self._reload.is_check(dead.pid):
                took_s = self._reload.checked(dead.code, stopping=self.is_stopping)
                if took_s is not None:
                    self._hand_over(took_s)
            elif self._offline is not None and dead.pid == self._offline.pid:
                self._offline.ended()
            elif dead.pid == self._watcher:
                # Its number may become another's.
                self._watcher = None
                log.event("warning", "not_watching", why=f"the watcher of files has ended with {dead.code}")
            # Else a stranger: adopted as PID 1, or a handler's.
        self._keeper.reap_soon()

    def _kill_group_of(self, pid: int) -> None:
        """What handlers spawned goes with their worker; the group of a stranger is none of ours."""
        if pid in self._crew.children or self._reload.is_check(pid):
            signal_group(pid, signal.SIGKILL)

    def _look_who_can_start(self, why: str) -> None:
        if self._crew.cant_start and not self.is_stopping:
            log.event("error", "workers_cant_start", tries=self._crew.young_deaths, why=why)
            self._give_up(CANT_START, "workers can't start")

    def _give_up(self, code: int, why: str) -> None:
        self._code = code
        self.stop(why, at_once=False)

    # -- handlers that run while the store is away

    def _drive_offline(self) -> None:
        if self._offline is None:
            return
        offline, away = self._offline, self._keeper.outage_since
        if away is not None:
            offline.drive(away)
        else:
            self._keeper.attempt(lambda: offline.drive(None))

    def _serve_offline(self, shelf: Shelf) -> int:
        """Forks the pool that serves what waits here; its workers are as many as this one's."""
        settings = replace(
            self._settings,
            url=f"spool:{shelf.path}",
            queues=tuple(self._queues),
            pid_file=None,
            metrics_port=None,
            fallback=False,
            processes=self.processes,
        )

        self._store.before_fork()
        return newborn.fork_pool(self._let_go, lambda: Master(self._app, settings).run())

    # -- the next image

    def _hand_over(self, took_s: float) -> None:
        """The next image of this process goes on, and will take so long to begin. Comes back only where that fails."""
        assert self._origin is not None
        # Nobody renews, and nobody gives a sign of life, while the app is imported.
        self._notify.beat(now=True)
        self._keeper.renew(self._settings.lease_ms + int(took_s * 4000))
        self._keeper.hang_up()
        if self._offline is not None:
            # It ends by itself; should the store still be away, the next image begins another.
            self._offline.stop()
        self._store.before_fork()
        left = Heritage(
            pid=self._pid,
            board_fd=self._board.fd,
            pid_fd=self._pid_file.fd if self._pid_file is not None else None,
            life=(self._life_r, self._life_w),
            control_fd=self._control.fd if self._control is not None else None,
            signal_fds=self._signals.fds,
            master=self._id,
            started_ms=self._started_ms,
            processes=self._settings.processes,
            want=self._crew.want,
            shutdown_timeout_ms=self._settings.shutdown_timeout_ms,
            queues=self._keeper.all_names,
            reloads=self._reload.done,
            failed_reloads=self._reload.failed,
            again=self._reload.wanted,
            outage_since=self._keeper.outage_since,
            outages=self._keeper.outages,
            watcher=self._watcher,
            guardian_fd=self._guardian.fd,
            signals=self._signals.came(),
        )
        left.keep(self._crew.children, self._crew.unreaped)
        try:
            left.replace_process(self._origin)
        except Exception as error:  # noqa: BLE001 - whatever it is, the workers need this master
            self._reload.fail(f"the next image can't be started: {error!r}")
            self._signals.again(left.signals)
        finally:
            unblock()

    # -- the end

    def _is_drained(self, burst: Burst) -> bool:
        """For --burst: nothing is left on any queue that is not paused, and nobody works."""
        before = self._work_done()
        if self._crew.unreaped or self._mourning.waiting:
            return False
        if any(state not in (scoreboard.IDLE, scoreboard.QUIET) for state, _ in before):
            return False
        # Race: a job that ran between the looks at two queues may have put another into the first.
        return self._keeper.is_drained(wait_for_delayed=burst == "all") and self._work_done() == before

    def _work_done(self) -> list[tuple[int, int]]:
        """What each worker does, and how many jobs it has claimed so far."""
        return [(child.slot.state, child.slot.claimed) for child in self._crew]

    def _end(self) -> None:
        """Whatever happened: no child is left, nothing is held that could be given back."""
        if self._watcher is not None:
            signal_group(self._watcher, signal.SIGKILL)
        if self._offline is not None and self._offline.pid is not None:
            # Its workers die with it; what they held is found by its lease.
            signal_one(self._offline.pid, signal.SIGKILL)
        for child in self._crew:
            self._crew.kill(child, "stopped with its master")
        while self._crew.children:
            self._bury_children()
            if self._crew.children:
                time.sleep(0.005)
        self._keeper.reap_soon(last=True)
        self._say_what_is_left()
        self._keeper.close()
        self._guardian.close()
        for server in self._servers:
            server.close()
        self._selector.close()
        for fd in (self._life_r, self._life_w):
            os.close(fd)

    def _say_what_is_left(self) -> None:
        unmourned, unreaped = len(self._mourning.waiting), len(self._crew.unreaped)
        next_start = "" if self._pid_file is None else ", or the next start here"
        if unmourned:
            why = (
                "the pool has ended" if self._pid_file is None else "the pool has ended; the next start here calls them"
            )
            log.event("warning", "hooks_not_called", hook="on_dead", jobs=unmourned, why=why)
        if unreaped:
            why = "the store is away" if self._keeper.outage_since is not None else "the store does not do it"
            log.event("error", "not_given_back", workers=unreaped, why=f"{why}; leases will tell{next_start}")
            self._code = self._code or FAILED
