"""mend: a gate is closed by hand."""

from __future__ import annotations

from batchq.gates import Gate
from batchq.store import Store
from tests.contract.helpers import Q, enlist, put
from tests.contract.test_admit import gate, ids, passing

HOST = Gate("host")


def test_those_that_wait_are_called_in_order(store: Store) -> None:
    """At once, and nothing is left of the gate."""
    enlist(store)
    put(store, *"abc")
    store.trip(Q, "host", 60_000)
    assert passing(store, HOST) == []
    store.mend(Q, "host")
    assert ids(passing(store, HOST)) == ["a", "b", "c"]
    found = gate(store, "host")
    assert found is not None
    assert (found.phase, found.busy, found.waiting) == ("closed", 3, 0)


def test_unknown_gate_is_no_fault(store: Store) -> None:
    """It is closed already."""
    store.mend(Q, "nowhere")
    assert store.gates(Q) == []
