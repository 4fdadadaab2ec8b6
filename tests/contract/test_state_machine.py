"""Lives that nobody would think of: random moves on a store and on the model, compared after each step.

Old claims are kept and used late, ids come back after a purge, calls are repeated with `again` and with old marks,
workers are sealed and reaped in the middle. What fails here becomes a plain test with a name.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from batchq.errors import ConfigError, QueueFull
from batchq.gates import Admission
from batchq.job import Buried, Claim, Completed, Lost, Mark, Outcome, Released, Retried, Snoozed, pack_error
from batchq.lifecycle import COUNTED, State, unaccounted
from batchq.store import Store
from batchq.tally import NewBatch
from tests.contract.at_gates import CIRCUIT, GATES, PLACE, RATE, AtGates
from tests.contract.conftest import Ground
from tests.contract.helpers import LEASE_MS, Q, a_job, an_error, pages
from tests.contract.model import Model, ModelJob

#: Delays and steps of time keep 5 s away from each other's ends: a clock that runs by itself crosses none.
DELAYS = st.sampled_from([15_000, 25_000, 65_000])
STEPS = st.sampled_from([10_000, 20_000, 60_000])
KEEPS = st.sampled_from([0, 0, 3_600_000, 3_605_000])
IDS = st.sampled_from([f"j{n}" for n in range(8)] + [f"g{n}" for n in range(4)])
MANY_IDS = st.lists(IDS, min_size=1, max_size=4)
PICKS = st.lists(st.integers(0, 10_000), min_size=1, max_size=4)
WHOSE = st.sampled_from(["held", "held", "held", "own", "any"])
#: Of rows: some are small, some are not when their notes are long, some never are.
ROWS = ["", "x" * 800, "x" * 2000]
#: Of an error: a short one, one that jobs may share, a long one.
WAYS = ["none", 'File "a.py", line 1, in f\n' * 4, 'File "b.py", line 2, in g\n' * 50]
#: Only the first has callbacks: of two that end in one call nobody says whose are first.
BATCHES = ["b1", "b2"]
PRIORITY = st.sampled_from([0, 0, 0, 5, -5])
MAX_CRASHES, MAX_LOST = 2, 2


class Machine(RuleBasedStateMachine):
    """One example: a store, the model, and every claim that was ever handed out."""

    def __init__(self, ground: Ground) -> None:
        super().__init__()
        self.ground = ground
        self.store: Store = ground.open()
        self.model = Model()
        self.at_gates = AtGates(self.store, self.model)
        self.workers: list[str] = []
        self.claims: list[tuple[str, Claim]] = []
        self.errors = 0
        #: Used ids whose entry is gone: what the store says of them is no part of the contract.
        self.left: set[str] = set()
        self.ship_scripts()

    def ship_scripts(self) -> None:
        """What a server does not know yet is sent behind the claim of the same exchange. No worker settles what it
        claims only then; but late claims of another life of an id look like that."""
        self.store.seal(Q, "nobody")
        for claim in (Claim(Q, "none", 1, b""), Claim(Q, "none", 1, b"", gated=True)):
            ends: list[Outcome] = [Completed(claim), Retried(claim, 15_000, 3, an_error("x")), Released(claim)]
            self.store.exchange(Q, "nobody", ends, 0, 0, again=True)

    def teardown(self) -> None:
        self.ground.discard(self.store)

    # -- drawing ---------------------------------------------------------------------------------------------------

    def worker(self, pick: int) -> str:
        """Mostly one that is alive, sometimes one that was sealed or is gone, first of all one that was never there."""
        alive = sorted(self.model.alive)
        pool = alive * 6 + self.workers + ["nobody"]
        return pool[pick % len(pool)]

    def claims_of(self, pick: int, picks: list[int], whose: str) -> tuple[str, list[Claim]]:
        """Who settles which claims: what it holds (each once), what it ever held, or what anybody ever held."""
        holders = sorted({job.holder for job in self.model.in_state("active")})
        if whose == "held" and holders:
            worker = holders[pick % len(holders)]
            held = {job.id: job.token for job in self.model.held(worker)}
            pool = [claim for holder, claim in self.claims if holder == worker and held.get(claim.id) == claim.token]
        else:
            worker = self.worker(pick)
            pool = [claim for holder, claim in self.claims if whose == "any" or holder == worker]
        chosen = {(claim.id, claim.token): claim for claim in (pool[pick % len(pool)] for pick in picks if pool)}
        return worker, list(chosen.values())

    def error(self) -> str:
        self.errors += 1
        return f"e{self.errors}"

    def failure(self, error: str) -> bytes:
        """The entry of an error of that text."""
        number, said = int(error[1:]), said_of(error)
        return pack_error(**said, at_ms=self.store.now_ms() + (number % 3 - 1) * 700)

    @initialize(delayed=st.lists(DELAYS, max_size=3), want=st.integers(0, 4))
    def begin(self, delayed: list[int], want: int) -> None:
        """Two workers, some jobs, some of them claimed: most moves have something to move from the start."""
        self.master("register", 0, [], "any", 15_000, True)
        self.master("register", 0, [], "any", 15_000, True)
        self.batch("begin", "b1")
        self.enqueue([(f"j{n}", 0, 0, ["", "b1"][n % 2]) for n in range(5)], "a", 0, 0)
        if delayed:
            self.enqueue([(f"j{5 + n}", 0, delay, "b1") for n, delay in enumerate(delayed)], "", 0, 0)
        if want:
            self.claim(0, want, 0, asks=True)

    # -- producers ---------------------------------------------------------------------------------------------------

    @rule(
        items=st.lists(
            st.tuples(IDS, PRIORITY, st.one_of(st.just(0), DELAYS), st.sampled_from(["", "", *BATCHES])),
            min_size=1,
            max_size=6,
        ),
        lane=st.sampled_from(["", "a", "b"]),
        back=st.sampled_from([0, 0, 0, 1, 2]),
        most=st.sampled_from([0, 0, 0, 3]),
    )
    def enqueue(self, items: list[tuple[str, int, int, str]], lane: str, back: int, most: int) -> None:
        mark = (lane, max(1, self.model.marks.get(lane, 0) + 1 - back)) if lane else None
        jobs = [
            a_job(id, ROWS[int(id[1:]) % len(ROWS)], priority=p, given=id[0] == "g", delay_ms=delay, batch=b)
            for id, p, delay, b in items
        ]
        try:
            words = list(map(str, self.store.enqueue(Q, jobs, Mark(*mark) if mark else None, max_pending=most)))
        except QueueFull:
            words = ["full"]
        except ConfigError:
            words = ["over"]
        assert words == self.model.enqueue([(id, p, id[0] == "g", delay, b) for id, p, delay, b in items], mark, most)

    @rule(verb=st.sampled_from(["begin", "conclude"]), id=st.sampled_from(BATCHES))
    def batch(self, verb: str, id: str) -> None:
        """A batch begins, or nothing more comes into it."""
        if verb == "conclude":
            assert self.store.conclude(Q, id) == self.model.conclude(id)
            return
        heads = (b'"job":"send","args":[{"id":"b"',) * 2 if id == "b1" else (b"", b"")
        assert self.store.begin(Q, NewBatch(id, f"name {id}", *heads)) == self.model.begin(id, id == "b1")

    # -- workers -----------------------------------------------------------------------------------------------------

    @rule(
        pick=st.integers(0, 100),
        want=st.integers(1, 4),
        off=st.sampled_from([0, 0, 0, 0, 1, -1]),
        asks=st.sampled_from([True, True, False]),
    )
    def claim(self, pick: int, want: int, off: int, asks: bool) -> None:
        """`asks`: at once whether they may pass their gates, as workers do."""
        worker = self.worker(pick)
        held = max(0, len(self.model.held(worker)) + off)
        answer = self.store.claim(Q, worker, want, held)
        # What is due by now comes with the claim, and of those that wait at gates only the store knows.
        self.at_gates.learn(answer.claims if answer.word == "ok" else ())
        self.check_claims(worker, answer.word, answer.claims, self.model.claim(worker, want, held))
        if asks and answer.word == "ok":
            self.ask(worker, list(answer.claims), again=False)

    def check_claims(self, worker: str, word: str, claims: tuple[Claim, ...], expected: tuple[str, Any]) -> None:
        assert word == expected[0]
        if word == "held":
            assert {(c.id, c.token) for c in claims} == {(id, token) for id, token, *_ in expected[1]}
            return
        assert [(c.id, c.token, c.forgiven, c.crashes, c.lost) for c in claims] == expected[1]
        self.claims += [(worker, claim) for claim in claims]

    @rule(picks=PICKS, pick=st.integers(0, 100), whose=WHOSE, again=st.booleans())
    def admit(self, picks: list[int], pick: int, whose: str, again: bool) -> None:
        """Some claims ask their gates whether they may run: once more, late, or for the first time."""
        self.ask(*self.claims_of(pick, picks, whose), again=again)

    def ask(self, worker: str, claims: list[Claim], *, again: bool) -> None:
        claims = [claim for claim in claims if claim.id in GATES]
        before = {gate.name: gate.until_ms for gate in self.store.gates(Q, closed=False)}
        words = self.store.admit(Q, worker, [Admission(claim, GATES[claim.id]) for claim in claims], again=again)
        now_ms = self.store.now_ms()
        for claim, word in zip(claims, words, strict=True):
            job = self.model.current(worker, claim.id, claim.token)
            if job is None:
                assert word == ("settled" if again else "stale")
                continue
            assert word == self.at_gates.asked(job, word, before, now_ms)
            if job.inside:
                self.has_passed(claim)
        self.at_gates.learn()

    def has_passed(self, claim: Claim) -> None:
        """From now on it is settled as one that may hold places. Tokens begin anew where an id comes again: claims of
        another life look the same, and are used by any worker here."""
        for n, (holder, one) in enumerate(self.claims):
            if (one.id, one.token) == (claim.id, claim.token):
                self.claims[n] = holder, one._replace(gated=True)

    @rule(gate=st.sampled_from([PLACE.name, RATE.name, CIRCUIT.name]), opens=st.sampled_from([True, False, False]))
    def switch(self, gate: str, opens: bool) -> None:
        """A gate is opened by hand, or closed."""
        if opens:
            self.store.trip(Q, gate, 25_000)
        else:
            self.store.mend(Q, gate)
        self.at_gates.learn()

    @rule(
        picks=PICKS,
        pick=st.integers(0, 100),
        whose=WHOSE,
        verb=st.sampled_from(["complete", "retry", "bury", "snooze", "release"]),
        again=st.booleans(),
        delay=DELAYS,
        keep=KEEPS,
        most=st.sampled_from([1, 2, 5]),
        cause=st.sampled_from(["failed", "crashed", "timed_out"]),
    )
    def settle(
        self,
        picks: list[int],
        pick: int,
        whose: str,
        verb: str,
        again: bool,
        delay: int,
        keep: int,
        most: int,
        cause: str,
    ) -> None:
        """One verb, its claims current or long gone, by their holder or by another."""
        worker, claims = self.claims_of(pick, picks, whose)
        make, predict = self.ways(verb, delay, keep, most, cause, self.at_gates.shut())
        words = getattr(self.store, verb)(Q, worker, [make(claim) for claim in claims], again=again)
        assert words == self.predicted(worker, claims, again, predict)
        self.at_gates.learn()

    def ways(self, verb: str, delay: int, keep: int, most: int, cause: str, shut: set[str]) -> tuple[Any, Any]:
        """How a claim becomes an outcome, and what the model does with the current jobs of a batch. `shut`: the
        circuits that are not closed; kept as it goes."""
        error = self.error()
        packed, model = self.failure(error), self.model

        def complete(job: ModelJob) -> str:
            self.at_gates.succeeds(job, shut)
            return model.complete(job, keep)

        def retry(job: ModelJob) -> str:
            if self.at_gates.forgives(job, cause, shut):
                return "ok"
            return model.retry(job, delay, most, cause, MAX_CRASHES, error)

        match verb:
            case "complete":
                return (
                    lambda claim: Completed(claim, b"1", keep),
                    lambda jobs: list(map(complete, jobs)),
                )
            case "retry":
                return (
                    lambda claim: Retried(claim, delay, most, packed, cause, MAX_CRASHES),
                    lambda jobs: list(map(retry, jobs)),
                )
            case "bury":
                return (
                    lambda claim: Buried(claim, "buried", packed),
                    lambda jobs: [model.bury(job, "buried", error) for job in jobs],
                )
            case "snooze":
                return lambda claim: Snoozed(claim, delay), lambda jobs: [model.snooze(job, delay) for job in jobs]
            case _:
                return lambda claim: Released(claim, packed), lambda jobs: model.release(jobs, error)

    def predicted(self, worker: str, claims: list[Claim], again: bool, predict: Any) -> list[str]:
        jobs = [self.model.current(worker, claim.id, claim.token) for claim in claims]
        done = iter(predict([job for job in jobs if job is not None]))
        return [self.model.stale(again) if job is None else next(done) for job in jobs]

    @rule(
        picks=PICKS,
        pick=st.integers(0, 100),
        whose=WHOSE,
        verbs=st.lists(st.sampled_from(["complete", "retry", "release"]), min_size=4, max_size=4),
        again=st.booleans(),
        delay=DELAYS,
        keep=KEEPS,
        want=st.integers(0, 4),
    )
    def exchange(
        self, picks: list[int], pick: int, whose: str, verbs: list[str], again: bool, delay: int, keep: int, want: int
    ) -> None:
        """Ends of several kinds and the next claims in one call."""
        worker, claims = self.claims_of(pick, picks, whose)
        batch = list(zip(claims, verbs, strict=False))
        outcomes: list[Outcome] = []
        words: dict[int, str] = {}
        shut = self.at_gates.shut()
        for verb in ("complete", "retry", "release"):
            places = [n for n, (_, of) in enumerate(batch) if of == verb]
            make, predict = self.ways(verb, delay, keep, 3, "failed", shut)
            claims = [batch[n][0] for n in places]
            outcomes += [make(claim) for claim in claims]
            words |= zip(places, self.predicted(worker, claims, again, predict), strict=True)
        by_claim = {outcome.claim: outcome for outcome in outcomes}
        held = len(self.model.held(worker))
        answer = self.store.exchange(Q, worker, [by_claim[claim] for claim, _ in batch], want, held, again=again)
        assert list(answer.words) == [words[n] for n in range(len(batch))]
        back = [claim.id for claim, verb in batch if verb == "release"]
        self.at_gates.learn(answer.claimed.claims if answer.claimed.word == "ok" else (), back)
        expected = self.model.claim(worker, want, held) if want else ("ok", [])
        self.check_claims(worker, answer.claimed.word, answer.claimed.claims, expected)

    # -- masters -----------------------------------------------------------------------------------------------------

    @rule(step=STEPS, limit=st.sampled_from([2, 1000]))
    def pass_time(self, step: int, limit: int) -> None:
        """Time passes and what is due is promoted: nothing due is left standing between two rules."""
        self.ground.advance(step)
        self.model.now += step
        # Those that wait at gates come between the others.
        mixed = any(job.waits for job in self.model.in_state("delayed"))
        for job in self.model.jobs.values():
            job.called = ""
        while True:
            answer = self.store.promote(Q, limit)
            moved = self.model.promote(1000 if mixed else limit)
            assert answer.moved == moved or mixed
            if not answer.moved:
                break
        self.at_gates.learn()
        self.at_gates.check_lines()
        assert (answer.next_in_ms is None) == (not self.model.delayed)
        assert answer.next_in_ms is None or answer.next_in_ms > 0

    @rule(
        verb=st.sampled_from(["register", "register", "register_again", "renew", "seal", "reap", "reap"]),
        pick=st.integers(0, 100),
        picks=PICKS,
        expected=st.sampled_from(["any", "right", "wrong"]),
        delay=DELAYS,
        whole=st.booleans(),
    )
    def master(self, verb: str, pick: int, picks: list[int], expected: str, delay: int, whole: bool) -> None:
        """What the masters do about leases."""
        worker = self.worker(pick)
        match verb:
            case "register":
                if len(self.model.alive) < 3:
                    self.workers.append(f"w{len(self.workers)}")
                    self.register(self.workers[-1])
            case "register_again":
                if worker not in self.left:
                    self.register(worker)
            case "renew":
                self.renew(list(dict.fromkeys(self.worker(pick) for pick in picks)))
            case "seal":
                self.seal(worker, expected)
            case "reap":
                some = self.claims_of(pick, picks, "own")[1]
                self.seal(worker, "any")
                mine = {(claim.id, claim.token): claim for holder, claim in self.claims if holder == worker}
                self.reap(worker, list(mine.values()) if whole else some, delay)

    def register(self, worker: str) -> None:
        assert self.store.register(Q, worker, LEASE_MS) == self.model.register(worker)

    def renew(self, workers: list[str]) -> None:
        words, marks = self.model.renew(workers)
        renewal = self.store.renew(Q, workers, LEASE_MS)
        assert list(renewal.words) == words
        alive = {worker for worker, word in zip(workers, words, strict=True) if word == "ok"}
        assert {mark for mark in renewal.marks if mark[0] in alive} == marks

    def seal(self, worker: str, expected: str) -> None:
        end = self.store.leases(Q).ends.get(worker, 0)
        seen = None if expected == "any" else end + (expected == "wrong" and end > 0)
        word, claims = self.model.seal(worker, expected != "wrong")
        sealed = self.store.seal(Q, worker, seen)
        assert (sealed.word, {(claim.id, claim.token) for claim in sealed.claims}) == (word, claims)

    def reap(self, worker: str, claims: list[Claim], delay: int) -> None:
        error = self.error()
        packed = self.failure(error)
        left = self.store.reap(Q, worker, [Lost(claim, delay, MAX_LOST, packed) for claim in claims])
        named = [(claim.id, claim.token) for claim in claims]
        assert left == self.model.reap(worker, named, delay, MAX_LOST, error)
        self.at_gates.learn()
        if left == 0:
            self.left.add(worker)

    # -- people ------------------------------------------------------------------------------------------------------

    @rule(
        verb=st.sampled_from(["cancel", "cancel", "requeue", "requeue", "purge", "purge", "pause"]),
        ids=MANY_IDS,
        state=st.sampled_from(list(State)),
        whole=st.booleans(),
    )
    def manage(self, verb: str, ids: list[str], state: State, whole: bool) -> None:
        """Some ids, or all that stand in a state."""
        if whole:
            ids = sorted(job.id for job in self.model.in_state(state.value))
        match verb:
            case "cancel":
                assert self.store.cancel(Q, ids) == [self.model.cancel(id) for id in ids]
            case "requeue":
                assert self.store.requeue(Q, ids) == [self.model.requeue(id) for id in ids]
            case "purge":
                assert self.store.purge(Q, state, ids) == self.model.purge(state.value, ids)
            case "pause":
                # A paused machine stands: see what a claim says, and go on.
                self.store.pause(Q)
                self.model.paused = True
                self.claim(0, 1, 0, asks=False)
                self.store.resume(Q)
                self.model.paused = False

    # -- after each step -----------------------------------------------------------------------------------------------

    @invariant()
    def same_totals(self) -> None:
        stats = self.store.stats(Q)
        assert unaccounted(stats.counts, stats.totals) == 0, stats
        assert stats.totals == self.model.totals
        assert stats.counts == {state.value: len(self.model.in_state(state.value)) for state in COUNTED}
        assert stats.paused == self.model.paused

    @invariant()
    def same_gates(self) -> None:
        self.at_gates.check()

    @invariant()
    def same_leases(self) -> None:
        ends = self.store.leases(Q).ends
        assert {worker for worker, end in ends.items() if end} == self.model.alive
        assert {worker for worker, end in ends.items() if not end} == self.model.sealed

    @invariant()
    def same_batches(self) -> None:
        for found in self.store.batches(Q):
            batch = self.model.batches[found.id]
            told = (found.total, found.completed, found.dead, found.cancelled, found.pending)
            assert told == (batch.total, batch.completed, batch.dead, batch.cancelled, batch.pending), found
            assert found.closed == batch.closed
            assert (found.ended_ms is None) == (batch.pending > 0)
            assert found == self.store.batch(Q, found.id)
        assert len(self.store.batches(Q)) == len(self.model.batches)

    @invariant()
    def same_jobs(self) -> None:
        model = self.model
        lists = {state: list(pages(self.store, state, limit=5)) for state in COUNTED}
        order = {state: [job.id for job in jobs] for state, jobs in lists.items()}
        assert order[State.PENDING] == model.pending_order()
        assert [id for id in order[State.DELAYED] if not model.jobs[id].waits] == model.delayed_order()
        for state in (State.DEAD, State.COMPLETED):
            ends = [model.jobs[id].at for id in order[state]]
            assert ends == sorted(ends)
        for state, jobs in lists.items():
            assert sorted(map(facts, jobs)) == sorted(map(facts, model.in_state(state.value)))


def facts(job: Any) -> tuple[Any, ...]:
    """What store and model must agree on."""
    if isinstance(job, ModelJob):
        return (
            *(job.id, job.state, job.token, job.priority, job.forgiven, job.crashes, job.lost),
            *(job.reason, job.holder, job.marked, [said_of(error, "error") for error in job.errors], job.batch),
        )
    return (
        *(job.id, job.state.value, job.attempts, job.priority, job.forgiven, job.crashes, job.lost),
        *(job.reason, job.worker, job.cancel, said(job.errors), job.batch),
    )


def said(errors: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    """Without their times: a claim that is used by another life of its id counts from when that came."""
    return [{name: value for name, value in error.items() if name != "at_ms"} for error in errors]


def said_of(error: str, text: str = "text") -> dict[str, Any]:
    """What there is to say of that error: some by one worker, some in one way, some of which nothing is known."""
    number = int(error[1:])
    said: dict[str, Any] = {"kind": ["OSError", "KeyError"][number % 2], text: error, "attempt": number % 5}
    if number % 3:
        said["worker"] = f"w{number % 3}"
    if number % 4:
        said["trace"] = WAYS[number % 4 - 1]
    return said


def test_store_does_what_the_model_says(ground: Ground) -> None:
    """After each of many random steps the store stands where the model stands."""
    examples, steps = (150, 40) if ground.kind == "memory" else (50, 40)
    run_state_machine_as_test(
        lambda: Machine(ground),  # type: ignore[arg-type]
        settings=settings(max_examples=examples, stateful_step_count=steps),
    )
