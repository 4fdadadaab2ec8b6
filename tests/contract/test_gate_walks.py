"""Random walks through gates, on each store and on memory side by side: the same words, the same order, the same state.

The rule stands twice, in `batchq/gates.py` (memory and the spool) and in `lua/include/gate.lua`. Whatever happens, a
gate counts what has passed it and has not ended, a rate holds in every window, nobody passes an open circuit and who
fails there spends no attempt, and at the end nobody is left waiting.

The state machine (test_state_machine) draws gates as well, beside all other moves, and judges what must hold whatever
the rule says; here each step of a store is that of the other.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from batchq.clock import ManualClock
from batchq.gates import Admission, Gate, GateState
from batchq.job import Buried, Claim, Completed, Outcome, Released, Retried, Snoozed
from batchq.lifecycle import COUNTED, State, Word
from batchq.memory_store import MemoryStore
from batchq.store import Store
from tests.contract.conftest import Ground
from tests.contract.helpers import LEASE_MS, Q, a_job, an_error, check_law

#: Times keep away from the borders of a clock that is moved by ten seconds and runs a little by itself.
STEP_MS, MOST_STEPS = 10_000, 28
GATES = {
    "a": (Gate("a", limit=2),),
    "b": (Gate("b", limit=3, threshold=2, reset_ms=25_000), Gate("all", limit=4)),
    "c": (Gate("c", rate=3, period_ms=64_000), Gate("all", limit=4)),
}
RATE = GATES["c"][0]
OPS = [
    "enqueue",
    "enqueue",
    "claim",
    "claim",
    "claim",
    "settle",
    "settle",
    "settle",
    "cancel",
    "pass",
    "seal",
    "hand",
    "free",
]


class Walk:
    """One store on its way. The random numbers are drawn outside: two walks see the same."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.held: dict[str, list[Claim]] = {"w1": [], "w2": []}
        for worker in self.held:
            store.register(Q, worker, LEASE_MS)
        self.next = 0
        #: When jobs have passed the rate, on a clock that only passes by steps.
        self.passed: list[int] = []
        self.now = 0

    def enqueue(self, keys: str) -> object:
        jobs = [a_job(f"{key}{self.next + n:03d}") for n, key in enumerate(keys)]
        self.next += len(keys)
        return self.store.enqueue(Q, jobs)

    def claim(self, worker: str, want: int, *, free: bool = False) -> object:
        """`free`: by one who knows of no gates."""
        before = {gate.name: gate for gate in self.store.gates(Q)}
        claims = self.store.claim(Q, worker, want, len(self.held[worker])).claims
        gates = {claim: () if free else GATES[claim.id[0]] for claim in claims}
        words = self.store.admit(Q, worker, [Admission(claim, gates[claim]) for claim in claims])
        told = [(claim.id, claim.token, claim.forgiven, word) for claim, word in zip(claims, words, strict=True)]
        may = [claim for claim, word in zip(claims, words, strict=True) if word is Word.OK]
        self.held[worker] += [claim._replace(gated=not free) for claim in may]
        self.check_passing([gate for claim in may for gate in gates[claim]], before)
        return told

    def check_passing(self, through: list[Gate], before: dict[str, GateState]) -> None:
        """What has just passed is no more than the rate in any window, and one at most at a circuit that is not
        closed: the probe, when its time has come."""
        self.passed += [self.now] * through.count(RATE)
        assert sum(self.now - at < RATE.period_ms for at in self.passed) <= RATE.rate
        for name, gate in before.items():
            count = [one.name for one in through].count(name)
            is_over = gate.phase == "open" and gate.until_ms <= self.store.now_ms()
            assert gate.phase == "closed" or count <= is_over, gate

    def settle(self, worker: str, pick: int, verb: str) -> object:
        if not self.held[worker]:
            return None
        claim = self.held[worker].pop(pick % len(self.held[worker]))
        shut = {gate.name for gate in self.store.gates(Q) if gate.phase != "closed"} if claim.gated else set()
        outcome: Outcome = {
            "complete": Completed(claim),
            "fail": Retried(claim, 15_000, 3, an_error("x")),
            "crash": Retried(claim, 15_000, 3, an_error("x"), "crashed"),
            "bury": Buried(claim, "buried", an_error("x")),
            "snooze": Snoozed(claim, 15_000),
            "release": Released(claim),
        }[verb]
        words = self.store.exchange(Q, worker, [outcome], 0, 0).words
        job = self.store.get(Q, claim.id)
        if job is not None and verb == "fail" and shut & {gate.name for gate in GATES[claim.id[0]]}:
            assert (job.state, job.attempt) == (State.DELAYED, claim.attempt - 1)
        return claim.id, words

    def seal(self, worker: str) -> object:
        """Its claims are given back, and it comes again."""
        sealed = self.store.seal(Q, worker)
        # Of a set nobody knows the order.
        claims = sorted(sealed.claims)
        self.store.release(Q, worker, [Released(claim) for claim in claims])
        self.store.reap(Q, worker, [])
        self.held[worker] = []
        self.store.register(Q, worker, LEASE_MS)
        return [claim.id for claim in claims]

    def hand(self, name: str, trip: bool) -> object:
        if trip:
            self.store.trip(Q, name, 25_000)
        else:
            self.store.mend(Q, name)
        return None

    def promote(self) -> None:
        while self.store.promote(Q).moved:
            pass

    def state(self) -> object:
        stats = self.store.stats(Q)
        gates = [(gate.name, gate.busy, gate.phase, gate.failures) for gate in self.store.gates(Q)]
        ids = {state: sorted(job.id for job in self.store.jobs(Q, state, limit=500).jobs) for state in COUNTED}
        return stats.counts, stats.totals, gates, ids

    def check_busy(self) -> None:
        """Each gate counts what has passed it and is held."""
        held = [claim for some in self.held.values() for claim in some if claim.gated]
        passed = Counter(gate.name for claim in held for gate in GATES[claim.id[0]])
        known = {gate.name: gate for gate in self.store.gates(Q)}
        assert {name: gate.busy for name, gate in known.items() if gate.busy} == dict(passed)
        limits = {gate.name: gate.limit for gates in GATES.values() for gate in gates if gate.limit}
        assert all(passed[name] <= limit for name, limit in limits.items())


@pytest.mark.parametrize("seed", range(8))
def test_walk_is_the_same_everywhere(ground: Ground, store: Store, seed: int) -> None:
    """Step by step; at the end all jobs that were not cancelled or buried are completed."""
    clock = ManualClock()
    mirror = Walk(MemoryStore(clock=clock))
    walk = Walk(store)
    rng = random.Random(seed)
    steps = 0
    for _ in range(70):
        op = rng.choice(OPS)
        worker, pick = rng.choice(["w1", "w2"]), rng.randrange(100)
        match op:
            case "enqueue":
                keys = "".join(rng.choice("abc") for _ in range(rng.randint(1, 6)))
                assert walk.enqueue(keys) == mirror.enqueue(keys)
            case "claim":
                want = rng.randint(1, 5)
                assert walk.claim(worker, want) == mirror.claim(worker, want)
            case "free":
                assert walk.claim(worker, 2, free=True) == mirror.claim(worker, 2, free=True)
            case "settle":
                verb = rng.choice(["complete", "complete", "fail", "fail", "crash", "bury", "snooze", "release"])
                assert walk.settle(worker, pick, verb) == mirror.settle(worker, pick, verb)
            case "cancel":
                id = f"{rng.choice('abc')}{rng.randrange(walk.next + 1):03d}"
                assert walk.store.cancel(Q, [id]) == mirror.store.cancel(Q, [id])
            case "seal":
                assert walk.seal(worker) == mirror.seal(worker)
            case "hand":
                name, trip = rng.choice("ab"), rng.random() < 0.5
                assert walk.hand(name, trip) == mirror.hand(name, trip)
            case "pass":
                if steps < MOST_STEPS:
                    steps += 1
                    ground.advance(STEP_MS)
                    clock.advance(STEP_MS)
                    walk.now += STEP_MS
                    mirror.now += STEP_MS
                walk.promote()
                mirror.promote()
        assert walk.state() == mirror.state(), op
        walk.check_busy()
    _drain(ground, walk)


def _drain(ground: Ground, walk: Walk) -> None:
    for _ in range(400):
        counts = walk.store.stats(Q).counts
        if not counts["pending"] + counts["delayed"] + counts["active"]:
            break
        for worker in walk.held:
            while walk.held[worker]:
                walk.settle(worker, 0, "complete")
        walk.claim("w1", 50)
        ground.advance(STEP_MS)
        walk.now += STEP_MS
        walk.promote()
    counts = walk.store.stats(Q).counts
    assert (counts["pending"], counts["delayed"], counts["active"]) == (0, 0, 0)
    assert walk.store.gates(Q) == [] or all(gate.failures or gate.phase != "closed" for gate in walk.store.gates(Q))
    check_law(walk.store)
