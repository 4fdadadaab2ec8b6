"""The demo's parts: the plan, the receiver, the place, and that the summary sees what does not add up."""

from __future__ import annotations

import os
import sqlite3
import stat
import tomllib
import urllib.error
import urllib.request
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from batchq.demo import plan as planning
from batchq.demo import progress, summary, work
from batchq.demo.place import Place
from batchq.demo.pool import Ended
from batchq.demo.receiver import Receiver, Seen
from batchq.errors import ConfigError
from batchq.lifecycle import COUNTED, TOTALS

# -- the plan ---------------------------------------------------------------------------------------------------------


def test_the_same_seed_draws_the_same_plan() -> None:
    """--seed repeats an input; another seed is another input."""
    assert planning.draw(5) == planning.draw(5)
    assert planning.draw(5).events != planning.draw(6).events


def test_the_csv_holds_the_planned_rows(tmp_path: Path) -> None:
    """What is enqueued comes from the file, and the file from the plan."""
    plan = planning.draw(3)
    planning.prepare(plan, tmp_path)
    assert tuple(planning.read_rows(tmp_path)) == plan.rows


def test_every_kind_has_a_handler_on_its_queue() -> None:
    """The summary reads kinds as queues."""
    assert {kind.name for kind in planning.draw(1).kinds} <= set(work.app.registry.queues())


# -- the receiver -----------------------------------------------------------------------------------------------------


def _post(url: str, event: str) -> int:
    request = urllib.request.Request(url, b"{}", {"Event-Id": event})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_receiver_refuses_about_a_third_at_first_and_all_of_them_are_accepted_in_the_end() -> None:
    """An event is refused once or twice or never, and the server's own count says so."""
    with Receiver(seed=1) as receiver:
        events = [f"event-{n}" for n in range(90)]
        answers = {event: [_post(receiver.url, event) for _ in range(3)] for event in events}
        seen = receiver.seen()
    first = [codes[0] for codes in answers.values()]
    assert set(first) == {200, 503}
    assert 15 <= first.count(503) <= 45
    assert all(codes[-1] == 200 for codes in answers.values())
    assert seen.requests == 270
    assert seen.refused == sum(codes.count(503) for codes in answers.values())
    assert seen.accepted == Counter({event: codes.count(200) for event, codes in answers.items()})


# -- the place --------------------------------------------------------------------------------------------------------


def test_place_is_a_folder_that_goes() -> None:
    """Without --keep nothing is left."""
    with Place(None) as place:
        assert place.folder.is_dir()
        assert place.url == f"spool:{place.folder / 'spool'}"
        assert place.kept is None
    assert not place.folder.exists()


def test_place_configures_its_folder_for_its_owner_only() -> None:
    """Commands in the folder mean this store; a url may hold a password."""
    with Place('redis://:se"cret@127.0.0.1:1/0') as place:
        path = place.folder / "pyproject.toml"
        settings = tomllib.loads(path.read_text())["tool"]["batchq"]
        assert settings == {"app": "batchq.demo.work:app", "url": place.url, "prefix": place.prefix}
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert "cret" not in place.shown


def test_two_places_in_one_redis_have_different_prefixes() -> None:
    """What a demo removes is its own."""
    with Place("redis://127.0.0.1:1/0") as one, Place("redis://127.0.0.1:1/0") as other:
        assert one.prefix != other.prefix


@pytest.mark.parametrize("url", ["memory:", "postgres://x", "spool:"])
def test_place_refuses_what_workers_can_not_reach(url: str) -> None:
    """A memory store is seen by one process only; another scheme names no store."""
    with pytest.raises(ConfigError, match="url: "):
        Place(url)


def test_place_refuses_a_spool_that_exists(tmp_path: Path) -> None:
    """The demo removes its spool: it must not be somebody's."""
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(ConfigError, match="exists"):
        Place(f"spool:{tmp_path}")
    assert (tmp_path / "kept").read_text() == "mine"


def test_place_removes_the_spool_that_was_named(tmp_path: Path) -> None:
    """spool:PATH is thrown away as well."""
    with Place(f"spool:{tmp_path / 'new'}") as place:
        (tmp_path / "new").mkdir()
        assert place.url == f"spool:{tmp_path / 'new'}"
    assert not (tmp_path / "new").exists()


# -- the summary ------------------------------------------------------------------------------------------------------


def _line(kind: planning.Kind, **totals: int) -> summary.Line:
    done = {"enqueued": kind.jobs, "completed": kind.jobs - totals.get("dead", 0)}
    return summary.Line(kind, dict.fromkeys(COUNTED, 0), dict.fromkeys(TOTALS, 0) | done | totals)


def _run_as_planned(plan: planning.Plan, folder: Path) -> tuple[tuple[summary.Line, ...], Seen]:
    """Store and outside counters of a run in which every job of the first kinds went well at once."""
    planning.prepare(plan, folder)
    with closing(work.open_table(folder / work.TABLE)) as table:
        table.executemany("INSERT INTO rows VALUES (?, ?, ?)", plan.rows)
    lines = tuple(_line(kind) for kind in plan.kinds)
    with open(folder / work.ATTEMPTS, "w") as log:
        for line in lines:
            log.writelines(f"{line.kind.name} id 1\n" for _ in range(line.kind.jobs))
    return lines, Seen(len(plan.events), 0, Counter(plan.events))


def _faults(checks: list[summary.Check]) -> list[str]:
    return [str(check) for check in checks if not check.ok]


def test_outside_counts_that_agree_are_no_fault(tmp_path: Path) -> None:
    """All checks hold where everybody counted the same."""
    plan = planning.draw(2)
    lines, seen = _run_as_planned(plan, tmp_path)
    assert _faults(summary.outside_checks(plan, lines, tmp_path, seen)) == []
    assert _faults(summary.own_checks(plan, lines, [])) == []


def test_a_row_that_is_missing_in_the_table_is_a_fault(tmp_path: Path) -> None:
    """The table is counted by itself, not through the store."""
    plan = planning.draw(2)
    lines, seen = _run_as_planned(plan, tmp_path)
    with closing(sqlite3.connect(tmp_path / work.TABLE)) as table, table:
        table.execute("DELETE FROM rows WHERE number = 17")
    faults = _faults(summary.outside_checks(plan, lines, tmp_path, seen))
    assert faults[0] == "import: 4,999 rows in SQLite is not 5,000 jobs completed"
    assert len(faults) == 2


def test_a_webhook_that_the_server_never_accepted_is_a_fault(tmp_path: Path) -> None:
    """An event that the store calls completed must have been accepted."""
    plan = planning.draw(2)
    lines, seen = _run_as_planned(plan, tmp_path)
    del seen.accepted[plan.events[0]]
    [fault] = _faults(summary.outside_checks(plan, lines, tmp_path, seen))
    assert fault == "webhooks: 299 events accepted by the server is not 300 done"


def test_an_attempt_that_was_not_settled_is_a_fault(tmp_path: Path) -> None:
    """Each attempt that began has exactly one end in the store."""
    plan = planning.draw(2)
    lines, seen = _run_as_planned(plan, tmp_path)
    with open(tmp_path / work.ATTEMPTS, "a") as log:
        log.write("cpu id 2\n")
    [fault] = _faults(summary.outside_checks(plan, lines, tmp_path, seen))
    assert fault == "cpu: 41 attempts signed is not 40 settled"


def test_a_job_unaccounted_for_is_a_fault() -> None:
    """The law of the totals, and two errors that would cancel each other out in a sum."""
    plan = planning.draw(2)
    kinds = plan.kinds
    lines = (
        _line(kinds[0], completed=kinds[0].jobs - 1),
        _line(kinds[1], completed=kinds[1].jobs + 1),
        *map(_line, kinds[2:]),
    )
    [fault] = _faults(summary.own_checks(plan, lines, []))
    assert fault == "law of the totals: 2 jobs unaccounted for is not 0 expected"


@pytest.mark.parametrize(
    ("ended", "fault"),
    [
        (Ended(-9, 1.0, ""), "the workers' master ended with exit code -9"),
        (Ended(None, 180.0, ""), "the workers were not done after 180 s"),
    ],
)
def test_a_pool_that_did_not_end_well_is_a_fault(ended: Ended, fault: str) -> None:
    """Numbers alone are not enough."""
    found = summary.Summary(1, (), (), 0, {}, (), ended, 0.1)
    assert not found.ok
    assert found.faults == [fault]


# -- progress ---------------------------------------------------------------------------------------------------------


def test_lines_show_the_kinds_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal: a line on stderr, nothing on stdout."""
    queue = {"totals": {"enqueued": 9, "completed": 3, "dead": 1}}
    progress.Lines(["import", "cpu", "gone"]).look({"queues": {"cpu": queue, "import": queue}})
    out, err = capsys.readouterr()
    assert err.split("s  ", 1)[1] == "import 4/9  cpu 4/9\n"
    assert out == ""


def test_lines_end_with_what_was_seen_last(capsys: pytest.CaptureFixture[str]) -> None:
    """The end comes within a second of the line before; it is told once."""
    lines = progress.Lines(["cpu"])
    for done in (1, 5, 9):
        lines.look({"queues": {"cpu": {"totals": {"enqueued": 9, "completed": done, "dead": 0}}}})
    lines.close()
    lines.close()
    told = [line.split("s  ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert told == ["cpu 1/9", "cpu 9/9"]
