"""Whether a server will keep what it took: which run of it that was, and whether all of it is on its disk by now.

It is asked on a connection of its own. A restart ends that, so that all answers on it are of one run of the server.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable, Sequence
from typing import Final, Literal

from batchq.clock import monotonic
from batchq.digest import sha256
from batchq.errors import SpoolError, StoreDenied, StoreUnavailable
from batchq.redis.connect import Links
from batchq.redis.link import Link
from batchq.redis.replies import Unreached
from batchq.redis.wire import Command, ErrorReply, Reply

#: When what was forwarded counts as kept: with the server's answer; once it is on the server's disk; or when the server
#: still runs after a while in which it has synced.
Confirm = Literal["reply", "waitaof", "grace"]

#: So long the server may take to sync before it says that it has not. `everysec` takes up to a second.
SYNC_MS: Final = 2000
#: How long a written key stands.
_KEY_MS: Final = 1000


class Sync:
    """Questions to one server about its disk. Belongs to one thread; a forked child begins anew."""

    def __init__(self, links: Links, ask: Callable[[Link, Sequence[Command]], list[Reply]]) -> None:
        """`ask`: sends commands on a link, and raises what error replies mean."""
        self._links = links
        self._ask = ask
        self._link = links.new()
        self._pid = os.getpid()
        #: The connections that have not said yet that they have synced.
        self._waiting: list[Link] = []
        self._due = 0.0

    def run(self, keys: Sequence[str]) -> str:
        """Names the run of the server, in a cluster those of the nodes that have these keys: another one after each
        start and each failover. Writes each key for a moment. Raises StoreUnavailable, StoreFull, SpoolError."""
        self._check_pid()
        was_open = self._link.is_open
        try:
            try:
                return self._run(keys)
            except Unreached:
                if not was_open:
                    raise
                # It may only be an old connection.
                return self._run(keys)
        except Unreached as error:
            self.close()
            raise StoreUnavailable(f"{error}; {error.way_out}") from error

    def begin(self, keys: Sequence[str], within_ms: int = SYNC_MS) -> str:
        """Answers the same, and asks whether what was taken before is on disk: `poll` hears the answer, "no" once that
        time is over."""
        if self._waiting:
            self.close()
        run = self.run(keys)
        self._due = monotonic() + within_ms / 1000 + self._links.call_s
        try:
            self._waiting = self._parts()
            for part in self._waiting:
                part.until = self._due
                part.send(("WAITAOF", 1, 0, within_ms))
        except Unreached as error:
            self.close()
            raise StoreUnavailable(str(error)) from error
        return run

    @property
    def is_asked(self) -> bool:
        """There was a question, and no answer yet."""
        self._check_pid()
        return bool(self._waiting)

    def poll(self, wait_s: float = 0.0) -> bool | None:
        """Whether all of it is on disk; None: there is no answer yet. Raises SpoolError where there can't be one."""
        until = min(monotonic() + wait_s, self._due)
        try:
            while self._waiting:
                part = self._waiting[-1]
                if not _is_readable(part, max(0.0, until - monotonic())):
                    if monotonic() < self._due:
                        return None
                    self.close()
                    return False
                [local, _] = part.receive()
                if not local:
                    self.close()
                    return False
                self._waiting.pop()
        except Unreached:
            self.close()
            return False
        except ErrorReply as reply:
            self.close()
            raise SpoolError(fault_of_reply(reply, self._links.where)) from reply
        return True

    def close(self) -> None:
        """Asks nothing any more. What is on its way is not heard."""
        self._waiting = []
        self._link.close()

    def _run(self, keys: Sequence[str]) -> str:
        self._link.until = monotonic() + self._links.call_s
        self._ask(self._link, [("SET", key, 0, "PX", _KEY_MS) for key in keys])
        runs = set()
        for part in self._parts():
            part.until = self._link.until
            try:
                [text] = self._ask(part, [("INFO", "server", "replication")])
            except StoreDenied as error:
                raise SpoolError(f"forward_confirm: {error}; or set forward_confirm = reply") from error
            fields = dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
            if not fields.get("run_id"):
                raise SpoolError(
                    f"forward_confirm: the server at {self._links.where} has no run_id in INFO, so that nobody "
                    "sees when it was started anew; set forward_confirm = reply"
                )
            # A primary that was a replica for a while has lost what the others had not: its history is another then.
            runs.add(f"{fields['run_id']} {fields.get('master_replid', '')}")
        return sha256(" ".join(sorted(runs)).encode()).hexdigest()[:8]

    def _parts(self) -> list[Link]:
        """Raises Unreached: of no connection nothing is known, and all would seem well."""
        if parts := self._link.parts():
            return parts
        raise Unreached(f"redis at {self._links.where}: the connection has ended")

    def _check_pid(self) -> None:
        if self._pid != os.getpid():
            # The connection is the parent's.
            self._pid, self._waiting = os.getpid(), []
            self._link.close()


def fault_of_reply(reply: ErrorReply, where: str) -> str:
    """What is wrong where a server does not take WAITAOF, and what to do."""
    text = str(reply)
    if reply.code == "NOPERM":
        advice = "give the user of the url that right (+waitaof)"
    elif "unknown command" in text:
        advice = "it needs Redis 7.2 or newer, or Valkey: update the server, or set forward_confirm = grace"
    elif "appendonly" in text:
        advice = "set appendonly yes there, or forward_confirm = reply"
    else:
        advice = "set forward_confirm = grace"
    return f"forward_confirm: waitaof is refused by the server at {where} ({text[:200]}); {advice}"


def _is_readable(link: Link, wait_s: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(link.fileno(), selectors.EVENT_READ)
        return bool(selector.select(wait_s))
