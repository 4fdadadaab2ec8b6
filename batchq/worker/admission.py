"""Claims read, and past their gates, for all who run jobs: workers of either kind, and tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from batchq.clock import monotonic_ns
from batchq.gates import LATE_MS, Admission
from batchq.job import Claim, Outcome
from batchq.lifecycle import Word
from batchq.store import Store
from batchq.worker.runner import Prepared, Runner


class Read(NamedTuple):
    """Some claims: those that could run, in their order, and those that have ended already."""

    ready: list[Prepared]
    ended: list[Outcome]


def read(runner: Runner, claims: Sequence[Claim]) -> Read:
    """Each row is read once."""
    found = Read([], [])
    for claim in claims:
        one = runner.prepare(claim)
        if isinstance(one, Prepared):
            found.ready.append(one)
        else:
            found.ended.append(one)
    return found


def admit(store: Store, queue: str, worker: str, ready: Sequence[Prepared], *, rated: bool = True) -> list[Prepared]:
    """Those that may run now, in their order; the others wait in the store. One call, or none.

    Without `rated` those with a rate are not asked for, and keep their gates: whoever runs one job after the other asks
    when its turn comes, for a rate counts from there. Raises StoreUnavailable.
    """
    asked = {n: one for n, one in enumerate(ready) if one.has_to_ask and (rated or not one.rates)}
    if not asked:
        return list(ready)
    began_ns = monotonic_ns()
    words = store.admit(queue, worker, [Admission(one.claim, one.gates) for one in asked.values()])
    may = dict(enumerate(ready))
    for (n, one), word in zip(asked.items(), words, strict=True):
        if word is not Word.OK:
            del may[n]
        elif one.gates:
            since_ns = began_ns if one.rates else 0
            may[n] = one._replace(claim=one.claim._replace(gated=True), gates=(), admitted_ns=since_ns)
    return list(may.values())


def at_same_rate(ready: Prepared, names: Collection[str]) -> bool:
    return any(gate.name in names for gate in ready.rates)


def portion(rated: deque[Prepared], full: Collection[str]) -> list[Prepared]:
    """Takes as many as are to be asked for in one call, in their order: what is admitted long before it begins is late,
    and its time is counted all the same. So it is what the rate lets through in a moment; and all those whose rate is
    `full`, for they will wait."""
    some: list[Prepared] = []
    most, fresh = 1, 0
    while rated:
        if not at_same_rate(rated[0], full):
            moment = min(gate.rate * LATE_MS // 2 // gate.period_ms for gate in rated[0].rates)
            most = min(most, moment) if fresh else moment
            if fresh >= max(1, most):
                break
            fresh += 1
        some.append(rated.popleft())
    return some
