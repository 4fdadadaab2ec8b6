"""What must hold of jobs at gates whatever the rule says: what the state machine knows of them.

The rule itself stands twice (batchq/gates.py and lua/include/gate.lua), and what the two say is compared in
test_gate_walks. A third time would be a copy. So what a store answers is judged here, and then taken in: nobody passes
a full gate or an open one, or in front of somebody who waits there; nobody waits without a reason; who waits spends no
attempt; and whoever is called stands at the head of the queue, the first of the line first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from batchq.gates import Gate
from batchq.job import Claim
from batchq.lifecycle import State
from batchq.store import Store
from tests.contract.helpers import Q, pages
from tests.contract.model import Model, ModelJob

PLACE, RATE = Gate("place", limit=1), Gate("rate", rate=1, period_ms=64_000)
#: Opened by each failure.
CIRCUIT = Gate("circuit", threshold=1, reset_ms=25_000)
#: Those of each job; of all others none.
GATES = {
    **dict.fromkeys(("j0", "j1", "j7", "g2"), (CIRCUIT,)),
    "j2": (PLACE, CIRCUIT),
    "j4": (PLACE, RATE),
    "j5": (RATE,),
    "j6": (RATE,),
    **dict.fromkeys(("j3", "g3"), (PLACE,)),
}


class AtGates:
    """The jobs of a model that have passed gates, or wait at them."""

    def __init__(self, store: Store, model: Model) -> None:
        self.store = store
        self.model = model
        self.turns = 0
        #: Gate -> when jobs have passed it.
        self.passed: dict[str, list[int]] = {gate.name: [] for gate in (PLACE, RATE, CIRCUIT)}

    # -- looking ---------------------------------------------------------------------------------------------------

    def inside(self, gate: Gate) -> list[str]:
        """Those that hold a place there."""
        return [job.id for job in self.model.jobs.values() if job.inside and gate in GATES[job.id]]

    def line(self, name: str) -> list[ModelJob]:
        """Those that wait there, but for those of which nobody knows where they do, or whether they were called."""
        return [job for job in self.model.jobs.values() if job.waits == name and not job.unsure]

    def is_full(self, gate: Gate) -> bool:
        recent = sum(self.model.now - at < gate.period_ms for at in self.passed[gate.name])
        return bool(gate.limit and len(self.inside(gate)) >= gate.limit) or bool(gate.rate and recent >= gate.rate)

    def shut(self) -> set[str]:
        """The gates whose circuit is not closed."""
        return {gate.name for gate in self.store.gates(Q, closed=False)}

    def who_refuses(self, job: ModelJob, shut: set[str]) -> tuple[str, bool]:
        """The first of the job's gates that has a reason not to let it pass, and whether that is the one; ("", True)
        where none has a reason."""
        perhaps = ""
        for gate in GATES[job.id]:
            ahead = [other for other in self.model.jobs.values() if not job.turn or other.turn < job.turn]
            if gate.name in shut or self.is_full(gate) or any(one in ahead for one in self.line(gate.name)):
                return gate.name, not perhaps
            if any(self.may_wait(other, gate) for other in ahead):
                perhaps = perhaps or gate.name
        return perhaps, not perhaps

    @staticmethod
    def may_wait(job: ModelJob, gate: Gate) -> bool:
        """Nobody knows whether it waits there."""
        return job.unsure and gate in GATES[job.id]

    # -- what happens ------------------------------------------------------------------------------------------------

    def asked(self, job: ModelJob, word: str, before: dict[str, int], now_ms: int) -> str:
        """Judges the answer for a current claim and takes it in; answers the word that was right. `before`: until when
        each circuit that is not closed is open; 0: it is probed."""
        if job.inside:
            return "ok"
        shut = {name for name, until_ms in before.items() if not 0 < until_ms <= now_ms}
        refuses, is_sure = self.who_refuses(job, shut)
        job.called = ""
        if word != "ok":
            assert refuses, "it waits for nothing"
            if job.marked:
                return self.model.cancelled(job)
            self.park(job, refuses)
            job.unsure = not is_sure
            return "parked"
        for gate in GATES[job.id]:
            assert not self.is_full(gate), gate
            assert all(other.turn > job.turn > 0 for other in self.line(gate.name)), "it has passed who waits"
            assert gate.name not in shut, "the circuit is open"
            if gate.name in before:
                # As its probe.
                before[gate.name] = 0
        job.inside, job.turn = True, 0
        for gate in GATES[job.id]:
            self.passed[gate.name].append(self.model.now)
        return "ok"

    def park(self, job: ModelJob, gate: str) -> None:
        """It waits there, at its old place where it has one. When it looks again by itself only the store knows."""
        turn = job.turn
        job.forgiven += 1
        self.model.delay(job, 0)
        if not turn:
            self.turns += 1
        job.waits, job.turn, job.unsure = gate, turn or self.turns, False

    def forgives(self, job: ModelJob, cause: str, shut: set[str]) -> bool:
        """Whether a failed attempt counts for nothing: it had passed a circuit that is not closed any more. It waits
        behind the others then. Takes in which circuits it opens."""
        if not (job.inside and cause in ("failed", "timed_out")) or job.marked:
            return False
        names = [gate.name for gate in GATES[job.id] if gate.name in shut]
        shut |= {gate.name for gate in GATES[job.id] if gate.threshold}
        if not names:
            return False
        job.turn = 0
        self.park(job, names[0])
        return True

    def succeeds(self, job: ModelJob, shut: set[str]) -> None:
        """Takes in which circuits are closed by an attempt that went well: those that are probed."""
        if job.inside:
            shut -= {gate.name for gate in GATES[job.id]} & self.probed()

    def probed(self) -> set[str]:
        return {gate.name for gate in self.store.gates(Q, closed=False) if not gate.until_ms}

    def learn(self, claimed: Sequence[Claim] = (), back: Collection[str] = ()) -> None:
        """Who was called in the last step. `claimed`: by the same step. `back`: given back by it, perhaps after the
        call."""
        model = self.model
        if not any(job.waits for job in model.jobs.values()):
            return
        now_ms = self.store.now_ms()
        order = [claim.id for claim in claimed] + [job.id for job in pages(self.store, State.PENDING)]
        came = [id for id in order if model.jobs[id].state == "delayed" and model.jobs[id].waits]
        assert [id for id in order if id not in came] == model.pending_order()
        for id in came:
            job = model.jobs[id]
            model.delayed.remove(id)
            model.ready(job)
            model.totals["promoted"] += 1
            # By the clock it still has its place in the line.
            job.unsure = job.unsure or job.fire_ms <= now_ms
        for job in [model.jobs[id] for id in came if not model.jobs[id].unsure]:
            ahead = {other for other in order[: order.index(job.id)] if model.jobs[other].priority == job.priority}
            assert ahead <= {*came, *back}, "whoever is called stands at the head"
            assert all(other.id in came or other.turn > job.turn for other in self.line(job.waits)), "not the first"
            job.waits, job.called = "", job.waits
        model.pending = order
        for found in pages(self.store, State.DELAYED):
            model.jobs[found.id].fire_ms = found.since_ms

    # -- what must hold ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Each gate counts those inside, and there are no more than its limit."""
        busy = {gate.name: gate.busy for gate in self.store.gates(Q) if gate.busy}
        inside = {gate.name: len(self.inside(gate)) for gate in (PLACE, RATE, CIRCUIT)}
        assert busy == {name: count for name, count in inside.items() if count}
        assert len(self.inside(PLACE)) <= PLACE.limit

    def check_lines(self) -> None:
        """After a sweep: who waits at a gate waits for something, be it for one who was called by it."""
        shut = self.shut()
        for gate in (PLACE, RATE, CIRCUIT):
            if self.line(gate.name) and gate.name not in shut and not self.is_full(gate):
                jobs = self.model.jobs.values()
                assert any(job.called == gate.name or self.may_wait(job, gate) for job in jobs), "nobody was called"
