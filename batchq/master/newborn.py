"""The fork of a worker, and the child's side of it: from the master's memory to a worker. It finalises nothing that it
inherited.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from batchq import backoff, log
from batchq.app import App
from batchq.config import Settings
from batchq.errors import BatchqError
from batchq.master import stacks
from batchq.master.signals import blocked, unblock
from batchq.stores import open_store
from batchq.system.memory import be_first_to_go
from batchq.system.parent import birth_of
from batchq.system.pipes import pipe
from batchq.system.scoreboard import Slot
from batchq.system.titles import Title
from batchq.worker.base import BROKEN, ORDER_SIGNAL
from batchq.worker.worker import Worker

if TYPE_CHECKING:
    from batchq.worker.concurrent import ConcurrentWorker

#: What the master keeps for its own errands: the store, the control socket, a reload.
SPARE_FDS = 16


def fork(
    app: App, settings: Settings, queues: Sequence[tuple[str, int]], slot: Slot, let_go: Callable[[], None]
) -> tuple[int, int, int]:
    """A worker at that slot. Answers its pid, the descriptor to which it writes its stacks, and that of the pipe by
    which it is asked for them. Raises OSError where there can't be another process."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Imported on this side of the fork, once for all.
    kind = _kind(settings)
    fds = [stacks.new_file()]
    try:
        fds += pipe()
        _leave_some(max(fds))
        stacks_fd, asked_fd, asks_fd = fds
        os.set_blocking(asked_fd, True)
        # A signal that comes between the fork and the child's own handlers waits until they stand.
        with blocked():
            pid = os.fork()
            if pid == 0:
                os.close(asks_fd)
                _live(kind, app, settings, queues, slot, stacks_fd, asked_fd, let_go)
    except OSError:
        for fd in fds:
            os.close(fd)
        raise
    os.close(asked_fd)
    # Both sides do it: whoever is first.
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    return pid, stacks_fd, asks_fd


def fork_pool(let_go: Callable[[], None], live: Callable[[], int]) -> int:
    """A pool of its own beside this one; answers its pid. `live` is its whole life, and answers its exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    with blocked():
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setpgid(0, 0)
                let_go()
                code = live()
            except BaseException as error:  # noqa: BLE001 - whatever it is, it must not run the master's code
                log.event("error", "offline_failed", pid=os.getpid(), error=str(error) or repr(error))
            finally:
                os._exit(code)
    return pid


def _leave_some(fd: int) -> None:
    """Raises OSError where too few descriptors would be left to the master. `fd`: the lowest number that was free."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and fd >= limit - SPARE_FDS:
        text = f"Too many open files: a worker more would leave the master fewer than {SPARE_FDS} of {limit}"
        raise OSError(errno.EMFILE, f"{text}; raise the limit (ulimit -n, LimitNOFILE), or have fewer processes")


def _kind(settings: Settings) -> type[Worker] | type[ConcurrentWorker]:
    if settings.concurrency == 1:
        return Worker
    from batchq.worker.concurrent import ConcurrentWorker

    return ConcurrentWorker


def _live(
    kind: type[Worker] | type[ConcurrentWorker],
    app: App,
    settings: Settings,
    queues: Sequence[tuple[str, int]],
    slot: Slot,
    stacks_fd: int,
    asked_fd: int,
    let_go: Callable[[], None],
) -> NoReturn:
    """The whole life of the process; never returns. Called with signals blocked. `let_go` closes what is the master's,
    and ends the process where that has died already."""
    code = BROKEN
    try:
        signal.set_wakeup_fd(-1)
        slot.be(os.getpid(), birth_of(os.getpid()))
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        let_go()
        be_first_to_go()
        Title(f"worker of {app.name}").say("booting")
        random.seed()
        backoff.reseed()
        code = _work(kind, app, settings, queues, slot, stacks_fd, asked_fd)
    except BatchqError as error:
        log.event("error", "worker_failed", pid=os.getpid(), error=str(error))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it must not run the master's code
        log.event("error", "worker_failed", pid=os.getpid(), error=repr(error), exc=error)
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _work(
    kind: type[Worker] | type[ConcurrentWorker],
    app: App,
    settings: Settings,
    queues: Sequence[tuple[str, int]],
    slot: Slot,
    stacks_fd: int,
    asked_fd: int,
) -> int:
    read, write = pipe()
    app.is_spoken_for = True
    store = open_store(settings.store_url, settings)
    worker = kind(app, store, settings, slot, queues, read)
    store.be_patient(lambda: worker.stopping)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    signal.signal(ORDER_SIGNAL, worker.obey)
    signal.signal(signal.SIGCONT, lambda *_: worker.go_on())
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        # Not SIG_IGN: what a handler starts would inherit that, and hear no Ctrl-C of its own.
        signal.signal(number, _pass_by)
    stacks.listen(stacks_fd, asked_fd)
    for number in (signal.SIGTTIN, signal.SIGTTOU):
        # A worker is in the background of its terminal: with a handler its writes would be begun again for ever.
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGCHLD, signal.SIGTSTP):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    unblock()
    return worker.run()


def _pass_by(signum: int, frame: object) -> None:
    """Signals that are the master's business."""
