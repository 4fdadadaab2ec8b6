"""`batchq doctor` and `batchq config`: what is wrong is found, what is well is not complained of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from batchq.job import NewJob
from batchq.spool import drop
from tests.servers import Servers, flavours

from .conftest import Run, Scene
from .test_backoff import APP


def of(findings: list[Any], about: str) -> list[Any]:
    return [one for one in findings if one["about"] == about]


@pytest.fixture
def app(here: Path) -> str:
    (here / "shop.py").write_text(APP)
    return "shop:app"


@pytest.fixture(params=flavours())
def server(request: pytest.FixtureRequest, servers: Servers) -> str:
    """A database that is empty, for tests that change nothing of the server."""
    url = f"{servers.get(request.param).url.removesuffix('/0')}/6"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url


def test_a_sound_spool(run: Run, app: str, scene: Scene) -> None:
    """Nothing is bad; handlers without limit are named; exit 0."""
    scene.completed("c")
    done = run("doctor", app, "--json").ended(0)
    assert [one for one in done.lines if one["level"] == "bad"] == []
    [limit] = [one for one in of(done.lines, "app") if one["level"] == "warn"]
    assert "deliver, plain" in limit["text"]
    table = run("doctor", app).ended(0).out
    assert table.splitlines()[-1].startswith("0 bad, 1 to look at")


def test_redis_and_its_rights(run: Run, app: str, server: str) -> None:
    """Every move is tried, and leaves no trace; a server that saves nothing is bad."""
    done = run("doctor", app, env={"BATCHQ_URL": server, "BATCHQ_FALLBACK_EPHEMERAL": "1"}).ended(1)
    lines = run("doctor", app, "--json", env={"BATCHQ_URL": server, "BATCHQ_FALLBACK_EPHEMERAL": "1"}).lines
    assert of(lines, "rights")[0]["level"] == "ok", done
    assert of(lines, "clock")[0]["level"] == "ok"
    [bad] = [one for one in lines if one["level"] == "bad"]
    assert "saves nothing" in bad["text"]
    with redis.Redis.from_url(server) as client:
        assert [key for key in client.keys("*") if b":mark:" not in key] == []


def test_a_right_that_is_missing(run: Run, app: str, server: str) -> None:
    """A user who may not do a move: the finding names it."""
    with redis.Redis.from_url(server) as client:
        client.execute_command("ACL", "SETUSER", "halt", "on", ">pw", "~bq:*", "+@all", "-zadd")
        try:
            url = server.replace("redis://", "redis://halt:pw@")
            done = run("doctor", app, "--json", env={"BATCHQ_URL": url}).ended(1)
        finally:
            client.execute_command("ACL", "DELUSER", "halt")
    [rights] = of(done.lines, "rights")
    assert rights["level"] == "bad"
    assert "zadd" in rights["text"]
    assert "pw@" not in done.out + done.err


def test_a_server_that_cant_confirm(run: Run, app: str, server: str, here: Path) -> None:
    """Whether what is forwarded can leave the spool as it is to; a forward by hand says the same, and sends nothing."""
    env = {"BATCHQ_URL": server, "BATCHQ_FALLBACK_EPHEMERAL": "1", "BATCHQ_FORWARD_CONFIRM": "grace"}
    grace, *_ = of(run("doctor", app, "--json", env=env).lines, "spool")
    assert (grace["level"], "answers to grace" in grace["text"]) == ("ok", True)
    waitaof, *_ = of(run("doctor", app, "--json", env=env | {"BATCHQ_FORWARD_CONFIRM": "waitaof"}).lines, "spool")
    assert waitaof["level"] == "bad"
    assert "set appendonly yes" in waitaof["text"] or "Redis 7.2" in waitaof["text"]
    path = here / "outbox"
    drop(path, [("default", NewJob("a", b'{"job":"deliver"}'))])
    done = run("spool", "forward", "--spool", str(path), "--confirm", "waitaof", env=env).ended(1)
    assert "forward_confirm: waitaof is refused" in done.err
    [waits] = (path / "inbox").glob("*/*")
    (path / "inbox" / "sent").mkdir()
    waits.rename(path / "inbox" / "sent" / f"01234567-{waits.name}")
    assert "1 (taken, not yet confirmed)" in run("spool", "status", "--spool", str(path)).out
    assert "inbox/sent/" in run("spool", "ls", "--spool", str(path)).out


def test_a_store_that_is_away(run: Run, app: str) -> None:
    """Bad, with what to do; the rest is looked at all the same."""
    done = run("doctor", app, "--json", env={"BATCHQ_URL": "redis://127.0.0.1:1/0"}).ended(1)
    assert [one["level"] for one in of(done.lines, "store")] == ["bad"]
    assert of(done.lines, "app")


def test_an_app_that_cant_be_imported(run: Run, here: Path, scene: Scene) -> None:
    """Bad, and the store is looked at all the same."""
    (here / "shop.py").write_text("import nothing_of_that_name")
    done = run("doctor", "shop:app", "--json").ended(1)
    assert "nothing_of_that_name" in of(done.lines, "app")[0]["text"]
    assert of(done.lines, "store")


def test_an_app_on_another_store(run: Run, here: Path, tmp_path: Path) -> None:
    """Its code goes before a variable: else nobody would know why the jobs are not where all commands look."""
    (here / "shop.py").write_text(APP.replace("App()", f"App('spool:{tmp_path / 'its'}')"))
    done = run("doctor", "shop:app", "--json").ended(1)
    [bad] = [one for one in of(done.lines, "app") if one["level"] == "bad"]
    assert str(tmp_path / "its") in bad["text"]
    # The same in other words is no other.
    (here / "shop.py").write_text(APP.replace("App()", "App('redis://localhost:1')"))
    same = run("doctor", "shop:app", "--json", env={"BATCHQ_URL": "redis://127.0.0.1:1/0"}).lines
    assert not [one for one in of(same, "app") if one["level"] == "bad"]


def test_the_app_says_which_store(run: Run, here: Path, tmp_path: Path) -> None:
    """Where nothing else does, the one of the command line too."""
    (here / "shop.py").write_text(APP.replace("App()", f"App('spool:{tmp_path / 'its'}')"))
    alone = run("doctor", "shop:app", "--json", env={"BATCHQ_URL": ""}).lines
    assert not [one for one in of(alone, "app") if one["level"] == "bad"]
    assert str(tmp_path / "its") in of(alone, "store")[0]["text"]


def test_settings_that_are_wrong(run: Run) -> None:
    """Unknown ones name the nearest."""
    done = run("doctor", "--json", env={"BATCHQ_LAESE": "3s"}).ended(1)
    assert "BATCHQ_LEASE" in done.lines[0]["text"]


def test_what_nobody_looks_after(run: Run, app: str, scene: Scene, tmp_path: Path) -> None:
    """Queues that no master serves, paused ones, leases of workers that are gone, files that were dropped."""
    scene.pending("p", "mail")
    scene.store.pause("mail")
    worker, _ = scene.active("a", "held")
    scene.store.seal("held", worker)
    inbox = tmp_path / "spool" / "inbox" / "new"
    (inbox / "x.json").write_text('{"job": "deliver"}')
    lines = run("doctor", app, "--json").ended(1).lines
    said = [(one["level"], one["text"]) for one in of(lines, "queues")]
    assert ("warn", "mail is paused") in said
    assert ("bad", "mail: 1 jobs wait and no master serves it") in said
    [leases] = of(lines, "leases")
    assert (leases["level"], leases["text"].startswith("held: 1 workers of host")) == ("bad", True)
    assert any("1 jobs wait in" in one["text"] and one["level"] == "bad" for one in of(lines, "spool"))
    assert all(one["advice"] for one in lines if one["level"] != "ok")


def test_a_spool_that_all_may_write_to(run: Run, app: str, scene: Scene, tmp_path: Path) -> None:
    """Whoever owns the directory owns the jobs."""
    scene.pending("p")
    (tmp_path / "spool").chmod(0o777)
    lines = run("doctor", app, "--json").ended(1).lines
    assert any("chmod o-w" in one["text"] for one in lines if one["level"] == "bad")


def test_config_tells_value_and_origin(run: Run, here: Path) -> None:
    """Flag, file, variable and default; passwords are hidden; unknown names are errors."""
    (here / "pyproject.toml").write_text('[tool.batchq]\nlease = "30s"\n')
    env = {"BATCHQ_URL": "redis://user:secret@127.0.0.1:1/0", "BATCHQ_GRACE": "2s"}
    found = run("config", "--json", env=env).ended(0).json
    assert found["lease"]["value"] == "30s"
    assert "pyproject.toml" in found["lease"]["source"]
    assert found["grace"] == {"value": "2s", "source": "BATCHQ_GRACE"}
    assert found["max_attempts"] == {"value": "5", "source": "default"}
    assert "secret" not in found["url"]["value"]
    assert set(run("config", "--changed", "--json", env=env).json) == {"lease", "grace", "url"}
    assert run("config", "lease", "--json", env=env).json.keys() == {"lease"}
    assert run("config", "lease", env=env).out.splitlines()[1].split()[-2:] == ["--lease", "BATCHQ_LEASE"]
    run("config", "laese").refused(2, "did you mean lease")
