"""requeue, cancel, purge, pause, resume: each says what it did, and which it could not do."""

from __future__ import annotations

import pytest

from batchq.lifecycle import State, Word

from .conftest import Run, Scene


@pytest.fixture
def url(any_url: str) -> str:
    """What people do by hand is tested on each store."""
    return any_url


def states(scene: Scene, queue: str = "default") -> dict[str, int]:
    return {state: count for state, count in scene.store.stats(queue).counts.items() if count}


def test_requeue_by_id(run: Run, scene: Scene) -> None:
    """Dead and kept completed jobs go back; each is named."""
    scene.dead("d")
    scene.completed("c")
    done = run("requeue", "d", "c").ended(0)
    assert [line.split() for line in done.out.splitlines()] == [["d", "requeued"], ["c", "requeued"]]
    assert states(scene) == {"pending": 2}


def test_requeue_does_what_it_can(run: Run, scene: Scene) -> None:
    """One that can't be requeued does not stop the others; exit 1, and which."""
    scene.dead("d")
    scene.pending("p")
    done = run("requeue", "nope", "p", "d", "\x1b[31m").ended(1, "job nope: no such job", "job p: not requeued")
    assert done.out.split() == ["d", "requeued"]
    assert "\x1b" not in done.err
    assert states(scene) == {"pending": 2}


def test_requeue_all(run: Run, scene: Scene) -> None:
    """All dead jobs, or those of one queue."""
    for number in range(7):
        scene.dead(f"d{number}")
    scene.dead("m", "mail")
    assert run("requeue", "--all", "-q", "mail", "--yes").ended(0).out == "requeued 1\n"
    assert states(scene) == {"dead": 7}
    assert run("requeue", "--all", "--json").ended(0).json == {"requeued": 7, "gone": 0}
    assert (states(scene), states(scene, "mail")) == ({"pending": 7}, {"pending": 1})
    assert run("requeue", "--all").ended(0).out == "requeued 0\n"


@pytest.mark.parametrize("args", [(), ("d", "--all")])
def test_requeue_wants_ids_or_all(run: Run, scene: Scene, args: tuple[str, ...]) -> None:
    """Neither and both are wrong usage: all is never meant by accident."""
    scene.dead("d")
    assert run("requeue", *args).refused(2, "--all").err.count("--help") == 1
    assert states(scene) == {"dead": 1}


def test_cancel(run: Run, scene: Scene) -> None:
    """Waiting jobs end, a running one is marked, what has ended or is unknown is said."""
    scene.dead("d")
    worker, claim = scene.active("a")
    scene.pending("p")
    scene.delayed("z")
    done = run("cancel", "p", "z", "a", "d", "nope").ended(1, "job d: not cancelled", "job nope: no such job")
    assert [line.split()[:2] for line in done.out.splitlines()] == [
        ["p", "cancelled"],
        ["z", "cancelled"],
        ["a", "marked:"],
    ]
    assert states(scene) == {"active": 1, "dead": 1}
    assert scene.store.renew("default", [worker], 60_000).marks == ((worker, "a", claim.token),)


def test_cancel_for_programs(run: Run, scene: Scene) -> None:
    """--json answers a line an id, with the store's word; an id given twice is one."""
    scene.pending("p")
    done = run("cancel", "p", "p", "nope", "--json").ended(1)
    assert done.lines == [
        {"id": "p", "word": "cancelled", "done": True},
        {"id": "nope", "word": "unknown", "done": False},
    ]
    run("cancel").refused(2, "ID")


def test_many_ids_at_once(run: Run, scene: Scene) -> None:
    """More ids than one step carries."""
    ids = [scene.pending(f"p{number}") for number in range(1100)]
    assert len(run("cancel", *ids).ended(0).out.splitlines()) == 1100
    assert states(scene) == {}


@pytest.mark.parametrize("state", ["dead", "completed", "pending", "delayed"])
def test_purge(run: Run, scene: Scene, state: str) -> None:
    """The jobs of that state go, the others stay."""
    scene.dead("d")
    scene.completed("c")
    scene.active("a")
    scene.pending("p")
    scene.delayed("z")
    before = states(scene)
    assert run("purge", "--state", state, "--yes").ended(0).out == "purged 1\n"
    assert states(scene) == {name: count for name, count in before.items() if name != state}
    assert run("purge", "--state", state, "--json").ended(0).json == {"purged": 0}


def test_purge_filters(run: Run, scene: Scene) -> None:
    """By age, handler and queue."""
    scene.dead("d1")
    scene.dead("d2", job="import")
    scene.dead("m", "mail")
    assert run("purge", "--state", "dead", "--older-than", "7d").ended(0).out == "purged 0\n"
    assert run("purge", "--state", "dead", "--job", "import").ended(0).out == "purged 1\n"
    assert run("purge", "--state", "dead", "-q", "mail").ended(0).out == "purged 1\n"
    assert run("purge", "--state", "dead", "-q", "nope").ended(0, "nothing was ever enqueued").out == "purged 0\n"
    assert states(scene) == {"dead": 1}
    assert run("purge", "--state", "dead", "--older-than", "0").ended(0).out == "purged 1\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "--state"),
        (("--state", "active"), "--state"),
        (("--state", "ded"), "--state"),
        (("--state", "dead", "--older-than", "-7d"), "--older-than"),
        (("--state", "dead", "--older-than", "nan"), "--older-than"),
        (("--state", "dead", "--older-than", "a week"), "--older-than"),
        (("--state", "dead", "--older-than", "99999999999999d"), "--older-than"),
        (("--state", "dead", "--older-than", ""), "--older-than"),
        (("--state", "dead", "-q", "a b"), "queue"),
        (("--state", "dead", "stray"), "stray"),
    ],
)
def test_purge_refuses(run: Run, scene: Scene, args: tuple[str, ...], said: str) -> None:
    """A filter that can't be read removes nothing."""
    scene.dead("d")
    run("purge", *args).refused(2, said)
    assert states(scene) == {"dead": 1}


def test_pause_and_resume(run: Run, scene: Scene) -> None:
    """A paused queue is not claimed from until it is resumed; status says so."""
    scene.pending("p")
    assert run("pause", "default").ended(0).out == "default  paused\n"
    assert run("status", "--json").json["queues"]["default"]["paused"] is True
    assert run("status").out.splitlines()[-1].endswith("paused")
    scene.store.register("default", "w", 60_000)
    assert scene.store.claim("default", "w", 1, 0).word is Word.PAUSED
    assert run("resume", "default").ended(0).out == "default  resumed\n"
    assert scene.store.claim("default", "w", 1, 0).word is Word.OK
    assert scene.store.get("default", "p").state is State.ACTIVE  # type: ignore[union-attr]


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_pause_of_a_queue_that_was_never_used(run: Run, scene: Scene, command: str) -> None:
    """It is done, before the first job comes; a slip is told."""
    scene.pending("p")
    run(command, "defualt").ended(0, "nothing was ever enqueued to queue defualt; known are: default")
    run(command, "a b").refused(2, "queue")
    run(command).refused(2, "QUEUE")
