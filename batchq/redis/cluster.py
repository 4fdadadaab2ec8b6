"""Redis Cluster: a link is a connection a node, and each command goes to the node that has its slot.

All keys of a queue share one slot, so that a move is one script on one node. A node that has given the slot away says
so (MOVED), or sends one call on (ASK); neither has executed it. Knows nothing of jobs, and waits for nobody.
"""

from __future__ import annotations

import copy
from binascii import crc_hqx
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from batchq.clock import monotonic
from batchq.errors import ConfigError, InternalError
from batchq.redis.dial import ASK_S, Dialer
from batchq.redis.link import FOR_EVER, Link
from batchq.redis.replies import Unreached, raise_for
from batchq.redis.target import Address, taken_apart, written
from batchq.redis.wire import Command, ErrorReply, Reply

#: A call is sent on so often at most before the cluster counts as unsettled.
HOPS = 5
#: Commands without a key: any node answers them.
_KEYLESS = frozenset(("PING", "TIME", "INFO", "CONFIG", "SCRIPT", "CLUSTER", "WAITAOF"))


class Slots:
    """Which node has which slot, as far as it is known. All links of a process share it."""

    def __init__(self, seeds: Sequence[Address]) -> None:
        self._seeds = list(seeds)
        self._of: dict[int, Address] = {}
        self._nodes: list[Address] = []

    @property
    def known(self) -> list[Address]:
        """Where to ask: the primaries that were seen last, then those of the url."""
        return list(dict.fromkeys([*self._nodes, *self._seeds]))

    @property
    def is_known(self) -> bool:
        return bool(self._of)

    def node_of(self, slot: int | None) -> Address:
        """Raises Unreached for a slot that no node has."""
        if slot is None:
            return self.known[0]
        try:
            return self._of[slot]
        except KeyError:
            raise Unreached(f"redis cluster at {written(self.known[0])}: no node has slot {slot}") from None

    def learn(self, ranges: Sequence[Any], asked: Address) -> None:
        """Takes an answer of CLUSTER SLOTS."""
        of: dict[int, Address] = {}
        for first, last, primary, *_ in ranges:
            host = (primary[0] or b"").decode()
            # A node that does not know its own name is where it was asked.
            node = (asked[0] if host in ("", "?") else host, int(primary[1]))
            of |= dict.fromkeys(range(first, last + 1), node)
        self._of, self._nodes = of, list(dict.fromkeys(of.values()))

    def moved(self, slot: int, node: Address) -> None:
        self._of[slot] = node

    def forget(self) -> None:
        """A node is gone: the next call asks who has its slots now."""
        self._of = {}


class ClusterDialer(Dialer):
    """Makes links to a cluster. `where` names the nodes of the url."""

    scheme = "redis+cluster"
    is_cluster = True

    def __init__(self, url: str, *, socket_timeout_s: float) -> None:
        plain, seeds, path, _ = taken_apart(url, 6379)
        if path.strip("/") not in ("", "0"):
            raise ConfigError(f"url: expected no database, found {path!r:.20}; a cluster has only database 0")
        _, _, query = url.partition("?")
        super().__init__(f"{plain}/0{'?' if query else ''}{query}", socket_timeout_s=socket_timeout_s)
        self.slots = Slots(seeds)
        self.where = ",".join(map(written, sorted(seeds)))

    @property
    def place(self) -> str:
        return self.where

    def link(self) -> Link:
        return ClusterLink(self)

    def node(self, at: Address) -> Dialer:
        """A dialer to one node."""
        made = copy.copy(self)
        made.target = replace(self.target, host=at[0], port=at[1])
        made.where = written(at)
        return made


class _Errand(NamedTuple):
    """One command on its way: its place among the others, the node, and whether that was named by an ASK."""

    place: int
    node: Address
    asking: bool = False


class ClusterLink(Link):
    """A connection a node, each opened when it is first used. Not for two threads at once."""

    def __init__(self, dialer: ClusterDialer) -> None:
        self._dialer = dialer
        self._cluster = dialer
        self._slots = dialer.slots
        self._links: dict[Address, Link] = {}
        #: The one that waits for a reply.
        self._waiting: Link | None = None
        self._asked: Address = ("", 0)
        self.until = FOR_EVER
        self.new_lane()

    @property
    def is_open(self) -> bool:
        return any(link.is_open for link in self._links.values())

    def parts(self) -> list[Link]:
        return [link for link in self._links.values() if link.is_open]

    def ask(self, commands: Sequence[Command]) -> list[Reply]:
        """As Link: sends each to its node, and on where a node sends it on. Raises Unreached."""
        replies: list[Reply] = [None] * len(commands)
        executed = False
        try:
            left = self._errands(commands)
            for _ in range(HOPS):
                left = self._round(commands, left, replies)
                if not left:
                    if any(_code_of(reply) == "CLUSTERDOWN" for reply in replies):
                        self._slots.forget()
                    return replies
                executed = len(left) < len(commands)
        except Unreached as error:
            # Who has the slots of a node that is gone is not known.
            self._slots.forget()
            error.sent |= executed or any(reply is not None for reply in replies)
            raise
        self._slots.forget()
        text = f"redis cluster at {self.where}: slots move, and a call was sent on {HOPS} times"
        raise Unreached(text, sent=executed, refused=True)

    def _errands(self, commands: Sequence[Command]) -> list[_Errand]:
        """Where each goes first. What has no key goes where the others go."""
        slots = [_slot_of(command) for command in commands]
        if not self._slots.is_known:
            self._learn()
        known = next((slot for slot in slots if slot is not None), None)
        return [
            _Errand(place, self._slots.node_of(known if slot is None else slot))
            for place, slot in enumerate(slots)
            if not _is_load(commands[place]) or known is None
        ]

    def _round(self, commands: Sequence[Command], errands: list[_Errand], replies: list[Reply]) -> list[_Errand]:
        """Sends each to its node and fills in the replies. Answers those that were sent on."""
        left: list[_Errand] = []
        loads = [place for place, command in enumerate(commands) if _is_load(command)]
        for node in dict.fromkeys(errand.node for errand in errands):
            mine = [errand for errand in errands if errand.node == node]
            # Scripts are loaded wherever the calls of the same batch arrive.
            batch = [commands[place] for place in loads if all(errand.place != place for errand in mine)]
            before = len(batch)
            for errand in mine:
                batch += [("ASKING",)] * errand.asking
                batch.append(commands[errand.place])
            link = self._link(node)
            link.until = self.until
            answers = iter(link.ask(batch))
            for place in loads[:before]:
                replies[place] = next(answers)
            for errand in mine:
                if errand.asking:
                    next(answers)
                reply = next(answers)
                if _code_of(reply) in ("MOVED", "ASK"):
                    left.append(self._sent_on(errand, reply, node))
                else:
                    replies[errand.place] = reply
        return sorted(left)

    def _sent_on(self, errand: _Errand, reply: ErrorReply, asked: Address) -> _Errand:
        slot, node = _read_moved(reply, asked)
        if reply.code == "MOVED":
            self._slots.moved(slot, node)
        return _Errand(errand.place, node, reply.code == "ASK")

    def _learn(self) -> None:
        """Asks one node after the other who has which slot. Raises Unreached where none says."""
        last = Unreached(f"redis cluster at {self.where}: no node was asked in time")
        for node in self._slots.known:
            link = self._link(node)
            link.until = min(self.until, monotonic() + ASK_S)
            try:
                [ranges] = link.ask([("CLUSTER", "SLOTS")])
                if isinstance(ranges, ErrorReply):
                    raise_for(ranges, written(node))
            except Unreached as error:
                error.sent = False
                last = error
                continue
            self._slots.learn(ranges, node)
            return
        raise last

    def _link(self, node: Address) -> Link:
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = Link(self._cluster.node(node))
        return link

    def send(self, *commands: Command) -> None:
        """As Link. All keys of the commands are in one slot."""
        errand = self._errands(commands)[0]
        self._waiting, self._asked = self._link(errand.node), errand.node
        self._waiting.until = self.until
        try:
            self._waiting.send(*commands)
        except Unreached:
            self._slots.forget()
            raise

    def receive(self) -> Reply:
        try:
            return self._awaited().receive()
        except ErrorReply as error:
            if error.code == "MOVED":
                self._slots.moved(*_read_moved(error, self._asked))
            raise
        except Unreached:
            self._slots.forget()
            raise

    def _awaited(self) -> Link:
        if self._waiting is None:
            raise InternalError("nothing was sent on this link")
        return self._waiting

    def fileno(self) -> int:
        return self._awaited().fileno()

    def close(self) -> None:
        for link in self._links.values():
            link.close()


def _is_load(command: Command) -> bool:
    return command[0] == "SCRIPT"


def _slot_of(command: Command) -> int | None:
    """None: it has no key."""
    if command[0] in _KEYLESS:
        return None
    key = command[3] if command[0] == "EVALSHA" else command[1]
    return slot_of_key(key.encode() if isinstance(key, str) else bytes(key))


def slot_of_key(key: bytes) -> int:
    """CRC-16 of the key, or of what stands in its first braces."""
    _, opens, rest = key.partition(b"{")
    tag, closes, _ = rest.partition(b"}")
    return crc_hqx(tag if opens and closes and tag else key, 0) % 16384


def _code_of(reply: Reply) -> str:
    """ "" for all but errors."""
    return reply.code if isinstance(reply, ErrorReply) else ""


def _read_moved(reply: ErrorReply, asked: Address) -> tuple[int, Address]:
    """`MOVED 3999 127.0.0.1:6381`, `ASK ...`: the slot and its node. One without a name is where it was asked."""
    _, slot, node = str(reply).split(" ")
    host, _, port = node.rpartition(":")
    return int(slot), (host or asked[0], int(port))
