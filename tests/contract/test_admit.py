"""admit: active -> active past the job's gates, or -> delayed until it is its turn. Limits, rates, circuits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from batchq.gates import BEHIND_MS, CALLED_MS, FALLBACK_MS, FORGET_MS, HEAD_MS, Admission, Gate, GateState
from batchq.job import Buried, Claim, Completed, Lost, Outcome, Released, Retried, Snoozed
from batchq.lifecycle import State, Word
from batchq.store import Store
from tests.contract.conftest import Ground
from tests.contract.helpers import Q, an_error, enlist, expire, nonzero, put, read, settle, take

TWO = Gate("two", limit=2)


def ask(store: Store, claims: Sequence[Claim], *gates: Gate, worker: str = "w1", again: bool = False) -> list[Word]:
    return store.admit(Q, worker, [Admission(claim, gates) for claim in claims], again=again)


def passing(store: Store, *gates: Gate, want: int = 100, worker: str = "w1") -> list[Claim]:
    """Claims what there is, and answers those that may run."""
    held = len(store.jobs(Q, State.ACTIVE, limit=1000).jobs) if worker == "w1" else 0
    claims = store.claim(Q, worker, want, held).claims
    words = ask(store, claims, *gates, worker=worker)
    return [claim._replace(gated=True) for claim, word in zip(claims, words, strict=True) if word is Word.OK]


def ids(claims: Sequence[Claim]) -> list[str]:
    return [claim.id for claim in claims]


def gate(store: Store, name: str) -> GateState | None:
    return next((one for one in store.gates(Q) if one.name == name), None)


def end(store: Store, outcome: Outcome, worker: str = "w1") -> Word:
    return settle(store, outcome, worker)


def failed(claim: Claim, most: int = 9, cause: str = "failed") -> Retried:
    return Retried(claim, 60_000, most, an_error("no"), cause)


def test_never_more_at_once_than_the_limit_and_in_order(store: Store) -> None:
    """The surplus is delayed, forgiven, and called one by one, the first first, as places become free."""
    enlist(store)
    put(store, *"abcdef")
    run = passing(store, TWO)
    assert ids(run) == ["a", "b"]
    job = read(store, "c")
    assert (job.state, job.attempt, job.forgiven) == (State.DELAYED, 0, 1)
    assert gate(store, "two") == GateState("two", 2, 4, "closed", 0, 0, 2, 0, 0)
    assert passing(store, TWO) == []
    order = []
    while run:
        order.append(run[0].id)
        assert end(store, Completed(run[0])) is Word.OK
        run = run[1:] + passing(store, TWO)
        assert len(run) <= 2
    assert order == list("abcdef")
    assert store.gates(Q) == []
    assert nonzero(store)["completed"] == 6


@pytest.mark.parametrize("verb", ["complete", "retry", "bury", "snooze", "release"])
def test_every_end_of_a_run_leaves_its_place(store: Store, verb: str) -> None:
    """The next is called, whatever became of the one before."""
    enlist(store)
    put(store, *"abc")
    one, _ = passing(store, TWO)
    ends = {
        "complete": Completed(one),
        "retry": failed(one),
        "bury": Buried(one, "buried", an_error("x")),
        "snooze": Snoozed(one, 60_000),
        "release": Released(one),
    }
    assert end(store, ends[verb]) is Word.OK
    claims = store.claim(Q, "w1", 1, 1).claims
    if verb == "release":
        # What was given back stands at the head; the one that was called stands in front of it.
        assert ids(claims) == ["c"]
    assert ask(store, claims, TWO) == [Word.OK]
    assert ids(claims) == ["c"]


def test_places_of_a_dead_worker_come_free(store: Store) -> None:
    """By reaping, of what ran and of what is lost."""
    enlist(store)
    enlist(store, "w2")
    put(store, *"abcd")
    passing(store, TWO)
    a, b = store.seal(Q, "w1").claims
    assert store.retry(Q, "w1", [failed(a, cause="crashed")], again=True) == [Word.OK]
    assert ids(passing(store, TWO, worker="w2")) == ["c"]
    assert store.reap(Q, "w1", [Lost(b, 60_000, 10, an_error("x"))]) == 0
    claims = store.claim(Q, "w2", 5, 1).claims
    assert ids(claims) == ["d"]
    assert ask(store, claims, TWO, worker="w2") == [Word.OK]


def test_repeated_call_passes_once(store: Store) -> None:
    """A lost answer: the same claim holds one place, however often it asks; and it leaves once."""
    enlist(store)
    put(store, "a")
    claims = take(store)
    assert ask(store, claims, TWO) == [Word.OK]
    assert ask(store, claims, TWO, again=True) == [Word.OK]
    found = gate(store, "two")
    assert found is not None
    assert found.busy == 1
    [claim] = [claim._replace(gated=True) for claim in claims]
    assert end(store, Completed(claim)) is Word.OK
    assert store.complete(Q, "w1", [Completed(claim)], again=True) == [Word.SETTLED]
    assert store.gates(Q) == []


def test_stale_claim_passes_nothing(store: Store) -> None:
    """Neither of another worker nor of another token; and one that is marked as cancelled ends there."""
    enlist(store)
    enlist(store, "w2")
    put(store, "a", "b", "c")
    a, b, c = take(store, want=3)
    assert ask(store, [a], TWO, worker="w2") == [Word.STALE]
    assert ask(store, [a._replace(token=7)], TWO, again=True) == [Word.SETTLED]
    assert ask(store, [a, b], TWO) == [Word.OK, Word.OK]
    assert store.cancel(Q, ["c"]) == [Word.MARKED]
    assert ask(store, [c], TWO) == [Word.CANCELLED]
    assert store.get(Q, "c") is None


def test_keys_do_not_hinder_each_other(store: Store) -> None:
    """A job waits at its own gate alone; one with several passes all or none."""
    enlist(store)
    put(store, *"abcd")
    claims = take(store, want=4)
    one, other, both = Gate("k:one", limit=1), Gate("k:two", limit=1), Gate("all", limit=3)
    asked = [Admission(claim, (gate, both)) for claim, gate in zip(claims, (one, one, other, one), strict=True)]
    assert store.admit(Q, "w1", asked) == [Word.OK, Word.PARKED, Word.OK, Word.PARKED]
    found = gate(store, "all")
    assert found is not None
    assert (found.busy, found.waiting) == (2, 0)


def test_newcomer_does_not_pass_those_that_wait(store: Store) -> None:
    """Also where a place is free, because the one that was called has not come yet."""
    enlist(store)
    one = Gate("one", limit=1)
    put(store, *"abc")
    [a] = passing(store, one)
    assert ids([a]) == ["a"]
    put(store, "new")
    assert end(store, Completed(a)) is Word.OK
    # b stands at the head now.
    claims = store.claim(Q, "w1", 2, 0).claims
    assert ids(claims) == ["b", "new"]
    assert ask(store, claims, one) == [Word.OK, Word.PARKED]
    assert end(store, Completed(claims[0]._replace(gated=True))) is Word.OK
    assert ids(passing(store, one)) == ["c"]


def test_one_that_is_gone_is_not_waited_for(store: Store) -> None:
    """Cancelled or purged while it waits, or after it was called: the next goes."""
    enlist(store)
    one = Gate("one", limit=1)
    put(store, *"abcde")
    [a] = passing(store, one)
    assert store.cancel(Q, ["b"]) == [Word.CANCELLED]
    assert store.purge(Q, State.DELAYED, ["c"]) == 1
    assert end(store, Completed(a)) is Word.OK
    assert [job.id for job in store.jobs(Q, State.PENDING).jobs] == ["d"]


def called(store: Store, gate: Gate) -> Claim:
    """The claim of `b`, which the gate has called when `a` ended, and which has not asked yet; `c` waits."""
    enlist(store)
    put(store, *"abc")
    [a] = passing(store, gate)
    assert end(store, Completed(a)) is Word.OK
    [b] = store.claim(Q, "w1", 1, 0).claims
    assert b.id == "b"
    return b


@pytest.mark.parametrize("verb", ["complete", "retry", "bury", "snooze", "release"])
def test_id_that_comes_again_has_no_place_of_its_former_life(store: Store, verb: str) -> None:
    """The job was called, and ended (all but complete: was cancelled) without having asked."""
    one = Gate("one", limit=1)
    b = called(store, one)
    if verb != "complete":
        assert store.cancel(Q, ["b"]) == [Word.MARKED]
    ends = {
        "complete": (Completed(b), Word.OK),
        "retry": (failed(b), Word.CANCELLED),
        "bury": (Buried(b, "buried", an_error("x")), Word.CANCELLED),
        "snooze": (Snoozed(b, 60_000), Word.CANCELLED),
        "release": (Released(b), Word.CANCELLED),
    }
    outcome, word = ends[verb]
    assert end(store, outcome) is word
    put(store, "b")
    assert ask(store, store.claim(Q, "w1", 1, 0).claims, one) == [Word.PARKED]


def test_kept_job_leaves_its_place_when_its_time_is_over(store: Store, clock: Ground) -> None:
    """It was called, went well without having asked, and was kept for a while."""
    one = Gate("one", limit=1)
    b = called(store, one)
    assert end(store, Completed(b, b"1", 1000)) is Word.OK
    clock.advance(2000)
    store.promote(Q)
    expire(store)
    assert store.get(Q, "b") is None
    put(store, "b")
    assert ask(store, store.claim(Q, "w1", 1, 0).claims, one) == [Word.PARKED]


def test_called_in_vain_is_mended_by_time(store: Store, clock: Ground) -> None:
    """The one that was called is cancelled before it came: the first that waits looks again by itself."""
    enlist(store)
    one = Gate("one", limit=1)
    put(store, *"abc")
    [a] = passing(store, one)
    assert end(store, Completed(a)) is Word.OK
    assert store.cancel(Q, ["b"]) == [Word.CANCELLED]
    clock.advance(max(FALLBACK_MS, HEAD_MS, CALLED_MS) + 2_000)
    store.promote(Q)
    assert ids(passing(store, one)) == ["c"]


def test_rate_is_kept_in_every_window(store: Store, clock: Ground) -> None:
    """Three a minute: three pass, the next when the first is over, each after its own, in order."""
    enlist(store)
    gate_of_three = Gate("rate", rate=3, period_ms=60_000)
    put(store, *"abcdefgh")
    run = passing(store, gate_of_three)
    assert ids(run) == ["a", "b", "c"]
    for claim in run:
        assert end(store, Completed(claim)) is Word.OK
    assert passing(store, gate_of_three) == []
    fire = read(store, "d").since_ms - store.now_ms()
    assert 55_000 < fire <= 60_101
    clock.advance(57_000)
    assert store.promote(Q).moved == 0
    clock.advance(3_200)
    assert store.promote(Q).moved == 1
    run = passing(store, gate_of_three)
    # The first calls the others that may go.
    run += passing(store, gate_of_three)
    assert ids(run) == ["d", "e", "f"]
    assert {read(store, id).attempt for id in "def"} == {1}


def test_circuit_opens_forgives_probes_and_closes(store: Store, clock: Ground) -> None:
    """Three failures in a row open it; what fails from then on is forgiven; one probe goes, and closes it."""
    enlist(store)
    host = Gate("host", threshold=3, reset_ms=30_000)
    put(store, *"abcdef")
    run = passing(store, host, want=5)
    for claim in run[:3]:
        assert end(store, failed(claim)) is Word.OK
    assert [read(store, id).attempt for id in "abc"] == [1, 1, 1]
    found = gate(store, "host")
    assert found is not None
    assert (found.phase, found.busy) == ("open", 2)
    # In flight when it opened: forgiven, also at the end of its budget.
    assert end(store, failed(run[3], most=1)) is Word.OK
    assert (read(store, "d").state, read(store, "d").attempt) == (State.DELAYED, 0)
    assert end(store, Completed(run[4])) is Word.OK
    # f never ran: it waits without an attempt.
    assert passing(store, host) == []
    assert read(store, "f").attempt == 0
    clock.advance(32_000)
    store.promote(Q)
    [probe] = passing(store, host)
    found = gate(store, "host")
    assert found is not None
    assert found.phase == "probing"
    assert end(store, failed(probe, most=1)) is Word.OK
    assert read(store, probe.id).attempt == 0
    found = gate(store, "host")
    assert found is not None
    assert found.phase == "open"
    clock.advance(32_000)
    store.promote(Q)
    [other] = passing(store, host)
    assert other.id != probe.id
    assert end(store, Completed(other)) is Word.OK
    assert ids(passing(store, host))[:1] == [probe.id]


def test_success_in_between_keeps_it_closed(store: Store) -> None:
    """Failures in a row count; an answer that no retry mends is an answer; a crash of our own is none."""
    enlist(store)
    host = Gate("host", threshold=2, reset_ms=30_000)
    put(store, *"abcdef")
    a, b, c, d, e, f = passing(store, host)
    for outcome in (failed(a), Completed(b), failed(c), Buried(d, "buried", an_error("x")), failed(e)):
        assert end(store, outcome) is Word.OK
    assert end(store, failed(f, cause="crashed")) is Word.OK
    found = gate(store, "host")
    assert found is not None
    assert (found.phase, found.failures) == ("closed", 1)


def test_probe_that_is_cut_off_makes_room_for_the_next(store: Store, clock: Ground) -> None:
    """Released or snoozed: it said nothing about the other side."""
    enlist(store)
    host = Gate("host", threshold=1, reset_ms=1)
    put(store, *"ab")
    [a] = passing(store, host, want=1)
    assert end(store, failed(a)) is Word.OK
    clock.advance(10)
    [b] = passing(store, host)
    found = gate(store, "host")
    assert found is not None
    assert found.phase == "probing"
    assert end(store, Released(b)) is Word.OK
    assert ids(passing(store, host)) == ["b"]


def test_place_that_was_given_back_unknowingly_is_free(store: Store) -> None:
    """An answer was lost, and who released the claim did not know that it had passed."""
    enlist(store)
    put(store, *"ab")
    [a] = take(store)
    assert ask(store, [a], TWO) == [Word.OK]
    assert end(store, Released(a)) is Word.OK
    assert ids(passing(store, TWO)) == ["a", "b"]
    found = gate(store, "two")
    assert found is not None
    assert found.busy == 2


def test_nothing_is_kept_of_keys_that_are_not_used(store: Store, clock: Ground) -> None:
    """Limits may have millions of keys: what is known of each goes with its window, of its failures after a day."""
    enlist(store)
    keys = [f"key {n}" for n in range(30)]
    put(store, *keys)
    claims = take(store, want=30)
    doors = [Gate(claim.id, 1, 5, 1000, 9, 1000) for claim in claims]
    assert set(store.admit(Q, "w1", [Admission(c, (g,)) for c, g in zip(claims, doors, strict=True)])) == {Word.OK}
    for n, claim in enumerate(claims):
        mine = claim._replace(gated=True)
        assert end(store, failed(mine) if n % 2 else Completed(mine)) is Word.OK
    assert store.purge(Q, State.DELAYED, keys) == 15
    assert {one.failures for one in store.gates(Q)} == {1}
    clock.advance(2_000)
    store.promote(Q)
    assert {one.failures for one in store.gates(Q)} == {1}
    clock.advance(FORGET_MS)
    store.promote(Q)
    assert store.gates(Q) == []
    clock.advance(2_000)
    store.promote(Q)
    assert clock.at_gates(store, Q) == 0


def test_nothing_is_kept_of_jobs_that_are_gone(store: Store, clock: Ground) -> None:
    """Cancelled or purged while they wait, or cancelled while they ask."""
    enlist(store)
    one = Gate("one", limit=1)
    put(store, *"abcdef")
    [a] = passing(store, one)
    assert store.cancel(Q, ["b", "c"]) == [Word.CANCELLED, Word.CANCELLED]
    assert store.purge(Q, State.DELAYED, ["d", "e"]) == 2
    put(store, "g")
    [g] = store.claim(Q, "w1", 1, 1).claims
    assert store.cancel(Q, ["g"]) == [Word.MARKED]
    assert ask(store, [g], one) == [Word.CANCELLED]
    found = gate(store, "one")
    assert found is not None
    assert (found.busy, found.waiting) == (1, 1)
    assert end(store, Completed(a)) is Word.OK
    [f] = passing(store, one)
    assert end(store, Completed(f)) is Word.OK
    clock.advance(CALLED_MS + 100)
    store.promote(Q)
    assert clock.at_gates(store, Q) == 0


def test_next_is_called_when_the_first_has_been_in_vain(store: Store, clock: Ground) -> None:
    """Within seconds: after a call that nobody followed, and at a gate that was waiting for a time."""
    enlist(store)
    one, host = Gate("one", limit=1), Gate("host", threshold=1, reset_ms=30_000)
    put(store, *"abc")
    [a] = passing(store, one)
    assert end(store, Completed(a)) is Word.OK
    assert store.cancel(Q, ["b"]) == [Word.CANCELLED]
    clock.advance(CALLED_MS + 100)
    store.promote(Q)
    [c] = passing(store, one)
    assert end(store, Completed(c)) is Word.OK
    put(store, *"def")
    [d] = passing(store, host, want=1)
    assert end(store, failed(d)) is Word.OK
    assert passing(store, host) == []
    assert store.cancel(Q, ["e"]) == [Word.CANCELLED]
    clock.advance(30_000 + BEHIND_MS + 100)
    store.promote(Q)
    assert ids(passing(store, host)) == ["f"]


def test_limits_that_are_taken_away_let_all_go(store: Store) -> None:
    """Whoever knows of no gate any more passes, and calls those that wait there: a hundred at most are on their way."""
    enlist(store)
    put(store, *(f"{n:03d}" for n in range(250)))
    [first] = passing(store, Gate("one", limit=1, threshold=1, reset_ms=60_000), want=250)
    assert end(store, Completed(first)) is Word.OK
    order, most = [], []
    while claims := store.claim(Q, "w1", 250, 0).claims:
        most.append(len(claims))
        assert ask(store, claims) == [Word.OK] * len(claims)
        order += ids(claims)
        assert store.complete(Q, "w1", [Completed(claim) for claim in claims]) == [Word.OK] * len(claims)
    assert order == [f"{n:03d}" for n in range(1, 250)]
    assert most == [1, 100, 100, 48]
    assert store.gates(Q) == []


def test_sweep_calls_no_more_at_once_than_a_server_bears(store: Store, clock: Ground) -> None:
    """A thousand or so; the next sweep goes on with the other gates."""
    enlist(store)
    doors = [Gate(f"g{n:02d}", rate=100, period_ms=60_000) for n in range(12)]
    for door in doors:
        put(store, *(f"{door.name} {n}" for n in range(200)))
        claims = store.claim(Q, "w1", 200, 100 * doors.index(door)).claims
        words = ask(store, claims, door)
        assert (words.count(Word.OK), words.count(Word.PARKED)) == (100, 100)
    clock.advance(60_100 + BEHIND_MS + 100)
    assert store.stats(Q).counts["pending"] == 0
    store.promote(Q)
    assert store.stats(Q).counts["pending"] == 1000 + 2
    store.promote(Q)
    assert store.stats(Q).counts["pending"] == 1200


def test_cancelled_job_says_nothing_about_the_other_side(store: Store) -> None:
    """Whoever cancels what runs there opens no circuit."""
    enlist(store)
    host = Gate("host", threshold=1, reset_ms=30_000)
    put(store, *"ab")
    a, b = passing(store, host)
    assert store.cancel(Q, ["a"]) == [Word.MARKED]
    assert end(store, failed(a)) is Word.CANCELLED
    found = gate(store, "host")
    assert found is not None
    assert (found.busy, found.phase, found.failures) == (1, "closed", 0)
    assert end(store, Completed(b)) is Word.OK
    assert store.gates(Q) == []
