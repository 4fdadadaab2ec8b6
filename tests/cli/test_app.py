"""check and the wrong usage of start: apps that can't be loaded, settings that are wrong, stores that are away."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from batchq.cli.start import HELP
from batchq.config import rules

from .conftest import BATCHQ, Run, environment
from .terminal import Terminal

APP = """
from batchq.app import App
app = App()
other = 7
def make(): ...
@app.job(queue="mail", timeout=30, max_attempts=8)
def deliver(url): ...
@app.job(result=60)
async def fetch(url): ...
"""


@pytest.fixture
def shop(here: Path) -> Path:
    """A module `shop` with an App `app`."""
    (here / "shop.py").write_text(APP)
    return here


def test_check_says_what_would_run(run: Run, shop: Path, url: str) -> None:
    """Handlers with their terms, settings with their sources, and the store."""
    report = run("check", "shop:app", "--json", env={"BATCHQ_LEASE": "9s"}).ended(0).json
    assert [(one["name"], one["queue"], one["max_attempts"], one["timeout_ms"]) for one in report["handlers"]] == [
        ("deliver", "mail", 8, 30_000),
        ("fetch", "default", 5, None),
    ]
    assert report["settings"]["lease"] == {"value": "9s", "source": "BATCHQ_LEASE"}
    assert report["settings"]["grace"] == {"value": "5s", "source": "default"}
    assert report["store"]["url"] == url
    text = run("check", "shop:app").ended(0).out
    for word in ("deliver", "mail", "30s", "fetch", "lease", "15s", "BATCHQ_URL"):
        assert word in text


@pytest.mark.parametrize("source", ["flag", "variable", "file"])
def test_the_app_is_named_in_three_ways(run: Run, shop: Path, source: str) -> None:
    """APP, BATCHQ_APP, or [tool.batchq]."""
    args, env = (), {}
    if source == "flag":
        args = ("shop:app",)
    elif source == "variable":
        env = {"BATCHQ_APP": "shop:app"}
    else:
        (shop / "pyproject.toml").write_text('[tool.batchq]\napp = "shop:app"\n')
    assert run("check", *args, "--json", env=env).ended(0).json["app"] == "shop:app"


@pytest.mark.parametrize("command", [("check",), ("start", "-n", "1")])
def test_no_app_is_wrong_usage(run: Run, command: tuple[str, ...]) -> None:
    """It says the three ways to name one."""
    run(*command).refused(2, "no app given", "BATCHQ_APP", "[tool.batchq]")


@pytest.mark.parametrize("command", [("check",), ("start", "-n", "1")])
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("shop:ap", "has no 'ap'; the App there is shop:app"),
        ("shop:app.deliver", "has no 'app.deliver'"),
        ("shop:other", "'other' is of type int, not a batchq App"),
        ("shop:make", "'make' is of type function, not a batchq App"),
        ("shpo:app", "shpo: no such module; near it in "),
        ("shop.tasks:app", "shop.tasks: no such module"),
        ("nowhere.at.all:app", "nowhere: no such module"),
    ],
)
def test_an_app_that_is_not_there(run: Run, shop: Path, command: tuple[str, ...], spec: str, said: str) -> None:
    """Exit 3, and what is near."""
    run(*command, spec).refused(3, said)


@pytest.mark.parametrize(
    ("spec", "write"),
    [
        ("shop.py:app", "write shop:app"),
        ("./shop.py", "write shop:app"),
        ("src/shop.py:jobs", "write src.shop:jobs"),
        ("shop:", "write shop:app"),
        (":app", "write module:app"),
        ("shop:app()", "module:app"),
        ("a b:c", "app"),
    ],
)
def test_an_app_that_is_misspelt(run: Run, shop: Path, spec: str, write: str) -> None:
    """Exit 2, and how it would be written."""
    run("check", spec).refused(2, write)


def test_a_module_alone_holds_its_app(run: Run, shop: Path) -> None:
    """`module` is `module:app`, or the only App in it."""
    run("check", "shop").ended(0)
    (shop / "single.py").write_text("from batchq.app import App\njobs = App()\n")
    run("check", "single").ended(0)
    (shop / "double.py").write_text("from batchq.app import App\na = App()\nb = App()\n")
    run("check", "double").ended(3, "double:a", "double:b")


BROKEN = {
    "raises": ("import helper\n", "def go():\n    return {}['key']\n\ngo()\n", "KeyError: 'key'", "return {}['key']"),
    "missing": ("import stripes_not_there\n", "", "No module named 'stripes_not_there'", "import stripes_not_there"),
    "syntax": ("def f(:\n", "", "SyntaxError", "def f(:"),
    "exits": ("import sys\nsys.exit(7)\n", "", "sys.exit(7)", "sys.exit(7)"),
    "library": ("import json\njson.loads('{')\n", "", "JSONDecodeError", "json.loads('{')"),
    "twice": (
        "from batchq.app import App\napp = App()\n@app.job\ndef f(): ...\n@app.job(name='f')\ndef g(): ...\n",
        "",
        "registered twice",
        "@app.job(name='f')",
    ),
    "setting": ("from batchq.app import App\napp = App(lese='3s')\n", "", "lese: no such setting", "App(lese='3s')"),
}


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("command", [("check",), ("start", "-n", "1")])
def test_an_app_that_fails_shows_its_own_line(run: Run, here: Path, fault: str, command: tuple[str, ...]) -> None:
    """Exit 3; the user's file and line, and none of the machinery's."""
    module, helper, error, line = BROKEN[fault]
    (here / "broken.py").write_text(module)
    (here / "helper.py").write_text(helper)
    done = run(*command, "broken:app").ended(3, "batchq: error: broken", error, line, str(here))
    for machinery in ("importlib", "loading.py", "site-packages", "registry.py", "json/"):
        assert machinery not in done.err
    assert done.out == ""
    for args, env in (((), {"BATCHQ_DEBUG": "1"}), (("--debug",), {})):
        debugged = run("start", "-n", "1", "broken:app", *args, env=env)
        assert (debugged.code, "Traceback" in debugged.err) == (3, True)


@pytest.mark.parametrize("value", ["0", "-1", "2.5", "257", "100000", "08", "", "1_0", "\uff18", "four", "true", "nan"])
def test_a_number_of_workers_that_is_none(run: Run, shop: Path, value: str) -> None:
    """-n takes 1 to 256, in plain digits; before anything is imported or forked."""
    run("start", "-n", value, "shop:app").refused(2, "processes", "-n", "from 1 to 256")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--lease", "soon"), ("lease", "--lease", "30s")),
        (("--lease", "0"), ("lease", "too short")),
        (("--lease-time", "3s"), ("--lease-time",)),
        (("--shutdown-timeout", "-5"), ("shutdown_timeout", "--shutdown-timeout")),
        (("--grace", "30s", "--shutdown-timeout", "10s"), ("grace", "shutdown_timeout")),
        (("--log-format", "xml"), ("log_format", "text, json")),
        (("-q", "critical:0"), ("queues", "1 to 100")),
        (("-q", "critical:x"), ("queues",)),
        (("-q", "a b"), ("queues",)),
        (("-q", "a", "-q", "a:2"), ("names a twice",)),
        (("--burst=never",), ("--burst", "ready")),
        (("--url", "http://x"), ("url", "--url")),
        (("--max-rss", "lots"), ("max_rss",)),
        (("stray",), ("stray",)),
    ],
)
def test_start_refuses(run: Run, shop: Path, args: tuple[str, ...], said: tuple[str, ...]) -> None:
    """Wrong flags: exit 2, one line that names the flag and what to write."""
    run("start", "-n", "1", "shop:app", *args).refused(2, *said)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"BATCHQ_LEESE": "3s"}, ("BATCHQ_LEESE: no such setting", "BATCHQ_LEASE")),
        ({"BATCHQ_LEASE": "x"}, ("lease", "from BATCHQ_LEASE")),
        ({"BATCHQ_PROCESSES": "0"}, ("processes", "from BATCHQ_PROCESSES")),
    ],
)
@pytest.mark.parametrize("command", [("start", "shop:app"), ("check", "shop:app"), ("status",), ("enqueue", "deliver")])
def test_a_wrong_variable_stops_every_command(
    run: Run, shop: Path, env: dict[str, str], said: tuple[str, ...], command: tuple[str, ...]
) -> None:
    """A setting that would have no effect is an error, not a silence."""
    run(*command, env=env).refused(2, *said)


def test_a_pool_s_first_words(run: Run, shop: Path, url: str) -> None:
    """On a terminal a block that fits it; elsewhere one event with the same as keys, for what reads logs."""
    args = ("start", "-n", "1", "-q", "mail:5", "-q", "default", "--burst", "shop:app")
    with Terminal([*BATCHQ, *args], environment(BATCHQ_URL=url), shop, columns=60) as shown:
        assert shown.wait() == 0
        text = shown.text
    lines = text[text.index(" info started\n") :].splitlines()[1:]
    block = [line for line in lines if line.startswith("  ")]
    assert [line.split()[0] for line in block if line[2] != " "] == [
        *("version", "app", "store", "queues", "workers", "limits", "fallback")
    ]
    # A url is never broken.
    assert all(len(line) <= 60 for line in block if url not in line)
    told = " ".join(" ".join(block).split())
    assert "app shop:app 2 handlers" in told
    assert f"store {url} (" in told
    assert "queues mail:5 default workers 1 limits lease=15s timeout=none" in told
    assert told.endswith("fallback none: the store is a spool itself")
    piped = run(*args).ended(
        0, "started version=", "app=shop:app", f"store={url}", "queues=mail:5,default", "lease=15s"
    )
    assert len([line for line in piped.err.splitlines() if "started" in line]) == 1
    entries = [json.loads(line) for line in run(*args, "--log-format", "json").ended(0).err.splitlines()]
    [started] = [entry for entry in entries if entry["event"] == "started"]
    assert (started["app"], started["processes"], started["fallback"]) == ("shop:app", 1, "none")


def test_burst_never_takes_the_app_for_its_value(run: Run, shop: Path) -> None:
    """`--burst shop:app` means the app, `--burst=ready` the mode."""
    run("start", "--burst", "shop:ap").refused(3, "has no 'ap'")
    run("start", "--burst=ready", "shop:ap").refused(3, "has no 'ap'")


def test_every_setting_is_a_flag_of_start() -> None:
    """Each setting has its line of help; `app` is the argument."""
    assert set(HELP) | {"app"} == set(rules())


COMMANDS = [
    ("status",),
    ("jobs",),
    ("show", "x"),
    ("enqueue", "deliver", "--no-fallback"),
    ("requeue", "x"),
    ("requeue", "--all"),
    ("cancel", "x"),
    ("purge", "--state", "dead"),
    ("pause", "default"),
    ("resume", "default"),
    ("workers",),
    ("check", "shop:app"),
]


@pytest.fixture(scope="module")
def nobody() -> str:
    """host:port on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_store_that_is_away(run: Run, shop: Path, nobody: str, command: tuple[str, ...]) -> None:
    """Exit 4, one line, no password; also where it is a flag, and then with a warning."""
    secret = "s3cr:t%40%2F%252F"
    env = {"BATCHQ_URL": f"redis://user:{secret}@{nobody}/0"}
    done = run(*command, env=env).refused(4, nobody)
    assert "s3cr" not in done.out + done.err
    done = run(*command, "--url", f"redis://:{secret}@{nobody}/0").ended(4, nobody, "BATCHQ_URL")
    assert "s3cr" not in done.out + done.err


def test_status_as_json_says_that_the_store_is_away(run: Run, nobody: str) -> None:
    """The document is there for programs, with `up` false; the exit code is 4 all the same."""
    done = run("status", "--json", env={"BATCHQ_URL": f"redis://{nobody}/0"}).ended(4, nobody)
    assert done.json["store"]["up"] is False


@pytest.mark.parametrize("command", ["status", "workers"])
def test_a_server_that_is_silent(run: Run, command: str) -> None:
    """A health check answers: a server that takes connections and says nothing is away, too."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        begun = time.monotonic()
        run(command, env={"BATCHQ_URL": f"redis://127.0.0.1:{port}/0"}).refused(4, str(port))
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize("other", ["http://x", "redis", "spool:", "nonsense://x", "redis://"])
@pytest.mark.parametrize("command", [("status",), ("enqueue", "deliver")])
def test_a_url_that_is_none(run: Run, other: str, command: tuple[str, ...]) -> None:
    """Exit 2, and what a url looks like."""
    run(*command, "--url", other).refused(2, "url", "--url")


def test_the_apps_own_store_is_found(run: Run, shop: Path, tmp_path: Path) -> None:
    """Where no store is named but an app is, its code says which: the one that `start` would serve."""
    own = f"spool:{tmp_path / 'own'}"
    (shop / "owner.py").write_text(f"from batchq.app import App\napp = App({own!r})\n")
    env = {"BATCHQ_URL": "", "BATCHQ_APP": "owner:app"}
    run("enqueue", "deliver", env=env).ended(0)
    assert run("status", "--json", env=env).ended(0).json["store"]["url"] == own
    run("status", env={"BATCHQ_URL": "", "BATCHQ_APP": "nothing:app"}).ended(3, "--url")
