"""Files that a server has taken, until it is known to keep them (W4).

They stand under sent/ as `<run>-<u>-<label>`, `run` naming the run of the server that took them. When it is confirmed
they are unlinked (W5): by `grace` when that run still goes on some seconds later, in which it has synced; by `waitaof`
when it says besides that all is on its disk. Is it another run by then, they go back to work/ and are sent again,
before what came behind them; what was not lost is known by its marks. Any process that holds the lock `sweep` goes on
with what another left there; where the reply is enough (again), that is sent once more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from batchq import log
from batchq.clock import Clock
from batchq.errors import StoreFull
from batchq.redis.outage import Outage
from batchq.redis.store import RedisStore
from batchq.redis.sync import Confirm
from batchq.spool import fs
from batchq.spool.layout import Layout

#: How long a file stands there at least: in that time a server that syncs each second has done so. With `grace` nothing
#: else is known, so it is long enough for slow disks. `waitaof` asks besides; but there are servers that say yes under
#: everysec before they have synced (docs/spool.md).
_STANDS_S: Final = {"reply": 0.0, "waitaof": 2.0, "grace": 5.0}
#: How long a sweep waits for the answer of a server that syncs at once.
_AT_ONCE_S: Final = 0.005

_NAME = re.compile(r"([0-9a-f]{8})-(.+)", re.DOTALL)


class Unconfirmed:
    """What was sent and is not yet confirmed, for whoever holds the lock `sweep`."""

    def __init__(
        self,
        store: RedisStore,
        layout: Layout,
        confirm: Confirm,
        clock: Clock,
        *,
        is_ours: Callable[[str], bool],
        stands_s: float | None = None,
    ) -> None:
        self._store = store
        self._layout = layout
        self._confirm = confirm
        self._clock = clock
        self._is_ours = is_ours
        self.stands_s = _STANDS_S[confirm] if stands_s is None else stands_s
        #: Of the disk; its connection hears nothing else until there is an answer. And of the run of the server.
        self._sync, self._runs = store.sync(), store.sync()
        self._checked = False
        #: When this process saw a file for the first time, on the monotonic clock.
        self._seen: dict[str, float] = {}
        #: The files that the question under way is about, and the run of the server that it was put to.
        self._asked: tuple[list[str], str] = ([], "")
        self._late = Outage(store.destination, ("unconfirmed", "confirmed"))

    def names(self) -> list[str]:
        """Files that wait to be confirmed."""
        return [name for name in fs.names(self._layout.sent) if _NAME.fullmatch(name) and self._is_ours(name)]

    def run(self, queues: Iterable[str]) -> str:
        """Names the run of the server, before something for these queues is sent to it. Raises SpoolError where it
        can't confirm as it should: nothing is sent then."""
        if not self._checked:
            self._store.check_confirm(self._confirm)
            self._checked = True
        return self._run(sorted(set(queues)))

    def put(self, name: str, run: str) -> None:
        """That run of the server has taken this file of work/."""
        fs.make_dir(self._layout.sent)
        sent = f"{run}-{name}"
        fs.move(os.path.join(self._layout.work, name), os.path.join(self._layout.sent, sent))
        self._seen[sent] = self._clock.monotonic()
        fs.passed("W4")

    def are_lost(self) -> bool:
        """Whether another run of the server took some of them: it may not have them. Raises StoreUnavailable."""
        names = self.names()
        return bool(names) and bool(_of_other_runs(names, self._run(())))

    def look(self) -> None:
        """Takes away what is confirmed by now, and puts back what must be sent again. Raises StoreUnavailable, and
        SpoolError where the server can't confirm as it should."""
        names = self.names()
        now = self._clock.monotonic()
        self._seen = {name: self._seen.get(name, now) for name in names}
        if self._confirm == "reply":
            self._send_again(names)
            return
        try:
            if names:
                names = self._put_back(names)
            due = [name for name in names if now - self._seen[name] >= self.stands_s]
            if self._confirm == "waitaof":
                self._look_by_waitaof(due)
            else:
                self._end(due)
        except StoreFull as error:
            # A server that takes no writes confirms nothing.
            self._late.begin(error)

    def _run(self, queues: Sequence[str]) -> str:
        # It waits no longer than any other call, and not at all while those fail at once.
        self._store.ping()
        return self._runs.run(self._store.sync_keys(queues))

    def _put_back(self, names: Sequence[str]) -> list[str]:
        """What another run of the server took: at once, before what came behind it is sent. Answers the others."""
        run = self._run(())
        if lost := _of_other_runs(names, run):
            self._sync.close()
            self._send_again(lost)
            why = "the server was started anew, or is another now"
            log.event("warning", "forwarding_again", files=len(lost), why=why)
        return [name for name in names if name.startswith(run)]

    def _look_by_waitaof(self, names: Sequence[str]) -> None:
        wait_s = 0.0
        if names and not self._sync.is_asked:
            self._asked = list(names), self._sync.begin(self._store.sync_keys(()))
            wait_s = _AT_ONCE_S
        if not self._sync.is_asked:
            return
        on_disk = self._sync.poll(wait_s)
        if on_disk:
            asked, run = self._asked
            self._end([name for name in asked if name.startswith(run)])
        elif on_disk is False:
            # It is asked anew with the next look.
            self._late.begin(TimeoutError("the server has not synced what it was sent; is appendfsync no there?"))

    def _end(self, names: Sequence[str]) -> None:
        """Unlinks files that the server has for sure (W5)."""
        for name in names:
            self._late.end()
            fs.remove(os.path.join(self._layout.sent, name))
            fs.passed("W5")

    def _send_again(self, names: Sequence[str]) -> None:
        for name in names:
            found = _NAME.fullmatch(name)
            assert found is not None
            # Race: somebody took it away by hand.
            with suppress(FileNotFoundError):
                fs.move(os.path.join(self._layout.sent, name), os.path.join(self._layout.work, found[2]))


def _of_other_runs(names: Iterable[str], run: str) -> list[str]:
    return [name for name in names if not name.startswith(run)]
