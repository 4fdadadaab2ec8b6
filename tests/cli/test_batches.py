"""`batchq batches`, `batchq batch` and --batch: batches from the command line."""

from __future__ import annotations

import pytest

from batchq.job import Buried, Completed, NewJob, pack_error, pack_row
from batchq.lifecycle import Word
from batchq.store import Store
from batchq.tally import NewBatch
from tests.cli.conftest import Run, Scene


def add(store: Store, batch: str, *ids: str, queue: str = "default") -> None:
    store.begin(queue, NewBatch(batch, f"name of {batch}"))
    store.enqueue(queue, [NewJob(job, pack_row("deliver"), given=True, batch=batch) for job in ids])


def end(store: Store, *, dead: int, queue: str = "default") -> None:
    """All that is pending ends, so many of it dead."""
    store.register(queue, "w", 60_000)
    claims = store.claim(queue, "w", 100, 0).claims
    error = pack_error("ValueError", "no", attempt=1, at_ms=1)
    outcomes = [Buried(one, "buried", error) if n < dead else Completed(one) for n, one in enumerate(claims)]
    assert set(store.exchange(queue, "w", outcomes, 0, 0).words) == {Word.OK}


@pytest.fixture
def store(scene: Scene) -> Store:
    return scene.store


def test_batches_are_listed(run: Run, store: Store) -> None:
    """A table for people, an object a line for programs; a queue's on request."""
    assert "no batch" in run("batches").ended(0).err
    add(store, "b1", "a", "b")
    add(store, "b2", "c", queue="other")
    table = run("batches").ended(0).out.splitlines()
    assert [line.split()[0] for line in table] == ["ID", "b1", "b2"]
    assert "name of b1" in table[1]
    [one] = run("batches", "-q", "other", "--json").ended(0).lines
    assert (one["id"], one["queue"], one["total"], one["pending"], one["closed"]) == ("b2", "other", 1, 1, False)
    assert len(run("batches", "-n", "1").ended(0).out.splitlines()) == 2


def test_one_batch_and_its_jobs(run: Run, store: Store) -> None:
    """The numbers as fields; its jobs by the same id."""
    add(store, "b1", "a", "b", "c")
    store.enqueue("default", [NewJob("alone", pack_row("deliver"), given=True)])
    out = run("batch", "b1").ended(0).out
    assert "total      3" in out
    assert "open, began" in out
    assert run("batch", "b1", "--json").ended(0).json["pending"] == 3
    assert [job["id"] for job in run("jobs", "--batch", "b1", "--json").ended(0).lines] == ["a", "b", "c"]
    run("cancel", "--batch", "b1", "--yes").ended(0)
    assert run("batch", "b1", "--json").json["cancelled"] == 3
    assert [job["id"] for job in run("jobs", "--json").ended(0).lines] == ["alone"]


def test_watching_until_it_is_finished(run: Run, store: Store) -> None:
    """Exit 0 where all succeeded, 1 where not; --close stands in for a producer that is gone."""
    add(store, "good", "a")
    end(store, dead=0)
    standing = run("batch", "good", "--json").ended(0)
    assert standing.json["finished"] is False
    assert "if its producer is gone, --close ends it" in standing.err
    done = run("batch", "good", "--close", "--watch").ended(0)
    assert done.err == ""
    assert done.out.startswith("1 of 1: 1 completed, 0 dead, 0 cancelled; finished")
    add(store, "bad", "b", "c")
    end(store, dead=1)
    store.conclude("default", "bad")
    [last] = run("batch", "bad", "--watch", "--json").ended(1).lines
    assert (last["dead"], last["completed"], last["finished"]) == (1, 1, True)


def test_a_batch_that_is_not_there(run: Run, store: Store) -> None:
    """One line, exit 1."""
    run("batch", "nobody").refused(1, "batch nobody: not in any queue")
