"""The documentation is true: its commands run, its code runs, its options are there, its pages name all there is."""

from __future__ import annotations

import ast
import gzip
import importlib
import json
import re
import shlex
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import redis

import batchq
from batchq import config
from batchq.cli.group import cli
from batchq.lifecycle import TOTALS
from tests.cli.conftest import Run
from tests.cli.conftest import here as here
from tests.cli.conftest import run as run
from tests.cli.conftest import url as url
from tests.process.rig import until
from tests.servers import Servers, flavours, free_port
from tests.webhooks.receiver import Receiver

from .pages import DOCS, PAGES, ROOT, blocks, commands
from .reader import Page, Reader, untouched

ROWS = "number,paid,note\n1,true,x\n2,false,\n3,true,z\n"
APP = """
from batchq import App, Dead

app = App()


@app.job(queue="orders")
def load(**row): ...


@app.job(queue="events")
def on_event(**event):
    raise Dead("not today")
"""

#: What pages take for granted; the others nothing.
TAKEN = {
    "README.md": Page(
        given="urls = ['https://example.org/hook'] * 3\ncalls = [{'url': url, 'body': {}} for url in urls]",
        files={
            "orders.csv": ROWS,
            # What runs beside: the page's own handlers, and those that it only names.
            "others.py": "from tasks import app\n\n@app.job(queue='orders')\ndef load(**row): ...\n\n"
            "@app.job(queue='webhooks')\ndef publish(batch): ...\n",
        },
        pools={"others:app": "tasks.py"},
    ),
    "batches.md": Page(given="rows = [{'n': 1}, {'n': 2}]\nmore = [{'n': 3}]", pools={"tasks:app": "tasks.py"}),
    "import.md": Page(
        files={
            "app.py": APP,
            "orders.csv": ROWS,
            "orders.csv.gz": gzip.compress(ROWS.encode()),
            "events.ndjson": '{"event_id": "e1", "kind": "paid"}\n{"event_id": "e2", "kind": "sent"}\n',
        },
        pools={"app:app": "app.py"},
    ),
    "metrics.md": Page(files={"tasks.py": APP}),
}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT if page.name == "README.md" else DOCS))


#: Pages that show code or commands.
LIVE = [page for page in PAGES if any(block.kind in ("python", "sh") for block in blocks(page))]


@pytest.fixture
def server(servers: Servers) -> Iterator[str]:
    """The Redis of the pages."""
    url = f"{servers.get(flavours()[0]).url.removesuffix('/0')}/9"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        yield url
        client.flushdb()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", LIVE, ids=name_of)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block in its order: files are written, code runs, commands end well, what serves comes up and ends."""
    receiver = Receiver()
    (tmp_path / "run").mkdir()
    places = {
        "https://example.org": receiver.url,
        "redis://127.0.0.1:6379/0": server,
        "/run/batchq": str(tmp_path / "run"),
        **{port: str(free_port()) for port in ("8080", "9464")},
    }
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("BATCHQ_SPOOL", str(tmp_path / "var" / "spool"))
    before = set(sys.modules)
    try:
        with Reader(tmp_path, TAKEN.get(name_of(page), Page()), places) as reader:
            for block in blocks(page):
                if not block.run:
                    continue
                if "spool forward" not in block.text:
                    reader.read(block)
                    continue
                # A spool is no place to forward to, and what is moved is served by no pool.
                reader.finish()
                with reader.on(server):
                    reader.read(block)
            CHECKS.get(name_of(page), lambda reader, receiver: None)(reader, receiver)
            reader.finish()
    finally:
        for name in set(sys.modules) - before:
            if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
        receiver.close()


def check_tutorial(reader: Reader, receiver: Receiver) -> None:
    """What the text says of them: two runs of the producer, each with one that has no address and one that is busy."""
    out = reader.told
    assert [line.split()[:2] for line in out["batchq dead"].splitlines()[1:3]] == [["2", "send"]] * 2
    assert "requeued 2" in out["batchq requeue --error busy"]
    assert "purged 2" in out['batchq purge --state dead --error "no address" --yes']
    assert "2 jobs enqueued" in out["batchq import users.csv --job send --queue mail"]
    assert "ConnectionError" in out['batchq show "$(cat id)"'] + out["batchq dead"]


def check_readme(reader: Reader, receiver: Receiver) -> None:
    """Its deliveries were made; its rows were imported and worked off; its batch succeeded."""
    assert [got.body for got in receiver.got].count(b'{"id":7}') == 1
    assert "3 jobs enqueued" in reader.told["batchq import orders.csv --job load -q orders --wait"]
    assert reader.namespace["batch"].progress().completed == 3


def check_batches(reader: Reader, receiver: Receiver) -> None:
    """Three jobs, all of them well; the callback was called."""
    stats = reader.namespace["batch"].progress()
    assert (stats.total, stats.completed) == (3, 3)

    def workers() -> list[dict[str, Any]]:
        reader.type("batchq status --json")
        return list(json.loads(reader.told["batchq status --json"])["workers"])

    # A pool is at work here: what it says of a worker is what the reference has.
    [documented] = json.loads(next(blocks(DOCS / "reference" / "status.md", "json")).text)["workers"]
    assert set(until(workers, "its master has told of its worker")[0]) == set(documented)


def check_import(reader: Reader, receiver: Receiver) -> None:
    """What died is exported and comes in again."""
    assert "2 jobs enqueued" in reader.told["batchq import dead.ndjson --envelope --new-ids"]


def check_index(reader: Reader, receiver: Receiver) -> None:
    """The app that it shows is one."""
    assert importlib.import_module("tasks").app.registry.names() == ("deliver",)


CHECKS: dict[str, Callable[[Reader, Receiver], None]] = {
    "index.md": check_index,
    "tutorial.md": check_tutorial,
    "README.md": check_readme,
    "batches.md": check_batches,
    "import.md": check_import,
}


def test_what_nobody_runs_is_little_and_says_why() -> None:
    """What installs, and what needs a damaged spool."""
    pages = Counter(line.partition(":")[0] for line in untouched(PAGES))
    assert pages == {"README.md": 2, "tutorial.md": 1, "spool.md": 1}


def _command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words call, and what follows its name."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"no command {words[0]}"
        command, words = found, words[1:]
    return command, words


def check_options(line: str) -> None:
    """Every option of a `batchq` in that line is one that the command has."""
    for part in re.split(r"\||&&|;|>|<|\$\(", line):
        words = part.split()
        if "batchq" not in words[:3]:
            continue
        try:
            given = shlex.split(part)
        except ValueError:
            given = words
        command, rest = _command_of(given[given.index("batchq") + 1 :])
        known = {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)} | {
            "--help",
            "-h",
            "--version",
        }
        for word in rest:
            if re.fullmatch(r"--?[a-z][a-z-]*(=.*)?", word):
                assert word.partition("=")[0] in known, f"{part.strip()}: no option {word}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_options_exist(page: Path) -> None:
    """Whatever a page shows a reader to type is there."""
    for block in blocks(page, "sh"):
        for line in commands(block):
            check_options(line)
    for inline in re.findall(r"`(batchq [^`]+)`", page.read_text("utf-8")):
        if not re.search(r"[A-Z]{3,}|\.\.\.", inline):
            check_options(inline)


def test_a_wrong_option_would_be_found() -> None:
    """The check above can fail."""
    with pytest.raises(AssertionError, match="no option --urll"):
        check_options("x | batchq status --urll y")
    with pytest.raises(AssertionError, match="no command"):
        check_options("batchq stats")


def test_the_made_pages() -> None:
    """Settings, commands and keys are those of the code."""
    pytest.importorskip("mkdocs")
    sys.path.insert(0, str(ROOT))
    try:
        import docs_hooks
    finally:
        sys.path.remove(str(ROOT))
    settings = docs_hooks.settings_page()
    assert all(f"| `{key}` | " in settings for key in config.rules())
    assert "| `lease` | `--lease` | `BATCHQ_LEASE` | 15s |" in settings
    shown = docs_hooks.cli_page()
    assert "## batchq spool forward" in shown
    assert "--herd N" in shown
    assert "bq:{q}:pending" in docs_hooks.redis_page()


def logged_events() -> dict[str, set[str]]:
    """Event -> its levels, as the code has them."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in [*(ROOT / "batchq").rglob("*.py"), *(ROOT / "spool").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(ast.Name("log"), "event"), args=[ast.Constant(str(level)), named, *_]):
                    for name in _texts(named):
                        found[name].add(level)
                case ast.Call(func=ast.Name("Outage"), args=[_, ast.Tuple() as pair]):
                    _add_pair(found, pair)
                case ast.arguments(defaults=[*_, ast.Tuple() as pair]) if path.name == "outage.py":
                    _add_pair(found, pair)
                case ast.Assign(targets=[ast.Name("verb")], value=named) if path.name == "master.py":
                    for name in _texts(named):
                        found[name].add("info")
    return found


def _texts(node: ast.AST) -> list[str]:
    return [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def _add_pair(found: dict[str, set[str]], pair: ast.Tuple) -> None:
    begun, ended = _texts(pair)
    found[begun].add("error")
    found[ended].add("warning")


def test_every_event_is_explained() -> None:
    """The reference has each event that the code logs, at its levels, and no other."""
    rows = re.findall(r"^\| `(\w+)` \| ([\w, ]+) \|", (DOCS / "reference" / "logs.md").read_text("utf-8"), re.M)
    documented = {name: set(levels.split(", ")) for name, levels in rows}
    assert documented.pop("message") == {"any"}
    assert documented == logged_events()


def test_the_reference_has_every_name_of_the_package() -> None:
    """What `from batchq import ...` gives stands in it, by itself or with its module."""
    shown = re.findall(r"^::: batchq\.([\w.]+)$", (DOCS / "reference" / "api.md").read_text("utf-8"), re.M)
    for name in set(batchq.__all__) - {"__version__"}:
        module = getattr(batchq, name).__module__.removeprefix("batchq.")
        assert {module, f"{module}.{name}"} & set(shown), name


def test_the_table_of_modules_names_each() -> None:
    """ARCHITECTURE.md: whoever reads the table has heard of every module in the folders that it opens."""
    architecture = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    table = set(re.findall(r"`(\w+\.py)`", architecture.partition("\n## Modules\n")[2].partition("\nOnly ")[0]))
    folders = ("batchq", *(f"batchq/{name}" for name in ("master", "worker", "system", "redis", "fallback")))
    there = {path.name for folder in folders for path in (ROOT / folder).glob("[!_]*.py")}
    assert table == there
    moves = architecture.partition("\n## Moves\n")[2].partition("\n**The law")[0]
    spool = set(re.findall(r"(\w+\.py)`", moves + architecture.partition("\n## The spool\n")[2].partition("\n## ")[0]))
    assert {path.name for path in (ROOT / "spool").glob("[!_]*.py")} <= spool


def _keys(value: Any) -> Any:
    return {key: _keys(inner) for key, inner in value.items()} if isinstance(value, dict) else None


def test_the_documented_status_is_the_real_one(run: Run, url: str) -> None:
    """The keys in the reference are those that status gives, no more and no fewer."""
    [block] = blocks(DOCS / "reference" / "status.md", "json")
    documented = json.loads(block.text)
    run("enqueue", "deliver").ended(0)
    real = run("status", "--json").ended(0).json
    assert set(documented["queues"]["default"]["totals"]) == set(TOTALS)
    for part in ("store", "queues", "spool"):
        assert _keys(documented[part]) == _keys(real[part])
