"""Exactly once over interruptions: kills at any moment, Ctrl-C, changed files, changed options, second importers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.importing.build import Placed
from batchq.importing.rows import Bad, Row
from batchq.importing.run import Counts, Stopped, run
from batchq.job import NewJob, new_id, pack_row
from tests.process.conftest import STORES, url_of
from tests.process.rig import Rig, opened, until
from tests.servers import Servers

from .conftest import Place

APP = """
_rows = os.open("rows", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@app.job(queue="rows")
def load(n: str, text: str):
    os.write(_rows, f"{n}\\n".encode())
"""


def start(rig: Rig, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "batchq", "import", *args],
        cwd=rig.folder,
        env=rig.env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def write_rows(path: Path, rows: range) -> None:
    with open(path, "w", newline="") as file:
        file.write("n,text\n")
        file.writelines(f'{n},"some, text"\n' for n in rows)


def enqueued(rig: Rig) -> int:
    return rig.store.stats("rows").totals["enqueued"]


def kill_and_go_on(rig: Rig, count: int, kills: int, seed: int) -> None:
    """Imports files of so many rows while a pool works them off, until so many imports were killed at a random moment.
    Demands that each row ran once."""
    rng = random.Random(seed)
    rig.app(APP)
    rig.start("-q", "rows", n=2, queue="rows")
    hit = files = 0
    while hit < kills:
        # An import that is quicker than its kill is over: there is another file then.
        assert files < 3 * kills, f"only {hit} were hit"
        name = f"rows{files}.csv"
        write_rows(rig.folder / name, range(files * count, (files + 1) * count))
        hit += import_with_kills(rig, name, count, kills - hit, rng)
        files += 1
    rows = files * count
    rig.until(lambda: rig.store.stats("rows").totals["completed"] >= rows, "every row ran", 120)
    ran = Counter((rig.folder / "rows").read_text().split())
    assert len(ran) == rows
    assert set(ran.values()) == {1}
    assert enqueued(rig) == rows


def import_with_kills(rig: Rig, name: str, count: int, kills: int, rng: random.Random) -> int:
    """Imports one file, with so many kills where it is not in before. Answers how many hit."""
    command = (name, "--job", "load", "-q", "rows", "--json")
    hit, end = 0, enqueued(rig) + count
    while hit < kills and (left := end - enqueued(rig)):
        # Half of them while python starts, reads what is in already and sends the first chunk; half at a later chunk,
        # so that there is something left for the last.
        step = 2 * left // (kills - hit)
        target = end - left + rng.randrange(1, max(2, step)) if rng.random() < 0.5 else 0
        moment = time.monotonic() + rng.uniform(0.1, 0.5)
        process = start(rig, *command)
        while process.poll() is None:
            if enqueued(rig) >= target if target else time.monotonic() >= moment:
                process.kill()
        process.communicate(timeout=30)
        hit += process.returncode == -signal.SIGKILL
    process = start(rig, *command)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert summary["rows"] == count == summary["enqueued"] + summary["earlier"]
    assert enqueued(rig) == end
    return hit


@pytest.mark.parametrize("kind", STORES)
def test_kill_9_at_any_moment(kind: str, tmp_path: Path, prefix: str, servers: Servers) -> None:
    """Eight kills of one import while its first rows are worked off already: every row runs, none twice."""
    with opened(tmp_path, kind, url_of(kind, tmp_path, servers), prefix) as rig:
        kill_and_go_on(rig, 20_000, kills=8, seed=7)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", STORES)
def test_kill_9_again_and_again(kind: str, tmp_path: Path, prefix: str, servers: Servers) -> None:
    """The long run: fifty kills, 200,000 rows."""
    with opened(tmp_path, kind, url_of(kind, tmp_path, servers), prefix) as rig:
        kill_and_go_on(rig, 200_000, kills=50, seed=11)


def test_ctrl_c_says_how_to_go_on(place: Place) -> None:
    """Exit 130 with true sums; the same command then does the rest."""
    for number in (signal.SIGINT, signal.SIGTERM)[: 2 if place.url.startswith("spool:") else 1]:
        queue = f"q{number}"
        name = place.write(f"{queue}.csv", "n\n" + "".join(f"{n}\n" for n in range(20_000)))
        args = ("import", name, "--job", "echo", "-q", queue, "--json")
        process = subprocess.Popen(
            place.command(*args),
            cwd=place.folder,
            env=place.env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        until(lambda: place.store.stats(queue).totals["enqueued"], "the first chunk is in")  # noqa: B023
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 130, err
        assert b"the same command goes on where it ended" in err
        assert b"Traceback" not in err
        first = json.loads(out.splitlines()[-1])
        assert first["end"] == "interrupted"
        # One chunk may be in whose answer was not heard.
        assert 0 <= place.store.stats(queue).totals["enqueued"] - first["enqueued"] <= 480
        rest = place.imported(*args[1:-1])
        assert rest["earlier"] + rest["enqueued"] == 20_000
        assert rest["earlier"] - first["enqueued"] in (0, 480)
        assert [int(job.kwargs["n"]) for job in place.jobs(queue)] == list(range(20_000))


class Unheard:
    """An observer of an import that nobody watches."""

    def rejected(self, bad: Bad) -> None: ...
    def sending(self, queues: list[str]) -> None: ...
    def moved(self, counts: Counts) -> None: ...
    def waiting(self, error: Exception) -> None: ...
    def full(self, queue: str, most: int) -> None: ...


@pytest.mark.parametrize("end", [KeyboardInterrupt(), Stopped()])
def test_chunk_that_is_on_its_way_is_in_the_sums(place: Place, end: BaseException) -> None:
    """The next one is made meanwhile: whatever ends that, the sums are those of the store."""

    def rows() -> Iterator[Row | Bad]:
        for n in range(1, 1200):
            # In the third chunk.
            if n == 1000 and isinstance(end, Stopped):
                yield Bad(n, "no row", [])
            elif n == 1000:
                raise end
            yield Row(n, [n], [])

    def build(value: list[int]) -> Placed:
        return "default", NewJob(new_id(), pack_row("load", value))

    counts = Counts()
    with pytest.raises(type(end)):
        run(
            rows(),
            build,
            place.store,
            "a-lane",
            counts,
            Unheard(),
            strict=True,
            patience_s=1,
            max_pending=lambda queue: 0,
        )
    assert counts.enqueued == place.store.stats("default").totals["enqueued"] == 960


def interrupted(place: Place, name: str = "rows.csv", *more: str) -> None:
    """Leaves the import of a file of 1,000 rows behind its first chunk: the header's column may be an int once."""
    place.write(name, "n\n" + "".join(f"{n}\n" for n in range(500)) + "x\n" + "".join(f"{n}\n" for n in range(500)))
    done = place.imported(name, "--job", "echo", "--strict", "--types", "n:int", *more)
    assert (done["end"], done["enqueued"], done["code"]) == ("strict", 480, 1)


def test_a_changed_file_is_refused(place: Place) -> None:
    """After an interruption nobody could tell its rows apart; --restart is the way to have them all again."""
    interrupted(place)
    path = place.folder / "rows.csv"
    path.write_text(path.read_text().replace("x\n", "7\n"))
    args = ("rows.csv", "--job", "echo", "--types", "n:int")
    place.run("import", *args).refused(2, "interrupted", "the file has changed", "--restart")
    assert len(place.jobs()) == 480
    done = place.imported(*args, "--restart")
    assert (done["enqueued"], done["earlier"], done["code"]) == (1001, 0, 0)
    assert place.imported(*args)["earlier"] == 1001
    assert place.imported(*args, "--restart")["enqueued"] == 1001


def test_a_change_anywhere_in_a_file_is_seen(spool: Place) -> None:
    """Also in the middle of a large one, whose size and both ends are what they were."""
    header, rows = "n\n", [f"{n:015d}\n" for n in range(20_000)]
    path = spool.folder / "large.csv"

    def write(changed: str) -> None:
        path.write_text(header + "".join(rows[:10_000]) + changed + "".join(rows[10_000:]))

    write("x" * 15 + "\n")
    args = ("large.csv", "--job", "echo", "--types", "n:int", "--strict")
    assert spool.imported(*args)["end"] == "strict"
    write("7" * 15 + "\n")
    spool.run("import", *args).refused(2, "interrupted", "the file has changed", "--restart")
    assert spool.imported(*args, "--restart")["end"] == "done"
    write("8" * 15 + "\n")
    assert spool.imported(*args)["enqueued"] == 20_001


def test_changed_options_are_refused(spool: Place) -> None:
    """They would make other jobs of the same rows, and a lane of their own."""
    interrupted(spool)
    done = spool.run("import", "rows.csv", "--job", "echo", "--priority", "5", "--types", "n:int")
    done.refused(2, "priority", "--restart")
    # Another handler, or another queue under another name, is another import.
    assert spool.imported("rows.csv", "--job", "other")["enqueued"] == 1001


def test_a_second_run_adds_nothing_and_says_so(place: Place) -> None:
    """Also when the rows are worked off: the marks know."""
    name = place.write("rows.csv", "n\n" + "1\n" * 700)
    assert place.imported(name, "--job", "echo")["enqueued"] == 700
    ids = [job.id for job in place.jobs()]
    from batchq.lifecycle import State

    assert place.store.purge("default", State.PENDING, ids) == 700
    done = place.imported(name, "--job", "echo")
    assert (done["enqueued"], done["earlier"], done["code"]) == (0, 700, 0)
    assert "was imported before" in done["err"]
    assert place.jobs() == []


def test_new_data_under_an_old_name_is_new(spool: Place) -> None:
    """After an import that went well; one that rejected rows may have been mended in spool, so that is asked."""
    name = spool.write("daily.csv", "n\n1\n2\n")
    spool.imported(name, "--job", "echo")
    spool.write("daily.csv", "n\n3\n4,4\n")
    assert spool.imported(name, "--job", "echo")["enqueued"] == 1
    spool.write("daily.csv", "n\n3\n4\n")
    spool.run("import", name, "--job", "echo").refused(2, "rejected 1 rows", "--restart")
    assert [job.kwargs["n"] for job in spool.jobs()] == ["1", "2", "3"]


def test_a_name_lets_the_file_move(spool: Place) -> None:
    """--name instead of the path: what is in is known at the new spool."""
    interrupted(spool, "rows.csv", "--name", "orders")
    (spool.folder / "rows.csv").rename(spool.folder / "moved.csv")
    done = spool.imported("moved.csv", "--job", "echo", "--types", "n:int", "--name", "orders")
    assert (done["earlier"], done["enqueued"], done["rejected"]) == (480, 520, 1)


def test_two_importers_of_one_file(spool: Place) -> None:
    """The second is refused while the first is at it; a killed one holds nothing."""
    name = spool.write("rows.csv", "n\n" + "1\n" * 60_000)
    command = spool.command("import", name, "--job", "echo")
    first = subprocess.Popen(command, cwd=spool.folder, env=spool.env(), stdout=subprocess.DEVNULL)
    until(lambda: spool.store.queues(), "the first chunk is in")
    os.kill(first.pid, signal.SIGSTOP)
    spool.run("import", name, "--job", "echo").refused(2, "another process")
    first.kill()
    first.wait()
    done = spool.imported(name, "--job", "echo")
    assert done["rows"] == 60_000
    assert spool.store.stats("default").totals["enqueued"] == 60_000


def test_marks_that_may_be_forgotten_are_not_trusted(spool: Place) -> None:
    """Longer ago than mark_ttl: refused, not guessed, whether it had come to its end or not."""
    interrupted(spool)
    _age(spool, 8 * 86_400_000)
    args = ("rows.csv", "--job", "echo", "--types", "n:int")
    spool.run("import", *args).refused(2, "mark_ttl", "--restart")
    done = spool.write("done.csv", "n\n1\n")
    spool.imported(done, "--job", "echo")
    _age(spool, 8 * 86_400_000)
    spool.run("import", done, "--job", "echo").refused(2, "mark_ttl", "--restart")


def _age(place: Place, ms: int) -> None:
    spool = place.url.removeprefix("spool:") if place.url.startswith("spool:") else str(place.folder / "fallback")
    for path in Path(f"{spool}.imports").glob("*.json"):
        state = json.loads(path.read_bytes())
        state["updated_ms"] -= ms
        path.write_text(json.dumps(state))


def test_a_place_that_can_not_be_written_is_said(spool: Place) -> None:
    """Before the first row: an import that could not go on is none."""
    name = spool.write("rows.csv", "n\n1\n")
    spool.write("file", "")
    spool.run("import", name, "--job", "echo", "--state-dir", "file/below").refused(2, "--state-dir", "Not a directory")
    assert spool.store.queues() == []


def test_a_store_that_is_away_is_waited_for(tmp_path: Path, prefix: str) -> None:
    """It comes back within --patience: nothing is lost; it does not: exit 4, and the same command goes on."""
    from tests.servers import Server, flavours

    server = Server(flavours()[0], "--appendonly", "yes", "--appendfsync", "always")
    try:
        _away(server, tmp_path, prefix)
    finally:
        server.stop()


def _away(server: object, folder: Path, prefix: str) -> None:
    from tests.servers import Server

    assert isinstance(server, Server)
    with opened(folder, "valkey", server.url, prefix) as rig:
        write_rows(folder / "rows.csv", range(60_000))
        command = ("rows.csv", "--job", "load", "-q", "rows", "--json")

        def until_in(rows: int, process: subprocess.Popen[bytes]) -> None:
            def enough() -> bool:
                assert process.poll() is None, process.communicate()
                return rig.store.stats("rows").totals["enqueued"] >= rows

            until(enough, f"{rows} rows are in")

        process = start(rig, *command, "--patience", "0s")
        until_in(1, process)
        server.kill()
        out, err = process.communicate(timeout=30)
        assert process.returncode == 4, err
        assert b"goes on where it ended" in err
        assert json.loads(out.splitlines()[-1])["end"] == "failed"
        server.start()
        before = rig.store.stats("rows").totals["enqueued"]
        process = start(rig, *command, "--patience", "20s")
        until_in(before + 1, process)
        server.kill()
        server.start()
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        summary = json.loads(out.splitlines()[-1])
        assert summary["rows"] == 60_000
        assert rig.store.stats("rows").totals["enqueued"] == 60_000
