"""The morgue by what jobs died of, and the filters that commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from batchq.job import Retried, pack_error
from tests.process.rig import until

from .conftest import BATCHQ, Run, Scene, environment
from .terminal import Terminal

OnTerminal = Callable[..., Terminal]


@pytest.fixture
def on_terminal(here: Path, url: str) -> OnTerminal:
    """Starts `batchq ARGS...` on a terminal."""
    return lambda *args, **size: Terminal([*BATCHQ, *args], environment(BATCHQ_URL=url), here, **size)


@pytest.fixture
def morgue(scene: Scene) -> Scene:
    """Six that failed of three things, on two queues, and one that is still tried."""
    for number in range(3):
        scene.dead(f"t{number}", error=f"timed out after {number}.5 s at 0x7f{number}a")
    scene.dead("u", error="no such user")
    scene.dead("m", "mail", error="timed out after 9 s at 0x1")
    scene.dead("i", job="import", error="timed out after 7 s at 0x1")
    worker, claim = scene.active("again")
    error = pack_error("ValueError", "no such user", attempt=1, at_ms=scene.store.now_ms(), worker=worker)
    scene.store.retry("default", worker, [Retried(claim, 600_000, 5, error)])
    return scene


def test_the_dead_in_groups(run: Run, morgue: Scene) -> None:
    """Errors that differ in numbers only are one group; the greatest comes first."""
    groups = run("dead", "--json").ended(0).lines
    assert [(one["count"], one["job"], one["queue"]) for one in groups[:1]] == [(3, "deliver", "default")]
    assert sorted(one["count"] for one in groups) == [1, 1, 1, 3]
    assert groups[0]["kind"] == "ValueError"
    assert groups[0]["hosts"] == ["host"]
    table = run("dead").ended(0).out.splitlines()
    assert table[0].split()[:4] == ["COUNT", "HANDLER", "QUEUE", "ERROR"]
    assert table[1].split()[:3] == ["3", "deliver", "default"]
    assert table[1].split()[-1] == groups[0]["id"]


def test_a_group_is_moved_by_its_name(run: Run, morgue: Scene) -> None:
    """What `dead` names, `jobs`, `requeue`, `export` and `purge` choose."""
    group = run("dead", "--json").lines[0]["id"]
    assert {job["id"] for job in run("jobs", "--group", group, "--json").lines} == {"t0", "t1", "t2"}
    assert len(run("export", "--state", "dead", "--group", group).ended(0).lines) == 3
    assert run("requeue", "--group", group, "--json").ended(0).json == {"requeued": 3, "gone": 0}
    other = run("dead", "-q", "mail", "--json").lines[0]["id"]
    assert run("purge", "-s", "dead", "--group", other).ended(0).out == "purged 1\n"
    assert {job["id"] for job in run("jobs", "-s", "dead", "--json").lines} == {"u", "i"}


def test_the_dead_by_host_job_and_queue(run: Run, morgue: Scene) -> None:
    """Other ways to put them together; with those that are still tried."""
    assert [(one["count"], one["host"]) for one in run("dead", "--by", "host", "--json").lines] == [(6, "host")]
    assert [(one["count"], one["job"]) for one in run("dead", "--by", "job", "--json").lines] == [
        (5, "deliver"),
        (1, "import"),
    ]
    assert [(one["count"], one["queue"]) for one in run("dead", "--by", "queue", "--json").lines] == [
        (5, "default"),
        (1, "mail"),
    ]
    tried = run("dead", "--retrying", "--error", "USER", "--json").lines
    assert [(one["count"], one["dead"]) for one in tried] == [(2, 1)]


def test_no_dead(run: Run, scene: Scene) -> None:
    """An empty morgue is an answer."""
    scene.pending("p")
    assert run("dead").ended(0, "no dead job in all queues").out == ""


@pytest.mark.parametrize(
    ("args", "ids"),
    [
        (("--error", "TIMED OUT"), {"t0", "t1", "t2", "m", "i"}),
        (("--error", "valueerror: no such"), {"u", "again"}),
        (("--error", "boom"), set()),
        (("--job", "import", "--error", "timed"), {"i"}),
        (("--host", "host", "-q", "mail"), {"m"}),
        (("--host", "elsewhere"), set()),
        (("--since", "1h", "-s", "dead"), {"t0", "t1", "t2", "u", "m", "i"}),
        (("--older-than", "1h"), set()),
        (("--due", "1h"), {"again"}),
        (("--due", "1m"), set()),
        (("--group", "00000000"), set()),
    ],
)
def test_filters(run: Run, morgue: Scene, args: tuple[str, ...], ids: set[str]) -> None:
    """By error, host, age and fire-time."""
    assert {job["id"] for job in run("jobs", *args, "--json").ended(0).lines} == ids


def test_moves_by_filter(run: Run, morgue: Scene) -> None:
    """requeue and cancel move all that is chosen, and nothing else; the sum is printed."""
    assert run("requeue", "--error", "no such user").ended(0).out == "requeued 1\n"
    assert run("cancel", "--state", "pending", "--job", "deliver").ended(0).out == "cancelled 1\n"
    assert run("cancel", "--error", "user", "--json").ended(0).json == {"cancelled": 1, "marked": 0, "gone": 0}
    morgue.active("a", "mail")
    assert run("cancel", "-q", "mail").ended(0).out == "cancelled 0, marked 1\n"
    assert run("requeue", "-q", "mail").ended(0).out == "requeued 1\n"


@pytest.mark.parametrize("verb", ["requeue", "cancel"])
def test_all_is_never_meant_by_accident(run: Run, morgue: Scene, verb: str) -> None:
    """Neither ids nor a filter, or both, are wrong usage."""
    for args in ((), ("t0", "--all"), ("t0", "--error", "x")):
        run(verb, *args).refused(2, "--all")


def test_a_person_is_asked(on_terminal: OnTerminal, morgue: Scene) -> None:
    """On a terminal more than one job is moved after a yes only; the question says how many."""
    with on_terminal("requeue", "--error", "timed out", columns=200) as asked:
        asked.until("Requeue 5 dead jobs with error 'timed out' in all queues? [y/N]")
        asked.press("n\n")
        assert asked.wait() == 130
    with on_terminal("purge", "-s", "dead", "-q", "default", columns=200) as asked:
        asked.until("Remove 5 dead jobs in queue default? [y/N]")
        asked.press("y\n")
        assert asked.wait() == 0
        assert "purged 5" in asked.text
    assert morgue.store.stats("default").counts["dead"] == 0
    assert morgue.store.stats("mail").counts["dead"] == 1


@pytest.mark.parametrize("args", [("requeue", "u"), ("requeue", "--error", "user"), ("requeue", "--all", "--yes")])
def test_nobody_is_asked_for_one_job_nor_with_yes(
    on_terminal: OnTerminal, morgue: Scene, args: tuple[str, ...]
) -> None:
    """One job by id or filter, and --yes: it is done."""
    with on_terminal(*args) as asked:
        assert asked.wait() == 0
        assert "[y/N]" not in asked.text
        assert "requeued" in asked.text


def test_show_tells_the_history(run: Run, scene: Scene) -> None:
    """A line an attempt that failed: when, for how long, where, what was next; the newest error in full."""
    worker, claim = scene.active("j")
    for attempt in range(1, 8):
        at = scene.store.now_ms()
        error = pack_error(
            "ValueError", f"no {attempt}", attempt=attempt, at_ms=at, started_ms=at - 1500, delay_ms=2500, worker=worker
        )
        last = attempt == 7
        scene.store.retry("default", worker, [Retried(claim, 0, 7 if last else 99, error)])
        if not last:
            # Due in the next millisecond.
            [claim] = until(lambda: scene.store.claim("default", worker, 1, 0).claims, "it is due")
    history = run("show", "j").ended(0).out.partition("ATTEMPT")[2].splitlines()[1:6]
    assert [line.split()[0] for line in history] == ["3", "4", "5", "6", "7"]
    assert all("1.5s" in line and " host " in line for line in history)
    assert ["2.5s later" in line for line in history] == [True, True, True, True, False]
