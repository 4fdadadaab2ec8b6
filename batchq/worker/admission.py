"""Claimed jobs past their gates, for all who run jobs: workers of either kind, and tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from batchq.gates import Admission
from batchq.job import Claim, Outcome
from batchq.lifecycle import Word
from batchq.store import Store
from batchq.worker.runner import Prepared, Runner


class Admitted(NamedTuple):
    """What became of some claims: those that may run, in their order, and those that have ended already. The others
    wait in the store."""

    claims: Sequence[Claim]
    ended: Sequence[Outcome] = ()


def admit(store: Store, runner: Runner, queue: str, worker: str, claims: Sequence[Claim]) -> Admitted:
    """Asks the store for those that have gates to pass, in one call. Raises StoreUnavailable."""
    if not runner.is_limited or not claims:
        return Admitted(claims)
    asked: dict[int, Admission] = {}
    ended: dict[int, Outcome] = {}
    for place, claim in enumerate(claims):
        ready = runner.prepare(claim)
        gates = runner.gates(ready) if isinstance(ready, Prepared) else ready
        if not isinstance(gates, list):
            ended[place] = gates
        elif gates:
            asked[place] = Admission(claim, tuple(gates))
    if not asked:
        return Admitted([claim for place, claim in enumerate(claims) if place not in ended], list(ended.values()))
    words = dict(zip(asked, store.admit(queue, worker, list(asked.values())), strict=True))
    may = []
    for place, claim in enumerate(claims):
        if words.get(place) is Word.OK:
            may.append(claim._replace(gated=True))
        elif place not in words and place not in ended:
            may.append(claim)
    return Admitted(may, list(ended.values()))
