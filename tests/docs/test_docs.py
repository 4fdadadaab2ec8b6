"""The documentation is true: its commands run, its code runs, its options are there, its pages name all there is."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from batchq import config
from batchq.cli.group import cli
from batchq.lifecycle import TOTALS
from tests.cli.conftest import Run, environment
from tests.cli.conftest import here as here
from tests.cli.conftest import run as run
from tests.cli.conftest import url as url

from .pages import DOCS, PAGES, ROOT, blocks, commands

#: Pages whose code is a whole when its blocks are run one after the other. Of the others each block is compiled.
WHOLE = ("cpu.md", "retries.md", "exactly-once.md", "reference/logs.md")
#: Pages whose commands are run, in an empty folder, one after the other.
RUN = ("tutorial.md", "retries.md", "spool.md", "operating.md")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT if page.name == "README.md" else DOCS))


def shell(folder: Path) -> dict[str, str]:
    """An environment in which `batchq` and `python` are these, and the spool is the one that the pages name."""
    found = Path(sys.executable).parent
    return environment(
        PATH=f"{found}:{os.environ['PATH']}",
        HOME=str(folder),
        PYTHONDONTWRITEBYTECODE="1",
        BATCHQ_SPOOL=str(folder / "var" / "spool"),
    )


@pytest.mark.parametrize("name", RUN)
def test_the_commands_of_a_page_run(tmp_path: Path, name: str) -> None:
    """Each block in its order: files are written, commands end well, and none shows a traceback."""
    told: dict[str, str] = {}
    for block in blocks(DOCS / name):
        if block.title:
            (tmp_path / block.title).write_text(block.text)
        elif block.kind == "sh" and block.run:
            done = subprocess.run(
                ["bash", "-eo", "pipefail", "-c", block.text],
                cwd=tmp_path,
                env=shell(tmp_path),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            told[block.text] = done.stdout
            assert done.returncode == 0, (name, block.line, block.text, done.stdout, done.stderr)
            assert "Traceback" not in done.stderr
    if name == "tutorial.md":
        out = {command: out for text, out in told.items() for command in text.splitlines()}
        # What the text says of them: two runs of the producer, each with one that has no address and one that is busy.
        assert [line.split()[:2] for line in out["batchq dead"].splitlines()[1:3]] == [["2", "send"]] * 2
        assert "requeued 2" in out["batchq requeue --error busy"]
        assert "purged 2" in out['batchq purge --state dead --error "no address" --yes']
        assert "2 jobs enqueued" in out["batchq imports"]
        assert "ConnectionError" in out['batchq show "$(cat id)"'] + out["batchq dead"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_code_of_a_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python in the documentation is Python; where a page is a whole it runs, with its own assertions."""
    monkeypatch.chdir(tmp_path)
    found = [block for block in blocks(page, "python") if not block.title]
    for block in found:
        # A signature whose body is left out still is one line of code.
        compile(block.text, f"{page}:{block.line}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if name_of(page) in WHOLE:
        assert found
        namespace: dict[str, Any] = {"__name__": "page"}
        for block in found:
            exec(compile("\n" * block.line + block.text, str(page), "exec"), namespace)


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


def _keys(value: Any) -> Any:
    return {key: _keys(inner) for key, inner in value.items()} if isinstance(value, dict) else None


def test_the_documented_status_is_the_real_one(run: Run, url: str) -> None:
    """The keys in the reference are those that status gives, no more and no fewer."""
    import json

    [block] = blocks(DOCS / "reference" / "status.md", "json")
    documented = json.loads(block.text)
    run("enqueue", "deliver").ended(0)
    real = run("status", "--json").ended(0).json
    assert set(documented["queues"]["default"]["totals"]) == set(TOTALS)
    for part in ("store", "queues", "spool"):
        assert _keys(documented[part]) == _keys(real[part])
