"""How many jobs with a rate are asked for at once, before they begin."""

from __future__ import annotations

from collections import deque

import pytest

from batchq import App
from batchq.config import Settings
from batchq.job import Claim, NewJob, Retried, new_id, pack_row
from batchq.memory_store import MemoryStore
from batchq.worker.admission import admit, portion, read
from batchq.worker.runner import Prepared, Runner
from tests.contract.helpers import Q, enlist, take


def ready_for(rate: str, keys: str) -> list[Prepared]:
    """A job a key, as a worker has read them."""
    app = App("memory:")
    app.job(name="call", rate=rate, key=lambda key: key)(print)
    claims = [Claim(Q, f"{n}", 1, pack_row("call", [key])) for n, key in enumerate(keys)]
    return read(Runner(app.registry, Settings()), claims).ready


def names(some: list[Prepared]) -> str:
    return "".join(one.args[0] for one in some)


@pytest.mark.parametrize(
    ("rate", "portions"),
    [("20/s", ["a", "a", "b", "a"]), ("80/s", ["aa", "ba"]), ("5000/s", ["aaba"]), ("10/h", ["a", "a", "b", "a"])],
)
def test_portion_is_what_the_rate_lets_through_in_a_moment(rate: str, portions: list[str]) -> None:
    """Of a 40th of a second; one at least."""
    rated = deque(ready_for(rate, "aaba"))
    assert [names(portion(rated, ())) for _ in portions] == portions
    assert not rated


def test_those_that_will_wait_are_asked_for_at_once() -> None:
    """Where the rate of a key is spent; other keys have their turn."""
    rated = deque(ready_for("20/s", "aabaab"))
    assert names(portion(rated, {"call:a"})) == "aabaa"
    assert names(portion(rated, {"call:a"})) == "b"


def test_whoever_runs_one_after_the_other_asks_when_its_turn_comes() -> None:
    """Of a batch those without a rate are admitted at once; the others keep their gates, and have taken no place."""
    app = App("memory:")
    app.job(name="call", rate="1000/s")(print)
    app.job(name="plain", limit=5)(print)
    store = MemoryStore()
    enlist(store)
    for name in ("call", "plain", "call"):
        store.enqueue(Q, [NewJob(new_id(), pack_row(name))])
    ready = read(Runner(app.registry, Settings()), take(store, want=3)).ready
    first, second, third = admit(store, Q, "w1", ready, rated=False)
    assert [one.name for one in first.gates + third.gates] == ["call", "call"]
    assert second.claim.gated
    assert [gate.name for gate in store.gates(Q)] == ["plain"]
    [first] = admit(store, Q, "w1", [first])
    assert first.claim.gated
    assert (first.gates, first.admitted_ns > 0, second.admitted_ns) == ((), True, 0)
    assert [gate.busy for gate in store.gates(Q)] == [1, 1]


def leave(*_: object) -> str:
    raise SystemExit("away")


def test_a_key_that_wants_to_leave_is_a_failed_attempt() -> None:
    """And not the end of each worker that reads the job, one after the other."""
    app = App("memory:")
    app.job(name="call", limit=1, key=leave)(print)
    [ended] = read(Runner(app.registry, Settings()), [Claim(Q, "1", 1, pack_row("call"))]).ended
    assert isinstance(ended, Retried)
    assert b"away" in ended.error


def test_a_policy_that_wants_to_leave_costs_nothing_but_itself() -> None:
    app = App("memory:")
    app.job(name="call", backoff=leave)(lambda: 1 / 0)
    ended = Runner(app.registry, Settings()).run(Claim(Q, "1", 1, pack_row("call")))
    assert isinstance(ended, Retried)
    assert b"ZeroDivisionError" in ended.error
