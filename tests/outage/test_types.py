"""Keys of another type, somebody's slip: what a script was about to do is done whole once that is mended, or was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from batchq.errors import StoreCorrupt
from batchq.gates import Admission, Gate
from batchq.job import (
    Buried,
    Claim,
    Completed,
    Lost,
    Mark,
    NewJob,
    Outcome,
    Released,
    Retried,
    Snoozed,
    pack_error,
    pack_row,
)
from batchq.lifecycle import State, Word, unaccounted
from batchq.redis.scripts import load
from batchq.redis.store import Adopted, RedisStore
from batchq.tally import NewBatch
from tests.contract.helpers import LEASE_MS, Q, listed
from tests.servers import Server

GATE = Gate("all", limit=9, rate=99, period_ms=3_600_000, threshold=9, reset_ms=3_600_000)
TRACE = f'Traceback (most recent call last):\n  File "/srv/app.py", line 1, in f\n    {"x" * 99}\nOSError: no\n'
ERROR = pack_error("OSError", "no", attempt=1, at_ms=1_767_225_600_000, trace=TRACE)
DAY_MS = 86_400_000

#: Keys that are named to whoever has to mend them.
NAMED = ("delayed", "dead", "notes", "priority", "traces", "traced")

#: What is done with a store that a case has made ready; True: a second time.
Act = Callable[[bool], Any]
Case = Callable[[RedisStore], Act]


def jobs(**options: Any) -> list[NewJob]:
    """One with all there is, one with little."""
    return [
        NewJob("a", pack_row("send"), given=True, batch="letters", **options),
        NewJob("b", pack_row("send"), **options),
    ]


def put(store: RedisStore, **options: Any) -> None:
    store.begin(Q, NewBatch("letters"))
    store.enqueue(Q, jobs(**options), Mark("before", 1))


def claim_all(store: RedisStore, *, gated: bool = False, **options: Any) -> list[Claim]:
    put(store, **options)
    store.register(Q, "w1", LEASE_MS)
    claims = store.claim(Q, "w1", 2, 0).claims
    if gated:
        assert store.admit(Q, "w1", [Admission(claim, (GATE,)) for claim in claims]) == [Word.OK] * 2
    return [claim._replace(gated=gated) for claim in claims]


def settling(verb: str, make: Callable[[Claim], Outcome], *, marked: bool = False, **options: Any) -> Case:
    def prepare(store: RedisStore) -> Act:
        claims = claim_all(store, **options)
        if marked:
            store.cancel(Q, ["a"])
        return lambda again: getattr(store, verb)(Q, "w1", [make(claim) for claim in claims], again=again)

    return prepare


def reaping(*, gated: bool) -> Case:
    def prepare(store: RedisStore) -> Act:
        claims = [claim._replace(gated=gated) for claim in claim_all(store, gated=gated)]
        store.seal(Q, "w1")
        return lambda again: store.reap(Q, "w1", [Lost(claim, DAY_MS, 10, ERROR) for claim in claims])

    return prepare


def admitting(store: RedisStore) -> Act:
    asked = [Admission(claim, (Gate("one", limit=1),)) for claim in claim_all(store)]
    return lambda again: store.admit(Q, "w1", asked, again=again)


def enqueuing(**options: Any) -> Case:
    """The second time as the first: under the same mark."""

    def prepare(store: RedisStore) -> Act:
        store.begin(Q, NewBatch("letters"))
        return lambda again: store.enqueue(Q, jobs(**options), Mark("lane", 1))

    return prepare


def adopting(store: RedisStore) -> Act:
    row = b'{"t":5,"job":"send"}'
    given = [
        Adopted("a", row, 3, None, True, 2, b"1 0 0 0 0 -", "lane-a"),
        Adopted("b", row, 0, DAY_MS, False, 0, b"", "lane-b"),
    ]
    return lambda again: store.adopt(Q, given)


def moving(verb: str, state: State, **options: Any) -> Case:
    def prepare(store: RedisStore) -> Act:
        if state in (State.PENDING, State.DELAYED):
            put(store, **options)
        else:
            claims = claim_all(store, **options)
            if state is State.DEAD:
                store.bury(Q, "w1", [Buried(claim, "buried", ERROR) for claim in claims])
            elif state is State.COMPLETED:
                store.complete(Q, "w1", [Completed(claim, b"17", DAY_MS) for claim in claims])
        if verb == "purge":
            return lambda again: store.purge(Q, state, ["a", "b"])
        return lambda again: getattr(store, verb)(Q, ["a", "b"])

    return prepare


def concluding(store: RedisStore) -> Act:
    store.begin(Q, NewBatch("letters", on_complete=b'"job":"send","args":[{"batch":"letters"'))
    return lambda again: store.conclude(Q, "letters")


OUTCOMES: dict[str, tuple[str, Callable[[Claim], Outcome]]] = {
    "complete": ("complete", Completed),
    "keep": ("complete", lambda claim: Completed(claim, b"17", DAY_MS)),
    "retry": ("retry", lambda claim: Retried(claim, DAY_MS, 5, ERROR)),
    "die": ("retry", lambda claim: Retried(claim, DAY_MS, 1, ERROR)),
    "bury": ("bury", lambda claim: Buried(claim, "buried", ERROR)),
    "snooze": ("snooze", lambda claim: Snoozed(claim, DAY_MS)),
    "release": ("release", lambda claim: Released(claim, ERROR)),
}
#: Name -> the script, and the case.
CASES: dict[str, tuple[str, Case]] = {
    "enqueue": ("enqueue", enqueuing()),
    "enqueue by priority": ("enqueue", enqueuing(priority=3)),
    "enqueue for later": ("enqueue", enqueuing(delay_ms=DAY_MS)),
    "adopt": ("forward/adopt", adopting),
    "admit": ("admit", admitting),
    "conclude": ("conclude", concluding),
    "reap": ("reap", reaping(gated=False)),
    "reap at gates": ("gated/reap", reaping(gated=True)),
}
for name, (verb, make) in OUTCOMES.items():
    CASES |= {
        name: (verb, settling(verb, make)),
        f"{name} by priority": (verb, settling(verb, make, priority=3)),
        f"{name} of a marked one": (verb, settling(verb, make, marked=True)),
        f"{name} at gates": (f"gated/{verb}", settling(verb, make, gated=True)),
    }
for state in (State.PENDING, State.DELAYED, State.DEAD, State.COMPLETED):
    options = {"delay_ms": DAY_MS} if state is State.DELAYED else {}
    CASES[f"purge {state}"] = ("purge", moving("purge", state, **options))
    CASES[f"cancel {state}"] = ("cancel", moving("cancel", state, **options))
    CASES[f"requeue {state}"] = ("requeue", moving("requeue", state, **options))
CASES["cancel active"] = ("cancel", moving("cancel", State.ACTIVE))
CASES["cancel by priority"] = ("cancel", moving("cancel", State.PENDING, priority=3))
CASES["requeue by priority"] = ("requeue", moving("requeue", State.DEAD, priority=3))


@pytest.mark.parametrize("name", CASES)
def test_no_move_is_half_done(redis_server: Server, prefix: str, name: str) -> None:
    """One key after the other, all that the script declares. Each job stands in one list, and the law holds."""
    script, case = CASES[name]
    client = redis_server.client
    for n, key in enumerate(load(script).keys):
        if key == "mark":
            continue  # What stands there is overwritten.
        store = RedisStore(redis_server.url, prefix=f"{prefix}-{n}")
        act = case(store)
        mine = f"{prefix}-{n}:{{{Q}}}:{key}" + (":w1" if key == "active" else "")
        had = bool(client.exists(mine))
        if had:
            client.rename(mine, f"{mine}-kept")
        client.set(mine, "not ours")
        told = ""
        try:
            act(False)
        except StoreCorrupt as error:
            told = str(error)
        client.delete(mine)
        if had:
            client.rename(f"{mine}-kept", mine)
        assert not told or mine in told or key not in NAMED
        act(True)
        stats = store.stats(Q)
        stand = [id for state in State if state is not State.CANCELLED for id in listed(store, state)]
        assert client.hlen(f"{prefix}-{n}:{{{Q}}}:rows") == len(stand) == len(set(stand)), (key, stand)
        assert unaccounted(stats.counts, stats.totals) == 0, (key, stats)
        if script == "enqueue":
            assert sorted(stand) == ["a", "b"], key
        store.close()
