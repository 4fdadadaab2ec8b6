"""The child's side of a fork: from the master's memory to a worker. It finalises nothing that it inherited."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from batchq import backoff, log, stacks
from batchq.app import App
from batchq.concurrent import ConcurrentWorker
from batchq.config import Settings
from batchq.errors import BatchqError
from batchq.memory import be_first_to_go
from batchq.parent import birth_of
from batchq.scoreboard import Slot
from batchq.signals import pipe, unblock
from batchq.stores import open_store
from batchq.titles import set_title
from batchq.worker import BROKEN, ORDER_SIGNAL, Worker


def live(
    app: App,
    settings: Settings,
    queues: Sequence[tuple[str, int]],
    slot: Slot,
    stacks_fd: int,
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
        set_title(f"worker of {app.name}")
        random.seed()
        backoff.reseed()
        code = _work(app, settings, queues, slot, stacks_fd)
    except BatchqError as error:
        log.event("error", "worker_failed", pid=os.getpid(), error=str(error))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it must not run the master's code
        log.event("error", "worker_failed", pid=os.getpid(), error=repr(error), exc=error)
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _work(app: App, settings: Settings, queues: Sequence[tuple[str, int]], slot: Slot, stacks_fd: int) -> int:
    read, write = pipe()
    app.is_spoken_for = True
    store = open_store(settings.store_url, settings)
    kind = ConcurrentWorker if settings.concurrency > 1 else Worker
    worker = kind(app, store, settings, slot, queues, read)
    store.be_patient(lambda: worker.stopping)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    signal.signal(ORDER_SIGNAL, worker.obey)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGCONT):
        # Not SIG_IGN: what a handler starts would inherit that, and hear no Ctrl-C of its own.
        signal.signal(number, _pass_by)
    stacks.listen(stacks_fd)
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
