"""The Redis store: each move is one script of `lua/`, named by its verb. This module packs arguments and reads answers.

Keys and their types are listed in ARCHITECTURE.md. All knowledge of what a move does is in the scripts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple, NoReturn, Protocol, TypeVar

from batchq.errors import (
    ConfigError,
    InternalError,
    QueueFull,
    SpoolError,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreVersion,
)
from batchq.gates import OPEN, Admission, Gate, GateState
from batchq.job import (
    Buried,
    Claim,
    Claims,
    Completed,
    Exchange,
    Job,
    Leases,
    Lost,
    Mark,
    NewJob,
    Outcome,
    Page,
    Promoted,
    QueueStats,
    Released,
    Renewal,
    Retried,
    Sealed,
    Snoozed,
    random_name,
)
from batchq.jsons import orjson
from batchq.lifecycle import TOTALS, State, Word
from batchq.redis.ahead import SentAhead
from batchq.redis.connect import Links
from batchq.redis.dial import dialer_for
from batchq.redis.link import FOR_EVER, Link
from batchq.redis.notes import apart, part, read_error, read_note, refs_in, shorten
from batchq.redis.outage import Outage
from batchq.redis.replies import Unreached, denied, raise_for
from batchq.redis.scripts import COMMAND, QUEUE_KEYS, Arg, Keys, Script, call, commands, load, shipped
from batchq.redis.sync import SYNC_MS, Confirm, Sync
from batchq.redis.waiting import WAIT_S, EachWaiter, RedisStandingClaim, RedisWaiter
from batchq.redis.wire import ErrorReply, Reply
from batchq.store import MAX_BYTES, MAX_JOBS, PROMOTE_LIMIT, Concern, Ingested, Limits, Store, StoreInfo, Traits, Waiter
from batchq.tally import BatchStats, NewBatch, full, over, unpack

#: The oldest server that has all that the scripts use (writes after TIME, SMISMEMBER, LPOP with a count).
OLDEST = (7, 0)

#: Scripts are loaded again so often in a row: somebody may flush them between the loading and the call.
RELOADS = 50

_T = TypeVar("_T")

#: How many entries of the list of pending jobs one step may pass by: the server does nothing else meanwhile.
WALK = 250_000
#: Bytes that an id and the numbers beside it take at most in a call.
ROOM = 300
#: Words as the scripts answer them.
_WORDS = {word.value.encode(): word for word in Word}

#: What an error of a script ends with.
_AT_LINE = re.compile(r"on @user_script:(\d+)")
#: A key in the text of a script.
_AT_KEY = re.compile(r"KEYS\[(\d+)\]")

_CLOCK_WITH_OFFSET = """
local function clock()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2]) + tonumber(redis.call('GET', '%s') or 0)
end
local LATEST_MS = 2199023255551
local function due_ms(us) return math.floor(us / 1000) end
local function fire_ms(us, delay) return math.ceil(us / 1000) + delay end
"""


def _complete(out: Completed) -> list[Arg]:
    return [out.claim.id, out.claim.token, b"%d %b" % (out.keep_ms, out.result) if out.keep_ms > 0 else b""]


def _retry(out: Retried) -> list[Arg]:
    return [
        out.claim.id,
        out.claim.token,
        out.delay_ms,
        out.max_attempts,
        out.cause,
        out.max_crashes,
        part(out.error, out.claim.row),
    ]


def _bury(out: Buried) -> list[Arg]:
    return [out.claim.id, out.claim.token, out.reason, shorten(out.error, out.claim.row)]


def _snooze(out: Snoozed) -> list[Arg]:
    return [out.claim.id, out.claim.token, out.delay_ms]


def _release(out: Released) -> list[Arg]:
    return [out.claim.id, out.claim.token, shorten(out.error, out.claim.row)]


def _lost(out: Lost) -> list[Arg]:
    return [out.claim.id, out.claim.token, out.delay_ms, out.max_lost, shorten(out.error, out.claim.row)]


def _result_bytes(out: Completed) -> int:
    return ROOM + len(out.result)


def _error_bytes(out: Retried | Buried | Released | Lost) -> int:
    return ROOM + len(out.error)


def _no_bytes(out: Snoozed) -> int:
    return ROOM


#: Which script settles which outcome, the arguments of one, and how many bytes these take at most.
_SETTLE: dict[type, tuple[str, Callable[[Any], list[Arg]], Callable[[Any], int]]] = {
    Completed: ("complete", _complete, _result_bytes),
    Retried: ("retry", _retry, _error_bytes),
    Buried: ("bury", _bury, _error_bytes),
    Snoozed: ("snooze", _snooze, _no_bytes),
    Released: ("release", _release, _error_bytes),
}


def _chunks(items: Sequence[_T], weigh: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Splits what one step can't carry: at most MAX_JOBS and MAX_BYTES, or one larger job."""
    chunk: list[_T] = []
    size = 0
    for item in items:
        weight = weigh(item)
        if chunk and (len(chunk) >= MAX_JOBS or size + weight > MAX_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += weight
    if chunk:
        yield chunk


def _claim_args(worker: str, want: int, held: int) -> list[Arg]:
    return [worker, min(want, MAX_JOBS), held]


def _enqueued(queue: str, jobs: Sequence[NewJob], answer: Reply, max_pending: int = 0) -> list[Word]:
    """The answer of the script: a word a job. Raises ConfigError for a fire-time that is too late and for a batch that
    takes no jobs, QueueFull."""
    if answer[0] == b"again":
        return [Word.AGAIN] * len(jobs)
    if answer[0] == b"late":
        late = jobs[answer[1] - 1].id
        raise ConfigError(
            f"delay: job {late} would run after 7 September 2039, the latest fire-time there is; give an earlier"
        )
    if answer[0] == b"full":
        raise QueueFull(full(queue, answer[1], max_pending))
    if answer[0] == b"over":
        raise ConfigError(over(answer[1].decode(), queue))
    words = [Word.OK] * len(jobs)
    for place in answer[1:]:
        words[place - 1] = Word.KNOWN
    return words


def _trips(calls: Sequence[Parcelled], max_pending: Callable[[str], int]) -> Iterator[Sequence[Parcelled]]:
    """What may go in one round trip: nothing behind a call that may find its queue full, or it could overtake that."""
    first = 0
    for behind, one in enumerate(calls, 1):
        if max_pending(one.queue) or behind == len(calls):
            yield calls[first:behind]
            first = behind


def _gated(name: str, outcomes: Sequence[Any]) -> str:
    """The script of a move: one that looks after gates, where a claim may hold places at some, or has waited there."""
    meets = RedisStore.meets_gates and any(out.claim.gated or out.claim.forgiven for out in outcomes)
    return f"gated/{name}" if meets else name


def _terms(gate: Gate) -> str:
    name, limit, count, period_ms, threshold, reset_ms = gate
    return f"{name}\t{limit} {count} {period_ms} {threshold} {reset_ms}"


def _gate_state(name: str, words: list[str], waiting: int) -> GateState:
    """The layout is in lua/include/gate.lua."""
    busy, _, _, failures, ends, limit, count, period, *_ = map(int, words[1:])
    return GateState(name, busy, waiting, words[0], failures, ends if words[0] == OPEN else 0, limit, count, period)


def _words(reply: Reply) -> list[Word]:
    return [_WORDS[word] for word in reply]


def _ready_ms(row: dict[str, Any], since: int) -> int:
    """Since when a job is ready: it came, was due, or, by its note, was retried, put off or requeued."""
    return max(int(row["t"]), int(row.get("at", 0)), since)


def _claims(queue: str, flat: Sequence[Any]) -> tuple[Claim, ...]:
    """id, token, row, note, ... as claims."""
    out = []
    for job_id, token, row, note in zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True):
        if note or row[:1] != b"{":
            row, note = apart(row, note)
            forgiven, crashes, lost = read_note(note)[:3]
            out.append(Claim(queue, job_id.decode(), int(token), row, forgiven, crashes, lost))
        else:
            out.append(Claim(queue, job_id.decode(), int(token), row))
    return tuple(out)


class Parcelled(NamedTuple):
    """One call of jobs that waited in a spool."""

    queue: str
    jobs: Sequence[NewJob]
    mark: Mark


class Adopted(NamedTuple):
    """A job that comes from another store with what it has behind it."""

    id: str
    #: With the times of its first enqueue in front.
    row: bytes
    priority: int
    #: None: pending.
    delay_ms: int | None
    given: bool
    attempts: int
    #: As lua/include/note.lua has it.
    note: bytes
    #: Names this job in this state for ever.
    lane: str


class Inbox(Protocol):
    """Where jobs for this store may lie meanwhile."""

    def sweep(self) -> Ingested: ...

    def waiting(self) -> int: ...

    def fault(self) -> str: ...


#: Stands for the row of a job that has none any more.
_LOST_ROW: dict[str, Any] = {"t": 0, "job": "?"}


class RedisStore(Store):
    """Jobs in Redis (7.0 or newer) or Valkey.

    `patience_s`: how long a call may try while the server is away; None: for ever. `clock_offset` is a seam for
    tests: the scripts add the microseconds in the key `<prefix>:clock-offset` to the server's time.
    """

    #: Claims that may hold places at gates have come into this process: until then nobody looks for them.
    meets_gates: ClassVar[bool] = False

    traits = Traits(kind="redis", shared=True, durable=True, idle_wait_s=WAIT_S + 1.0)

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "bq",
        limits: Limits | None = None,
        socket_timeout_s: float = 5.0,
        patience_s: float | None = 1.0,
        clock_offset: bool = False,
    ) -> None:
        self._keys = Keys(prefix)
        self._limits = limits or Limits()
        self._dialer = dialer_for(url, socket_timeout_s=socket_timeout_s)
        self._links = Links(self._dialer, patience_s=patience_s)
        self._replaced = {"clock": _CLOCK_WITH_OFFSET % self._keys.top("clock-offset")} if clock_offset else {}
        self._scripts: dict[str, Script] = {}
        self._announced: dict[str, float] = {}
        #: (queue, worker) of settlings whose answer was lost for good: they may have been done.
        self._unsure: set[tuple[str, str]] = set()
        #: What `sweep_inbox` takes from: the spool of this host, where it is used as a fallback.
        self.inbox: Inbox | None = None

    def be_patient(self, give_up: Callable[[], bool]) -> None:
        # The master speaks for its workers: an outage is one line, not one a process.
        self._links.patience_s, self._links.give_up = None, give_up
        self._links.outage.tells_refusals = True
        self.be_silent()

    def be_silent(self) -> None:
        self._links.outage.quiet = True

    def be_brisk(self) -> None:
        self._links.patience_s = 0
        self.be_silent()

    def be_quick(self) -> None:
        """While the server is away, calls fail at once, but for a probe each second: for producers that have another
        place for their jobs. The first failure takes as long as the patience."""
        self._links.fails_fast = True

    def waiting_here(self) -> int:
        return self.inbox.waiting() if self.inbox is not None else 0

    @property
    def is_unsure(self) -> bool:
        return self._links.is_unsure

    @property
    def outage(self) -> Outage:
        """The one under way, or the last."""
        return self._links.outage

    @property
    def destination(self) -> str:
        """What tells this store from others: server, database and prefix. Holds no password."""
        return f"{self._dialer.place}/{self._dialer.db} {self._keys.prefix}"

    # -- the way of a call -----------------------------------------------------------------------------------------

    def _script(self, name: str) -> Script:
        script = self._scripts.get(name)
        if script is None:
            script = load(name, self._replaced) if self._replaced else shipped(name)
            self._scripts[name] = script
        return script

    def _eval(
        self, name: str, queue: str, argv: Iterable[Arg], owner: str = "", each: Sequence[str] = ()
    ) -> tuple[Arg, ...]:
        return call(self._script(name), self._keys, queue, argv, owner=owner, each=each)

    def _ask(self, link: Link, commands: Sequence[tuple[Arg, ...]]) -> list[Reply]:
        """Sends commands; those that answered NOSCRIPT are sent again, in order, with their scripts."""
        replies = self._ask_all(link, commands)
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, ErrorReply):
                self._raise_for(link, reply, command)
        return replies

    def _ask_all(self, link: Link, commands: Sequence[tuple[Arg, ...]]) -> list[Reply]:
        """The same, with error replies in their places."""
        replies = link.ask(commands)
        for _ in range(RELOADS):
            missing = [
                i for i, reply in enumerate(replies) if isinstance(reply, ErrorReply) and reply.code == "NOSCRIPT"
            ]
            if not missing:
                break
            texts = {script.sha: script.text for script in self._scripts.values()}
            shas = list(dict.fromkeys(str(commands[i][1]) for i in missing))
            fresh = link.ask([*(("SCRIPT", "LOAD", texts[sha]) for sha in shas), *(commands[i] for i in missing)])
            loaded = dict(zip(shas, fresh, strict=False))
            for i, reply in zip(missing, fresh[len(shas) :], strict=True):
                refused = loaded[str(commands[i][1])]
                replies[i] = refused if isinstance(refused, ErrorReply) else reply
        return replies

    def _raise_for(self, link: Link, reply: ErrorReply, command: tuple[Arg, ...]) -> NoReturn:
        try:
            raise_for(reply, self._links.where, *self._met_by(str(reply), command))
        except Unreached:
            # The address may lead to another server by now.
            link.close()
            raise

    def _met_by(self, text: str, command: tuple[Arg, ...]) -> tuple[str, str]:
        """Which command of a script met an error, and at which key, where the line that the error names tells that."""
        if command[0] != "EVALSHA":
            return "", str(command[1]) if len(command) > 1 else ""
        script = next((one for one in self._scripts.values() if one.sha == command[1]), None)
        named = _AT_LINE.search(text)
        if named is None or script is None:
            return "", ""
        lines = script.text.decode().splitlines()
        line = lines[int(named[1]) - 1] if 0 < int(named[1]) <= len(lines) else ""
        call, key = COMMAND.search(line), _AT_KEY.search(line)
        return call[1].lower() if call else "", str(command[2 + int(key[1])]) if key else ""

    def _run(self, *commands: tuple[Arg, ...]) -> list[Reply]:
        """Commands that may be sent again as they are; what they write is no job's."""
        return self._links.run(lambda link, again: self._ask(link, commands), writes=False)

    def sweep_inbox(self) -> Ingested:
        return self.inbox.sweep() if self.inbox is not None else Ingested()

    def _move(self, name: str, queue: str, argv: Sequence[Arg], owner: str = "", each: Sequence[str] = ()) -> Reply:
        command = self._eval(name, queue, argv, owner, each)
        return self._links.run(lambda link, again: self._ask(link, [command]), writes="/" not in name)[0]

    # -- moves -----------------------------------------------------------------------------------------------------

    def enqueue(
        self, queue: str, jobs: Sequence[NewJob], mark: Mark | None = None, *, max_pending: int = 0
    ) -> list[Word]:
        if not jobs:
            return []
        chunks = list(_chunks(jobs, lambda job: len(job.row)))
        if mark is not None and len(chunks) > 1:
            raise ValueError(f"{len(jobs)} jobs do not fit one mark: at most {MAX_JOBS}, and {MAX_BYTES} bytes of rows")
        words: list[Word] = []
        for chunk in chunks:
            words += self._enqueue(queue, chunk, mark, max_pending)
        return words

    def _enqueue(self, queue: str, jobs: Sequence[NewJob], mark: Mark | None, max_pending: int) -> list[Word]:
        argv = self._pack_jobs(jobs, max_pending)
        announce = self._announcement(queue)
        used: Mark | None = None
        tries = 0

        def send(link: Link, again: bool) -> list[Reply]:
            nonlocal used, tries
            # A lane belongs to one link, whose calls go one after the other; one that is sent again keeps its number.
            if used is None:
                link.calls += 1
                used = mark or Mark(link.lane, link.calls)
            tries += 1
            call = self._eval("enqueue", queue, [used.call, *argv], used.lane)
            return self._ask_enqueue(link, call, announce)

        try:
            return _enqueued(queue, jobs, self._links.run(send)[0], max_pending)
        except StoreUnavailable as error:
            error.mark = used if error.maybe else None
            raise
        except QueueFull as error:
            error.mark = used if tries > 1 else None
            raise

    def send_ahead(self, queue: str, jobs: Sequence[NewJob], mark: Mark | None = None) -> SentAhead | None:
        link = None if self._announcement(queue) else self._links.lend()
        if link is None:
            return None
        link.calls += 1
        mark = mark or Mark(link.lane, link.calls)
        sent = SentAhead(
            self._links,
            link,
            mark,
            lambda reply: _enqueued(queue, jobs, reply),
            lambda: self._enqueue(queue, jobs, mark, 0),
        )
        sent.send(self._eval("enqueue", queue, [mark.call, *self._pack_jobs(jobs)], mark.lane))
        return sent

    def forward(
        self, calls: Sequence[Parcelled], max_pending: Callable[[str], int] = lambda queue: 0
    ) -> list[list[Word] | QueueFull | ConfigError]:
        """enqueue for jobs that waited in a spool: each call under its own mark, in as few round trips as it can be,
        counted as `forwarded`. A call that is refused says so in its place, and so do those behind one that found its
        queue full: they are not sent. Each is at most one step. `max_pending`: of a queue. Raises StoreUnavailable."""
        out: list[list[Word] | QueueFull | ConfigError] = []
        for trip in _trips(calls, max_pending):
            answers = self._forward(trip, max_pending)
            out += answers
            if full := next((answer for answer in answers if isinstance(answer, QueueFull)), None):
                return out + [full] * (len(calls) - len(out))
        return out

    def _forward(
        self, calls: Sequence[Parcelled], max_pending: Callable[[str], int]
    ) -> list[list[Word] | QueueFull | ConfigError]:
        """In one round trip."""
        packed = [
            (
                queue,
                self._eval(
                    "enqueue", queue, [mark.call, *self._pack_jobs(jobs, max_pending(queue), "forwarded")], mark.lane
                ),
            )
            for queue, jobs, mark in calls
        ]
        announced = {queue: command for queue, _ in packed if (command := self._announcement(queue)) is not None}
        commands = [*announced.values(), *(command for _, command in packed)]

        def send(link: Link, again: bool) -> list[Reply]:
            return self._full_in_place(link, commands)[len(announced) :]

        out: list[list[Word] | QueueFull | ConfigError] = []
        for (queue, jobs, _), reply in zip(calls, self._links.run(send), strict=True):
            try:
                out.append(reply if isinstance(reply, StoreFull) else _enqueued(queue, jobs, reply, max_pending(queue)))
            except (ConfigError, QueueFull) as refused:
                out.append(refused)
        self._announced |= dict.fromkeys(announced, time.monotonic())
        return out

    def ping(self) -> None:
        """Raises StoreUnavailable where the server is away."""
        self._run(("PING",))

    def sync(self) -> Sync:
        """For questions whether the server keeps what it took."""
        return Sync(self._links, self._ask)

    def sync_keys(self, queues: Sequence[str]) -> list[str]:
        """What such a question writes: a key on each node that may have taken something for these queues or others."""
        asked = sorted({*queues, *self.queues()}) if self._dialer.is_cluster else list(queues)[:1]
        lane = random_name()
        return [self._keys.of(queue, "mark", lane) for queue in asked or ["default"]]

    def check_confirm(self, confirm: Confirm, *, syncs: bool = False) -> None:
        """Raises SpoolError where that server can't confirm in this way; with `syncs` also where it has not synced when
        it should have. Raises StoreFull where it takes nothing now."""
        if confirm == "reply":
            return
        sync = self.sync()
        try:
            keys = self.sync_keys(())
            if confirm == "grace":
                sync.run(keys)
                return
            sync.begin(keys, SYNC_MS if syncs else 1)
            if not sync.poll(FOR_EVER) and syncs:
                raise SpoolError(
                    f"forward_confirm: waitaof: the server at {self._links.where} did not sync within "
                    f"{SYNC_MS / 1000:g} s; set appendfsync everysec or always there"
                )
        finally:
            sync.close()

    def adopt(self, queue: str, jobs: Sequence[Adopted]) -> list[Word | StoreFull]:
        """Takes jobs of another store, each under its own lane, in one round trip: OK, KNOWN, AGAIN (it was taken
        before), or StoreFull in its place. Raises StoreUnavailable."""
        limits = (self._limits.mark_ttl_ms, self._limits.remember_ms)
        commands: list[tuple[Arg, ...]] = [("SADD", self._keys.top("queues"), queue)]
        for job in jobs:
            delay: Arg = "" if job.delay_ms is None else job.delay_ms
            argv = [*limits, job.id, job.row, job.priority, delay, int(job.given), job.attempts, job.note]
            commands.append(self._eval("forward/adopt", queue, argv, job.lane))

        def send(link: Link, again: bool) -> list[Reply]:
            return self._full_in_place(link, commands)[1:]

        return [reply if isinstance(reply, StoreFull) else Word(reply[0].decode()) for reply in self._links.run(send)]

    def _full_in_place(self, link: Link, commands: Sequence[tuple[Arg, ...]]) -> list[Reply]:
        """Replies in which a lack of memory stands as StoreFull. Raises what other errors mean."""
        replies = self._ask_all(link, commands)
        for place, reply in enumerate(replies):
            if isinstance(reply, ErrorReply):
                try:
                    self._raise_for(link, reply, commands[place])
                except StoreFull as full:
                    replies[place] = full
        return replies

    def _pack_jobs(self, jobs: Sequence[NewJob], max_pending: int = 0, counted: str = "") -> list[Arg]:
        """The arguments of the script behind the number of the call."""
        argv: list[Arg] = [self._limits.mark_ttl_ms, self._limits.remember_ms, counted, max_pending]
        for job_id, row, priority, delay_ms, fire_ms, given, batch in jobs:
            options = b""
            if priority or delay_ms > 0 or fire_ms is not None or given or batch:
                when = b"+%d" % delay_ms if delay_ms > 0 else b"0"
                if fire_ms is not None:
                    when = b"@%d" % max(0, fire_ms)
                options = b"%d %b %d %b" % (priority, when, given, batch.encode())
            argv += (job_id, row[1:], options)
        return argv

    def _announcement(self, queue: str) -> tuple[Arg, ...] | None:
        """Enters the queue into the registry: before a process's first enqueue, and again each minute."""
        if time.monotonic() - self._announced.get(queue, float("-inf")) < 60:
            return None
        return ("SADD", self._keys.top("queues"), queue)

    def _ask_enqueue(self, link: Link, call: tuple[Arg, ...], announce: tuple[Arg, ...] | None) -> list[Reply]:
        """Sends an enqueue, behind the announcement of its queue where that is due. What the call says decides: jobs
        that are in are not refused for an announcement that was."""
        if announce is None:
            return self._ask(link, [call])
        announced = link.ask([announce])[0]
        reply = self._ask(link, [call])
        if not isinstance(announced, ErrorReply):
            self._announced[str(announce[2])] = time.monotonic()
        return reply

    def register(self, queue: str, worker: str, lease_ms: int) -> Word:
        """Raises StoreDenied where this user lacks a right that some move needs."""
        word, *lacks = self._move("register", queue, [worker, lease_ms, *commands()])
        if lacks:
            raise denied(
                self._links.where, f"this user has no permissions to run the '{lacks[0].decode().lower()}' command"
            )
        return _WORDS[word]

    def claim(self, queue: str, worker: str, want: int, held: int) -> Claims:
        return self._claimed(queue, self._move("claim", queue, _claim_args(worker, want, held), worker))

    def _claimed(self, queue: str, answer: Reply) -> Claims:
        word = Word(answer[0].decode())
        if word is Word.OK:
            return Claims(word, _claims(queue, answer[1:]))
        flat = answer[1:]
        held = tuple(Claim(queue, flat[i].decode(), int(flat[i + 1]), b"") for i in range(0, len(flat), 2))
        return Claims(word, held)

    def renew(self, queue: str, workers: Sequence[str], lease_ms: int) -> Renewal:
        words, *marks = self._move("renew", queue, [lease_ms, *workers], each=workers)
        triples = [(marks[i].decode(), marks[i + 1].decode(), int(marks[i + 2])) for i in range(0, len(marks), 3)]
        return Renewal(tuple(_words(words)), tuple(triples))

    def _settle(self, kind: type, queue: str, worker: str, outcomes: Sequence[Any], again: bool) -> list[Word]:
        name, pack, weigh = _SETTLE[kind]
        move = _gated(name, outcomes)
        chunks = list(_chunks(outcomes, weigh))
        words: list[Word] = []
        # Each release goes to the head: the last chunk first, or the batch would not keep its order.
        for chunk in reversed(chunks) if name == "release" else chunks:
            argv = [arg for out in chunk for arg in pack(out)]

            def send(link: Link, flag: int, argv: list[Arg] = argv) -> list[Reply]:
                return self._ask(link, [self._eval(move, queue, [flag, *argv], worker)])

            got = _words(self._run_settling(queue, worker, send, again)[0])
            self._count_fenced(queue, got)
            words = got + words if name == "release" else words + got
        return words

    def _run_settling(
        self, queue: str, worker: str, send: Callable[[Link, int], list[Reply]], again: bool
    ) -> list[Reply]:
        """Runs an exchange that settles. `send(link, again)`: 1 where an earlier sending may have done it, also one
        of an earlier call whose answer never came."""
        again = again or (queue, worker) in self._unsure
        try:
            replies = self._links.run(lambda link, sent_again: send(link, int(again or sent_again)))
        except StoreError:
            # Of several scripts those before and behind one that failed are done.
            self._unsure.add((queue, worker))
            raise
        self._unsure.discard((queue, worker))
        return replies

    def _count_fenced(self, queue: str, words: Sequence[Word]) -> None:
        """Counts refusals once they are heard. A script could not: a late copy of a call is refused as well, and that
        is no fault of anybody's."""
        stale = words.count(Word.STALE)
        if stale:
            # At maxmemory it is refused: the worker's log line has to do.
            with suppress(StoreError):
                self._run(("HINCRBY", self._of(queue, "meta"), "fenced", stale))

    def complete(self, queue: str, worker: str, outcomes: Sequence[Completed], *, again: bool = False) -> list[Word]:
        return self._settle(Completed, queue, worker, outcomes, again)

    def retry(self, queue: str, worker: str, outcomes: Sequence[Retried], *, again: bool = False) -> list[Word]:
        return self._settle(Retried, queue, worker, outcomes, again)

    def bury(self, queue: str, worker: str, outcomes: Sequence[Buried], *, again: bool = False) -> list[Word]:
        return self._settle(Buried, queue, worker, outcomes, again)

    def snooze(self, queue: str, worker: str, outcomes: Sequence[Snoozed], *, again: bool = False) -> list[Word]:
        return self._settle(Snoozed, queue, worker, outcomes, again)

    def release(self, queue: str, worker: str, outcomes: Sequence[Released], *, again: bool = False) -> list[Word]:
        return self._settle(Released, queue, worker, outcomes, again)

    def exchange(
        self, queue: str, worker: str, outcomes: Sequence[Outcome], want: int, held: int, *, again: bool = False
    ) -> Exchange:
        by_kind: dict[type, list[int]] = {}
        for place, out in enumerate(outcomes):
            by_kind.setdefault(type(out), []).append(place)
        calls: list[tuple[str, list[int], list[Arg]]] = []
        for kind, places in by_kind.items():
            name, pack, weigh = _SETTLE[kind]
            chunks = list(_chunks(places, lambda place, weigh=weigh: weigh(outcomes[place])))  # type: ignore[misc]
            calls += [
                (
                    _gated(name, [outcomes[place] for place in chunk]),
                    chunk,
                    [arg for place in chunk for arg in pack(outcomes[place])],
                )
                for chunk in (reversed(chunks) if name == "release" else chunks)
            ]
        claim = self._eval("claim", queue, _claim_args(worker, want, held), worker)

        def send(link: Link, flag: int) -> list[Reply]:
            commands = [self._eval(name, queue, [flag, *argv], worker) for name, _, argv in calls]
            return self._ask(link, [*commands, claim] if want > 0 else commands)

        replies = self._run_settling(queue, worker, send, again) if calls or want > 0 else []
        words: list[Word] = [Word.OK] * len(outcomes)
        for (_, places, _), reply in zip(calls, replies, strict=False):
            for place, word in zip(places, _words(reply), strict=True):
                words[place] = word
        self._count_fenced(queue, words)
        if want <= 0:
            return Exchange(tuple(words), Claims(Word.OK))
        claimed = self._claimed(queue, replies[-1])
        if claimed.word is Word.HELD and calls:
            # The scripts were flushed between the two: the claim ran before the settling did.
            claimed = self.claim(queue, worker, want, held)
        return Exchange(tuple(words), claimed)

    def promote(self, queue: str, limit: int = PROMOTE_LIMIT) -> Promoted:
        argv = [limit, self._limits.remember_ms, self._limits.batch_keep_ms]
        _, moved, first, now = self._move("promote", queue, argv)
        return Promoted(int(moved), int(first) - int(now) / 1000 if first else None)

    def seal(self, queue: str, worker: str, expected_ms: int | None = None) -> Sealed:
        expected: Arg = "" if expected_ms is None else expected_ms
        answer = self._move("seal", queue, [worker, expected], worker)
        # Nobody knows here who has passed a gate: whoever reaps them looks.
        RedisStore.meets_gates = True
        claims = tuple(claim._replace(gated=True) for claim in _claims(queue, answer[1:]))
        return Sealed(Word(answer[0].decode()), claims)

    def reap(self, queue: str, worker: str, outcomes: Sequence[Lost]) -> int:
        left = 0
        for chunk in list(_chunks(outcomes, _error_bytes)) or [[]]:
            left = int(
                self._move(
                    _gated("reap", chunk), queue, [worker, *(arg for out in chunk for arg in _lost(out))], worker
                )
            )
        return left

    def admit(self, queue: str, worker: str, admissions: Sequence[Admission], *, again: bool = False) -> list[Word]:
        RedisStore.meets_gates = True
        words: list[Word] = []
        for chunk in _chunks(admissions, lambda one: sum(len(gate.name) + 60 for gate in one.gates)):
            argv = [arg for claim, doors in chunk for arg in (claim.id, claim.token, "\n".join(map(_terms, doors)))]

            def send(link: Link, flag: int, argv: Sequence[Arg] = tuple(argv)) -> list[Reply]:
                return self._ask(link, [self._eval("admit", queue, [flag, *argv], worker)])

            words += _words(self._run_settling(queue, worker, send, again)[0])
        return words

    def trip(self, queue: str, gate: str, for_ms: int) -> None:
        self._turn("trip", queue, gate, for_ms)

    def mend(self, queue: str, gate: str) -> None:
        self._turn("mend", queue, gate)

    def gates(self, queue: str, *, closed: bool = True) -> list[GateState]:
        flat = self._run(("HGETALL", self._of(queue, "gates")))[0]
        pairs = ((flat[i], flat[i + 1]) for i in range(0, len(flat), 2))
        told = {name: text.decode().split() for name, text in pairs if closed or not text.startswith(b"closed ")}
        if not told:
            return []
        key = self._of(queue, "waiters")
        counts = self._run(*(("ZLEXCOUNT", key, b"[%b\0" % name, b"(%b\1" % name) for name in told))
        return [
            _gate_state(name.decode(), words, int(waiting))
            for (name, words), waiting in sorted(zip(told.items(), counts, strict=True))
        ]

    def _walks(self, queue: str, ids: Sequence[str]) -> Iterator[list[str]]:
        """Parts of ids that may stand in the list of pending jobs: out of it each is found by a walk."""
        if not ids:
            return
        length = int(self._run(("LLEN", self._of(queue, "pending")))[0])
        most = max(1, WALK // max(1, length))
        for chunk in _chunks(ids, len):
            for at in range(0, len(chunk), most):
                yield chunk[at : at + most]

    def cancel(self, queue: str, ids: Sequence[str]) -> list[Word]:
        return [word for part in self._walks(queue, ids) for word in _words(self._move("cancel", queue, part))]

    def requeue(self, queue: str, ids: Sequence[str]) -> list[Word]:
        return [word for part in _chunks(ids, len) for word in _words(self._move("requeue", queue, part))]

    def purge(self, queue: str, state: State, ids: Sequence[str]) -> int:
        if state not in (State.PENDING, State.DELAYED, State.COMPLETED, State.DEAD):
            return 0
        parts = self._walks(queue, ids) if state is State.PENDING else _chunks(ids, len)
        return sum(int(self._move("purge", queue, [state.value, *part])) for part in parts)

    def pause(self, queue: str) -> None:
        self._turn("pause", queue)

    def resume(self, queue: str) -> None:
        self._turn("resume", queue)

    def begin(self, queue: str, batch: NewBatch) -> Word:
        argv: list[Arg] = [batch.id, orjson.dumps(batch.name), batch.on_complete, batch.on_success]
        self._run(("SADD", self._keys.top("queues"), queue))
        return _words(self._move("begin", queue, argv))[0]

    def conclude(self, queue: str, batch_id: str) -> Word:
        return _words(self._move("conclude", queue, [batch_id]))[0]

    def _turn(self, name: str, queue: str, *args: Arg) -> None:
        """What a person switches. A copy that comes late must not undo what was done since: it carries the turn of
        then."""
        while True:
            turn = self._run(("HGET", self._of(queue, "meta"), "turn"))[0] or b"0"
            if self._move(name, queue, [*args, turn])[0] == b"ok":
                return

    # -- reads -----------------------------------------------------------------------------------------------------

    def queues(self) -> list[str]:
        return sorted(name.decode() for name in self._run(("SMEMBERS", self._keys.top("queues")))[0])

    def _of(self, queue: str, name: str, owner: str = "") -> str:
        return self._keys.of(queue, name, owner)

    def _workers(self, queue: str) -> list[str]:
        return [worker.decode() for worker in self._run(("ZRANGE", self._of(queue, "leases"), 0, -1))[0]]

    def stats(self, queue: str) -> QueueStats:
        while True:
            workers = self._workers(queue)
            answer = self._move("read/stats", queue, workers, each=workers)
            if answer[0] == b"ok":
                break
        names = ("pending", "delayed", "active", "completed", "dead")
        counts = {name: int(n) for name, n in zip(names, answer[1:6], strict=True)}
        now, end = int(answer[6]), 8 + 2 * int(answer[7])
        heads = [apart(*answer[i : i + 2]) for i in range(8, end, 2) if answer[i]]
        age = max((now - _ready_ms(orjson.loads(row), read_note(note).since) for row, note in heads), default=0)
        meta = {answer[i].decode(): answer[i + 1] for i in range(end, len(answer), 2)}
        totals = {name: int(meta.get(name, 0)) for name in TOTALS}
        return QueueStats("paused" in meta, counts, totals, max(0, age))

    def get(self, queue: str, job_id: str) -> Job | None:
        jobs = self._read(queue, [job_id])
        return jobs[0] if jobs else None

    def _read(self, queue: str, ids: Sequence[str], state: State | None = None) -> list[Job]:
        """The jobs of these ids that stand there, in order. Where the state is not known, it is found out."""
        if not ids:
            return []
        workers = self._workers(queue)
        commands: list[tuple[Arg, ...]] = [
            ("HMGET", self._of(queue, name), *ids)
            for name in ("rows", "attempts", "notes", "priority", "results", "batched")
        ]
        commands += [("ZMSCORE", self._of(queue, name), *ids) for name in ("delayed", "dead", "completed")]
        commands += [("SMISMEMBER", self._of(queue, "active", worker), *ids) for worker in workers]
        rows, attempts, notes, priority, results, batched, delayed, dead, completed, *active = self._run(*commands)
        stored = [apart(row or b"", note) for row, note in zip(rows, notes, strict=True)]
        told = [read_note(note) for _, note in stored]
        shared = self._shared(queue, (line for note in told for line in note.errors))
        jobs = []
        for i, job_id in enumerate(ids):
            if rows[i] is not None:
                row = orjson.loads(stored[i][0])
            elif state is not None and any(scores[i] is not None for scores in (delayed, dead, completed)):
                # Its row was deleted from outside. What nobody sees nobody could remove, and sweeps would stop at it.
                row = _LOST_ROW
            else:
                continue
            forgiven, crashes, lost, cancel, since, reason, errors = told[i]
            worker = next((w for w, held in zip(workers, active, strict=True) if held[i]), "")
            found, since_ms = State.PENDING, _ready_ms(row, since)
            if delayed[i] is not None:
                found, since_ms = State.DELAYED, int(float(delayed[i])) // 4096
            elif dead[i] is not None:
                found, since_ms = State.DEAD, int(float(dead[i]))
            elif completed[i] is not None:
                found, since_ms = State.COMPLETED, int(float(completed[i]))
            elif worker:
                found = State.ACTIVE
            if state is not None and found is not state:
                continue
            jobs.append(
                Job(
                    id=job_id,
                    queue=queue,
                    job=row["job"],
                    state=found,
                    attempts=int(attempts[i] or 0),
                    priority=int(priority[i] or 0),
                    enqueued_ms=row["t"] or since_ms,
                    args=row.get("args", []),
                    kwargs=row.get("kwargs", {}),
                    since_ms=since_ms,
                    forgiven=forgiven,
                    crashes=crashes,
                    lost=lost,
                    reason=reason if row is not _LOST_ROW else "row lost",
                    errors=tuple(read_error(line, row["t"] or since_ms, shared) for line in errors),
                    worker=worker,
                    cancel=bool(cancel),
                    result=orjson.loads(results[i]) if results[i] else None,
                    max_attempts=row.get("max"),
                    timeout_ms=row.get("timeout"),
                    keep_ms=row.get("keep"),
                    batch=(batched[i] or b"").decode(),
                )
            )
        return jobs

    def _shared(self, queue: str, lines: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """What these errors refer to, and what that refers to."""
        found: dict[bytes, bytes | None] = {}
        while wanted := sorted(refs_in(lines) - found.keys()):
            ends = self._run(("HMGET", self._of(queue, "traces"), *wanted))[0]
            found.update(zip(wanted, ends, strict=True))
            lines = filter(None, ends)
        return found

    def jobs(self, queue: str, state: State, *, cursor: str = "", limit: int = 100) -> Page:
        match state:
            case State.PENDING:
                ids, cursor = self._page_pending(queue, cursor, limit)
            case State.ACTIVE:
                ids, cursor = self._page_active(queue, cursor, limit)
            case State.DELAYED | State.DEAD | State.COMPLETED:
                ids, cursor = self._page_sorted(queue, state.value, cursor, limit)
            case _:
                return Page((), "")
        return Page(tuple(self._read(queue, ids, state)), cursor)

    def _page_pending(self, queue: str, cursor: str, limit: int) -> tuple[list[str], str]:
        """In claim order: priorities above 0, the list, those below 0. The cursor is the place: `<part>:<offset>`."""
        part, offset = _place(cursor, 0, 2)
        ids: list[str] = []
        while part < 3 and len(ids) < limit:
            want = limit - len(ids)
            if part == 1:
                command: tuple[Arg, ...] = ("LRANGE", self._of(queue, "pending"), offset, offset + want - 1)
            else:
                low, high = ("-inf", "(0") if part == 0 else ("(0", "+inf")
                command = ("ZRANGEBYSCORE", self._of(queue, "prioritized"), low, high, "LIMIT", offset, want)
            got = [item.decode() for item in self._run(command)[0]]
            ids += got
            offset += len(got)
            if len(got) < want:
                part, offset = part + 1, 0
        return ids, f"{part}:{offset}" if part < 3 else ""

    def _page_active(self, queue: str, cursor: str, limit: int) -> tuple[list[str], str]:
        """By worker and id; the cursor is the last one seen."""
        if cursor and "\n" not in cursor:
            raise _no_cursor(cursor)
        workers = self._workers(queue)
        sets = self._run(*(("SMEMBERS", self._of(queue, "active", worker)) for worker in workers)) if workers else []
        all_claims = [f"{w}\n{item.decode()}" for w, held in zip(workers, sets, strict=True) for item in held]
        page = sorted(claim for claim in all_claims if claim > cursor)[:limit]
        more = len(page) == limit
        return [claim.partition("\n")[2] for claim in page], page[-1] if more else ""

    def _page_sorted(self, queue: str, name: str, cursor: str, limit: int) -> tuple[list[str], str]:
        """By score; the cursor is the last one seen, `<score>:<id>`, so that removals on the way skip nothing."""
        key, start = self._of(queue, name), 0
        if cursor:
            score, colon, last = cursor.partition(":")
            if not colon or not score.isdigit():
                raise _no_cursor(cursor)
            # Members of one score stand in the order of their ids: behind those below, and those up to the last seen.
            rank, below = self._run(("ZRANK", key, last), ("ZCOUNT", key, "-inf", f"({score}"))
            start = int(rank) + 1 if rank is not None else int(below)
        flat = self._run(("ZRANGE", key, start, start + limit - 1, "WITHSCORES"))[0]
        ids = [item.decode() for item in flat[::2]]
        more = len(ids) == limit
        return ids, f"{int(float(flat[-1]))}:{ids[-1]}" if more else ""

    def batch(self, queue: str, batch_id: str) -> BatchStats | None:
        packed = self._run(("HGET", self._of(queue, "batches"), batch_id))[0]
        return None if packed is None else unpack(batch_id, queue, packed)

    def batches(self, queue: str, *, skip: int = 0, limit: int = 100) -> list[BatchStats]:
        ids = self._run(("ZRANGE", self._of(queue, "batch_ends"), skip, skip + limit - 1, "REV"))[0]
        packed = self._run(("HMGET", self._of(queue, "batches"), *ids))[0] if ids else []
        return [unpack(id.decode(), queue, one) for id, one in zip(ids, packed, strict=True) if one is not None]

    def leases(self, queue: str) -> Leases:
        flat, now = self._run(("ZRANGE", self._of(queue, "leases"), 0, -1, "WITHSCORES"), *self._time_commands())[0:2]
        ends = {flat[i].decode(): int(float(flat[i + 1])) for i in range(0, len(flat), 2)}
        return Leases(self.now_ms() if self._replaced else int(now[0]) * 1000 + int(now[1]) // 1000, ends)

    def _time_commands(self) -> list[tuple[Arg, ...]]:
        return [("TIME",), ("GET", self._keys.top("clock-offset"))] if self._replaced else [("TIME",)]

    def now_ms(self) -> int:
        now, *offset = self._run(*self._time_commands())
        us = int(now[0]) * 1_000_000 + int(now[1]) + (int(offset[0] or 0) if offset else 0)
        return us // 1000

    def _fields(self, section: str) -> dict[str, str] | None:
        """A section of INFO; None where this user may not look."""
        try:
            text = self._run(("INFO", section))[0]
        except StoreDenied as error:
            if "NOPERM" not in str(error):
                raise
            return None
        return dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)

    def info(self) -> StoreInfo:
        """Raises StoreVersion for a server that is too old."""
        fields = self._fields("server")
        if fields is None:
            self.ping()
            return StoreInfo(f"{self._dialer.scheme}://{self._links.where}", "redis", "unknown")
        version = fields.get("redis_version", "0")
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
            raise StoreVersion(
                f"redis at {self._links.where}: expected version 7.0 or newer, found {version}; "
                "update the server, or name another in the url"
            )
        name = f"valkey {fields['valkey_version']}" if "valkey_version" in fields else f"redis {version}"
        return StoreInfo(f"{self._dialer.scheme}://{self._links.where}", "redis", name)

    def warnings(self) -> list[str]:
        out: list[str] = []
        if self.inbox is not None and (fault := self.inbox.fault()):
            out.append(Concern(f"{fault}; until then nothing is forwarded", grave=True))
        memory, persistence = self._fields("memory"), self._fields("persistence")
        if memory is None or persistence is None:
            return [*out, "INFO is forbidden to this user: nobody looked at version, eviction and persistence (+info)"]
        policy = memory.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            text = f"maxmemory-policy is {policy}: the server throws jobs away when it is full; set it to noeviction"
            out.append(Concern(text, grave=True))
        most, used = (int(memory.get(name, 0)) for name in ("maxmemory", "used_memory"))
        if most and used > most * 0.9:
            out.append(f"{used * 100 // most}% of maxmemory are in use: enqueues are refused when it is full")
        if persistence.get("aof_enabled", "0") == "0":
            saves = self._saves()
            if saves is None:
                out.append(
                    "appendonly is off, and CONFIG GET is forbidden to this user: nobody looked whether it saves"
                    " at all (+config|get)"
                )
            elif not saves:
                text = "the server saves nothing (appendonly no, save ''): a restart loses all jobs"
                out.append(Concern(text, grave=True))
            else:
                out.append(f"the server saves only now and then (save {saves}): a crash loses what came since")
        return out

    def _saves(self) -> str | None:
        """The save points; "" for none, None where this user may not look."""
        try:
            flat = self._run(("CONFIG", "GET", "save"))[0]
        except (StoreDenied, InternalError):
            # NOPERM, or a server that has renamed the command away.
            return None
        return flat[1].decode() if len(flat) > 1 else ""

    # -- waiting, and the life of the handle -------------------------------------------------------------------------

    def wake_waiter(self, queues: Sequence[str]) -> Waiter:
        return self._waiter([self._of(queue, "wake") for queue in queues], takes_one=True)

    def standing_claim(self, queue: str) -> RedisStandingClaim:
        return RedisStandingClaim(
            self._links,
            self._of(queue, "wake"),
            lambda worker, want, fresh_ms: self._eval(
                "claim", queue, [*_claim_args(worker, want, 0), fresh_ms], worker
            ),
            lambda reply: None if reply[0] == b"asleep" else self._claimed(queue, reply),
        )

    def timer_waiter(self, queues: Sequence[str]) -> Waiter:
        return self._waiter([self._of(queue, "timer") for queue in queues], takes_one=False)

    def _waiter(self, keys: Sequence[str], *, takes_one: bool) -> Waiter:
        if self._dialer.is_cluster and len(keys) > 1:
            return EachWaiter(self._links, keys, takes_one=takes_one)
        return RedisWaiter(self._links, keys)

    def forget(self, queue: str) -> None:
        """Takes away what is left of a queue whose jobs have all ended: for one that was made for a trial."""
        self._run(
            ("DEL", *(self._of(queue, name) for name in sorted(QUEUE_KEYS))), ("SREM", self._keys.top("queues"), queue)
        )

    def publish(self, master: str, status: dict[str, Any], ttl_ms: int) -> None:
        key = self._keys.top(f"master:{master}")
        if not status:
            self._run(("DEL", key), ("ZREM", self._keys.top("masters"), master))
            return
        until = self.now_ms() + ttl_ms
        # At maxmemory nobody is told: the work goes on.
        with suppress(StoreFull):
            self._run(
                ("SET", key, orjson.dumps(status), "PX", ttl_ms),
                ("ZADD", self._keys.top("masters"), until, master),
                ("ZREMRANGEBYSCORE", self._keys.top("masters"), "-inf", until - ttl_ms),
            )

    def masters(self) -> list[dict[str, Any]]:
        names = self._run(("ZRANGEBYSCORE", self._keys.top("masters"), f"({self.now_ms()}", "+inf"))[0]
        if not names:
            return []
        # Not by one MGET: in a cluster these keys are in many slots.
        values = self._run(*(("GET", self._keys.top(f"master:{name.decode()}")) for name in names))
        return [orjson.loads(value) for value in values if value]

    def before_fork(self) -> None:
        """The child closes what it inherits, the parent goes on with it. What the child will use it finds read."""
        for name in ("register", "claim", *(name for name, _, _ in _SETTLE.values())):
            shipped(name)
        commands()

    def after_fork(self) -> None:
        self._links.renew_after_fork()

    def close(self) -> None:
        self._links.forget()


def _place(cursor: str, start: int, last: int) -> tuple[int, int]:
    if not cursor:
        return start, 0
    part, colon, offset = cursor.partition(":")
    if not (colon and part.isdigit() and offset.isdigit() and int(part) <= last):
        raise _no_cursor(cursor)
    return int(part), int(offset)


def _no_cursor(cursor: str) -> ConfigError:
    return ConfigError(f"cursor: {cursor!r:.60} is none of this store's; use the one that the page before gave")
