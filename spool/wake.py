"""Hints for those that wait: a FIFO for each waiter, and a name in `waiting/` for each hint that it waits for.

A waiter that arms itself links its FIFO as `waiting/<kind>:<queue>:<its name>`. Who has made work ready takes one such
name away and writes a byte: so one hint rouses one worker, and only one that serves the queue. (One FIFO shared by all
would rouse all of them for every job: an exclusive epoll does not stay exclusive inside another selector.)
A hint that nobody waits for is kept as a name without a waiter; the next one to arm itself takes it.
Hints are never state: a lost one costs the time until the waiter looks by itself.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from threading import get_ident
from typing import Literal

from batchq.errors import StoreUnavailable
from batchq.job import check_queue
from batchq.spool import ballast, fs
from batchq.spool.layout import Layout

Kind = Literal["wake", "timer"]

#: A FIFO without a reader is rubbish after this time; a younger one may just be opening.
_RUBBISH_S = 60.0


def push(layout: Layout, kind: Kind, queue: str) -> None:
    """Work is ready: rouses one waiter. The earliest fire-time changed: rouses all, each master keeps its own time."""
    kept = f"{kind}:{queue}:"
    here = f"{layout.waiting}/{kept}"
    # Nobody waits: whoever arms himself takes this one.
    if fs.is_there(here):
        return
    with suppress(OSError):
        names = _named(layout, kept)
        if _ring(layout, kind, names):
            return
        # Any file will do for the name: a link costs no inode.
        fs.link(layout.gate, here)
        # Race: who armed itself since that look may have looked for this hint before it was there. It is taken away
        # first: who finds it relies on it.
        late = [name for name in _named(layout, kept) if name not in names and name != kept]
        if late and fs.remove(here) and not _ring(layout, kind, late):
            fs.link(layout.gate, here)


def _named(layout: Layout, kept: str) -> list[str]:
    """Those who wait for such a hint, and the hint that waits for them."""
    return [name for name in fs.names(layout.waiting) if name.startswith(kept)]


def _ring(layout: Layout, kind: Kind, names: Sequence[str]) -> bool:
    """Rouses the first of them that can be, for `timer` all. Whether any was."""
    waiters = (name for name in names if not name.endswith(":"))
    rung = (fs.ring(layout.at("waiting", name)) for name in waiters)
    return any(rung) if kind == "wake" else any(list(rung))


def rubbish(layout: Layout, now_s: float) -> list[str]:
    """What killed waiters left, by path."""
    found = []
    for folder in (layout.waiting, layout.waiters):
        for name in fs.names(folder):
            path = os.path.join(folder, name)
            with suppress(OSError):
                if now_s - fs.facts(path).st_ctime > _RUBBISH_S and not fs.has_reader(path):
                    found.append(path)
    return found


def tidy(layout: Layout, now_s: float) -> None:
    """Removes what killed waiters left."""
    for path in rubbish(layout, now_s):
        with suppress(OSError):
            fs.remove(path)


class FifoWaiter:
    """Waits for one kind of hint on some queues. Belongs to the process that made it."""

    def __init__(self, layout: Layout, kind: Kind, queues: Sequence[str]) -> None:
        self._layout = layout
        self.kind = kind
        self._queues = tuple(check_queue(queue) for queue in queues)
        self._pid = os.getpid()
        self._armed = False
        #: The thread that armed it last.
        self._thread = 0
        self._fd = -1
        self._open()

    def _open(self) -> None:
        self._name = f"{self._pid}-{os.urandom(4).hex()}"
        self._fifo = self._layout.at("waiters", self._name)
        try:
            self._make()
        except OSError as error:
            raise StoreUnavailable(f"spool: {self._fifo}: can't make a FIFO to wait on ({error})") from error

    def _make(self) -> None:
        fs.make_dir(self._layout.waiters)
        fs.make_dir(self._layout.waiting)
        try:
            self._fd = fs.make_fifo(self._fifo)
        except OSError as error:
            # No inode is left: a worker must be able to wait all the same.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not ballast.drop(self._layout):
                raise
            self._fd = fs.make_fifo(self._fifo)

    def _links(self, name: str) -> list[str]:
        return [self._layout.at("waiting", f"{self.kind}:{queue}:{name}") for queue in self._queues]

    def arm(self) -> None:
        if self._armed:
            return
        try:
            self._link()
        except FileNotFoundError:
            # Somebody tidied up by hand: begin anew.
            fs.close(self._fd)
            self._open()
            self._link()
        self._armed = True
        self._thread = get_ident()
        # Race: a hint that is kept only after this look was for work that the look after arming finds.
        for kept in self._links(""):
            if fs.remove(kept):
                fs.write_hint(self._fd)

    def _link(self) -> None:
        for link in self._links(self._name):
            fs.link(self._fifo, link)

    def stand_down(self) -> None:
        """The calling thread has found work. If it was this one's to wait, hints are for others from now on."""
        if self._armed and self._thread == get_ident():
            self._unlink()

    def _unlink(self) -> None:
        self._armed = False
        for link in self._links(self._name):
            with suppress(OSError):
                fs.remove(link)

    def fileno(self) -> int:
        return self._fd

    def take(self) -> bool:
        # The names are left where nothing came: linking them again costs less than making them anew.
        roused = fs.drain(self._fd)
        if roused:
            self._unlink()
        self._armed = False
        return roused

    def close(self) -> None:
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        # A child that inherited it lets go of the descriptor only: the names are its parent's.
        if self._pid == os.getpid():
            self._unlink()
            with suppress(OSError):
                fs.remove(self._fifo)
            if fs.drain(fd):
                # A hint that this one did not act on is another's.
                for queue in self._queues:
                    push(self._layout, self.kind, queue)
        fs.close(fd)
