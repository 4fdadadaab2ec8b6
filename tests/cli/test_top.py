"""`batchq top` on a terminal: it draws, obeys keys, outlives its store and leaves the terminal as it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from batchq.config import Settings
from batchq.stores import open_store
from tests.process.rig import until
from tests.servers import Server, flavours

from .conftest import BATCHQ, Run, Scene, environment
from .terminal import Terminal

ON, OFF = b"\x1b[?1049h", b"\x1b[?1049l"


@pytest.fixture
def url(any_url: str) -> str:
    """Both kinds of store."""
    return any_url


@contextmanager
def top(url: str, here: Path, *args: str, columns: int = 80, rows: int = 24, **env: str) -> Iterator[Terminal]:
    command = [*BATCHQ, "top", "--every", "200ms", *args]
    with Terminal(command, environment(BATCHQ_URL=url, **env), here, columns=columns, rows=rows) as shown:
        yield shown


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
def test_it_shows_pauses_and_quits(scene: Scene, url: str, here: Path, size: tuple[int, int]) -> None:
    """Counts as the store has them; `p` pauses and resumes; `q` quits, and the terminal is as before."""
    scene.dead("d", "mail")
    for number in range(12):
        scene.pending(f"p{number}", "mail")
    columns, rows = size
    with top(url, here, columns=columns, rows=rows) as shown:
        shown.until("pending 12  delayed 0  active 0  dead 1")
        assert ON in shown.raw
        shown.press("p")
        shown.until("mail paused")
        assert scene.store.stats("mail").paused
        shown.press("p")
        shown.until("mail resumed")
        assert not scene.store.stats("mail").paused
        shown.press("q")
        assert shown.wait() == 0
        assert shown.raw.rstrip().endswith((OFF, OFF + b"\x1b[?25h"))


def test_it_requeues_a_group(scene: Scene, url: str, here: Path) -> None:
    """`d` opens the dead, enter the error, `r` and a yes send the group back."""
    for number in range(3):
        scene.dead(f"d{number}", "mail", error=f"no user {number}")
    with top(url, here) as shown:
        shown.until("dead 3")
        shown.press("d")
        shown.until("ValueError: no user")
        shown.press("\r")
        shown.until("3 dead of deliver in mail; the newest:")
        shown.press("r")
        shown.until("Requeue 3 dead jobs of deliver in mail? y/n")
        shown.press("y")
        shown.until("requeued 3 of deliver")
        assert scene.store.stats("mail").counts["pending"] == 3
        shown.process.terminate()
        assert shown.wait() == 130
        assert OFF in shown.raw


def test_another_size_is_drawn_anew(scene: Scene, url: str, here: Path) -> None:
    """A window that grows shows more columns."""
    scene.pending("p")
    with top(url, here) as shown:
        shown.until("default")
        assert "FENCED" not in shown.text
        shown.resize(160, 50)
        shown.until("FENCED")
        shown.press("q")
        assert shown.wait() == 0


def test_no_colour(scene: Scene, url: str, here: Path) -> None:
    """NO_COLOR is kept."""
    scene.dead("d")
    with top(url, here, NO_COLOR="1") as shown:
        shown.until("dead 1")
        shown.press("q")
        assert shown.wait() == 0
    assert b"\x1b[31m" not in shown.raw
    assert b"\x1b[36m" not in shown.raw


def test_it_needs_a_terminal(run: Run) -> None:
    """In a pipe it says what does not."""
    run("top").refused(2, "batchq status --watch")


@pytest.fixture
def own_server() -> Iterator[Server]:
    server = Server(flavours()[0])
    yield server
    server.stop()


def test_the_server_goes_and_comes(own_server: Server, here: Path) -> None:
    """While it is away that is said at once, keys work, and it goes on by itself."""
    store = open_store(own_server.url, Settings())
    Scene(store).pending("p")
    with top(own_server.url, here) as shown:
        shown.until("pending 1 ")
        own_server.kill()
        shown.until("AWAY for")
        shown.forget()
        own_server.start()
        shown.until("no queue yet")
        shown.press("q")
        assert shown.wait() == 0
    store.close()


def test_it_sends_few_commands(own_server: Server, here: Path) -> None:
    """Less than 20 a second, however many queues there are."""
    store = open_store(own_server.url, Settings())
    scene = Scene(store)
    for number in range(50):
        scene.delayed(f"p{number}", f"q{number}")
    store.close()
    sent: list[float] = []
    with redis.Redis.from_url(own_server.url) as client, client.monitor() as monitor:

        def count() -> None:
            for command in monitor.listen():
                if command["client_type"] != "lua" and "stop" not in command["command"]:
                    sent.append(float(command["time"]))
                elif "stop" in command["command"]:
                    return

        counting = threading.Thread(target=count)
        counting.start()
        command = [*BATCHQ, "top", "--every", "500ms"]
        with Terminal(command, environment(BATCHQ_URL=own_server.url), here) as shown:
            shown.until("delayed 50")
            # What the start asks for is over.
            first = len(sent)
            until(lambda: shown.read() is None or sent[-1] - sent[first - 1] > 4, "four seconds have gone by", 30)
            shown.press("q")
            assert shown.wait() == 0
        client.echo("stop")
        counting.join(10)
    seconds = sent[-2] - sent[first - 1]
    assert (len(sent) - first) / seconds < 20


def test_looking_makes_no_spool(here: Path, tmp_path: Path) -> None:
    """A spool that is not there yet is none: it is shown so, and not made."""
    with top(f"spool:{tmp_path / 'none'}", here) as shown:
        shown.until("no queue yet")
        shown.press("q")
        assert shown.wait() == 0
    assert not (tmp_path / "none").exists()
