"""Tables on a terminal: a row is a line, whatever it holds; what people copy is whole."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from rich.cells import cell_len

from batchq.cli.output import Column, fit

from .conftest import BATCHQ, Scene, environment
from .terminal import Terminal

NAME = "a-queue-with-quite-a-long-name.of-many-parts_and_more.63-chars"
HANDLER = "a_handler_whose_name_is_long_as_well_for_no_reason_at_all"
ERROR = "日本語 テスト: the server of user@example.org is busy, and what follows is a long explanation " * 3

COLUMNS = (
    Column("ID", whole=True),
    Column("QUEUE", spare=2),
    Column("PRI", right=True, spare=1),
    Column("COUNT", right=True),
    Column("ERROR", least=20),
)


@pytest.mark.parametrize(
    ("needs", "room", "widths"),
    [
        ((26, 4, 3, 5, 9), 80, [26, 4, 3, 5, 9]),  # all of it
        ((26, 4, 3, 5, 90), 80, [26, 4, 3, 5, 34]),  # the widest gives
        ((26, 40, 3, 5, 90), 80, [26, 18, 3, 5, 20]),  # down to what it needs at least
        ((26, 40, 3, 5, 90), 70, [26, 13, 0, 5, 20]),  # then the first spare one goes
        ((26, 40, 3, 5, 90), 60, [26, 0, 0, 5, 25]),  # and the second
        ((26, 40, 3, 5, 90), 40, [26, 0, 0, 5, 5]),  # then there is less than that
        ((26, 40, 3, 5, 90), 30, [26, 0, 0, 5, 1]),  # what must not be cut is not
        ((26, 4, 3, 5, 0), 80, [26, 4, 3, 5, 0]),
    ],
)
def test_who_gives_room(needs: tuple[int, ...], room: int, widths: list[int]) -> None:
    """Spare columns go before a text has less than it needs; numbers and ids are never cut."""
    assert fit(COLUMNS, needs, room) == widths


@pytest.mark.parametrize("columns", [80, 160])
def test_no_row_of_a_table_wraps(scene: Scene, url: str, here: Path, columns: int) -> None:
    """Long names, errors of wide characters: no line is wider than the terminal, and a job is one; ids are whole."""
    for number in range(4):
        scene.dead(f"01m8ngny1h00{number}7rxkcqrr56kxd", NAME, HANDLER, ERROR)
    scene.pending("01m8ngny1h0077rxkcqrr56kxd", NAME, HANDLER)
    scene.active("01m8ngny1h0087rxkcqrr56kxd", "q2", HANDLER)
    commands = (
        "status",
        "jobs",
        "jobs -s dead",
        "dead",
        "dead --by job",
        "dead --by host",
        "doctor",
        "config",
        "gates",
        "spool ls",
    )
    script = "; ".join(f"echo :{command}:; {' '.join(BATCHQ)} {command}" for command in commands)
    with Terminal(["sh", "-c", script], environment(BATCHQ_URL=url), here, columns=columns, rows=200) as shown:
        shown.wait()
        told = {part.split(":", 1)[0]: part.splitlines()[1:] for part in shown.text.split("\n:")}
    # But for a url.
    lines = [line for part in told.values() for line in part if url not in line]
    assert max(map(cell_len, lines)) <= columns, max(lines, key=cell_len)
    assert sum("kxd" in line for line in told["jobs"]) == len([line for line in told["jobs"] if line]) - 1 == 6
    assert sum("01m8ngny1h00" in line and "7rxkcqrr56kxd" in line for line in told["jobs -s dead"]) == 4
    assert len([line for line in told["dead"] if line]) == 2


def test_a_watch_draws_whole_frames(scene: Scene, url: str, here: Path) -> None:
    """`status --watch`: each frame comes at once behind its clearing, fits the screen, and shows the counts of now."""
    scene.pending("p")
    for number in range(30):
        scene.pending("p", f"q{number}")
    command = [*BATCHQ, "status", "--watch", "--every", "200ms"]
    # Wide enough for the url.
    with Terminal(command, environment(BATCHQ_URL=url), here, columns=200) as shown:
        shown.until("default        1")
        scene.pending("p2")
        shown.until("default        2")
        frames = shown.raw.split(b"\x1b[H\x1b[2J")[1:-1]
        assert all(frame.startswith(b"store ") for frame in frames)
        assert all(b"QUEUE" in frame and b"... and 13 more queues" in frame for frame in frames)
        assert all(frame.count(b"\n") <= 23 for frame in frames)
        shown.process.send_signal(signal.SIGINT)
        assert shown.wait() == 130
