"""trip: a gate is opened by hand."""

from __future__ import annotations

from batchq.gates import Gate
from batchq.lifecycle import State
from batchq.store import Store
from tests.contract.conftest import Ground
from tests.contract.helpers import Q, enlist, put, read
from tests.contract.test_admit import gate, ids, passing

HOST = Gate("host")


def test_nobody_passes_until_its_time_is_over(store: Store, clock: Ground) -> None:
    """Then one as a probe. No attempt is spent meanwhile."""
    enlist(store)
    put(store, "a", "b")
    store.trip(Q, "host", 60_000)
    found = gate(store, "host")
    assert found is not None
    assert (found.phase, 58_000 < found.until_ms - store.now_ms() <= 60_000) == ("open", True)
    assert passing(store, HOST) == []
    assert {read(store, id).state for id in "ab"} == {State.DELAYED}
    clock.advance(62_000)
    store.promote(Q)
    assert ids(passing(store, HOST)) == ["a"]
    assert read(store, "b").attempt == 0


def test_open_ones_can_be_asked_for_alone(store: Store) -> None:
    """What is looked at again and again reads nothing of the thousands that are closed."""
    enlist(store)
    put(store, "a")
    assert ids(passing(store, Gate("busy", limit=1))) == ["a"]
    store.trip(Q, "host", 60_000)
    assert [one.name for one in store.gates(Q)] == ["busy", "host"]
    assert [one.name for one in store.gates(Q, closed=False)] == ["host"]
