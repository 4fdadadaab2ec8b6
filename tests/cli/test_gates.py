"""`batchq gates`, `trip` and `mend`, and what `status` says of circuits."""

from __future__ import annotations

from batchq.config import Settings
from batchq.gates import Admission, Gate
from batchq.job import NewJob, pack_row
from batchq.stores import open_store
from tests.cli.conftest import Run


def test_circuit_by_hand(run: Run, url: str) -> None:
    """Opened, seen in status and in the list, and closed; its jobs come back."""
    store = open_store(url, Settings())
    store.enqueue("mail", [NewJob("a", pack_row("send"))])
    store.register("mail", "w1", 60_000)
    assert "nothing is going on" in run("gates").err
    assert run("trip", "mail", "send:host", "--for", "10m").out == "mail  send:host  open\n"
    [claim] = store.claim("mail", "w1", 1, 0).claims
    store.admit("mail", "w1", [Admission(claim, (Gate("send:host", limit=4, threshold=5, reset_ms=1000),))])
    [told] = run("gates", "--json").lines
    assert (told["queue"], told["name"], told["phase"], told["waiting"]) == ("mail", "send:host", "open", 1)
    assert "open, " in run("gates", "-q", "mail").out
    status = run("status", "--json").json
    assert [circuit["name"] for circuit in status["queues"]["mail"]["circuits"]] == ["send:host"]
    assert "1 circuit open" in run("status").out
    assert run("mend", "mail", "send:host").out == "mail  send:host  closed\n"
    assert store.stats("mail").counts["pending"] == 1
    assert "circuits" not in run("status", "--json").json["queues"]["mail"]
