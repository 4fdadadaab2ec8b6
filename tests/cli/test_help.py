"""What answers without an app and without a store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from batchq import __version__
from batchq.cli.group import COMMANDS, cli
from batchq.cli.spool import SpoolGroup
from batchq.config import Settings, rules

from .conftest import Run, environment


def test_help_imports_nothing_heavy(run: Run) -> None:
    """`batchq --help` answers from a table: no store, no JSON, no tables are imported for it."""
    done = run("--help", python=("-X", "importtime")).ended(0)
    imported = {line.rpartition("|")[2].strip() for line in done.err.splitlines() if line.startswith("import time:")}
    assert "click" in imported
    assert not imported & {"redis", "hiredis", "orjson", "rich", "psutil", "tenacity", "sqlite3", "asyncio"}


def test_help_lists_every_command_once(run: Run) -> None:
    """Each command of the table stands in the help with its line."""
    listed = run("--help").ended(0).out.partition("Commands:")[2]
    names = [line.split()[0] for line in listed.splitlines() if line.startswith("  ")]
    assert names[: len(COMMANDS)] == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help(run: Run, name: str) -> None:
    """A command's own help begins with how it is called; -h is --help."""
    long, short = run(name, "--help").ended(0), run(name, "-h").ended(0)
    assert long.out.startswith(f"Usage: batchq {name} ")
    assert long.out == short.out


@pytest.mark.parametrize("name", [*COMMANDS, *(f"spool {name}" for name in SpoolGroup.table)])
def test_each_command_shows_an_example(name: str) -> None:
    """A line that can be copied, whose options there are; nothing wraps on a terminal of 80 columns."""
    command: click.Command | None = cli
    for word in name.split():
        assert isinstance(command, click.Group)
        command = command.get_command(None, word)  # type: ignore[arg-type]
    assert command is not None
    lines = [line.strip() for line in str(command.help).partition("\b")[2].splitlines()]
    assert max(map(len, lines)) <= 78
    examples = [line.partition(f"batchq {name}")[2] for line in lines if f"batchq {name}" in line]
    assert examples
    known = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
    if isinstance(command, click.Group):
        return
    for example in examples:
        words = re.split(r"\s{2,}|\|", example)[0].split()
        assert {word for word in words if word.startswith("-") and len(word) > 1} <= known


def test_the_help_of_start_has_every_setting_with_its_default() -> None:
    """As the code has it; what has none, or is off, says nothing. A queue is named as everywhere, too."""
    start = cli.get_command(None, "start")  # type: ignore[arg-type]
    assert start is not None
    shown = {str(one.name): one for one in start.params if isinstance(one, click.Option)}
    for key, rule in rules().items():
        default = rule.kind.show(getattr(Settings(), rule.name))
        # These are said in words.
        if key not in ("app", "processes", "spool", "fallback"):
            told = f"[default: {default}" in str(shown[key].help)
            assert told == (default not in ("none", "false")) or key in ("url", "queues"), key
    assert shown["queues"].opts == ["-q", "--queue"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(run: Run, shell: str) -> None:
    """The script that the help names, and what it asks for: commands and options."""
    asked = run("completion", shell).ended(0)
    assert "_BATCHQ_COMPLETE" in asked.out
    assert run(env={"_BATCHQ_COMPLETE": f"{shell}_source"}).ended(0).out == asked.out
    words = {"bash": ("batchq d", "1"), "zsh": ("batchq d", "1"), "fish": ("batchq d", "d")}[shell]
    env = {"_BATCHQ_COMPLETE": f"{shell}_complete", "COMP_WORDS": words[0], "COMP_CWORD": words[1]}
    found = run(env=env).ended(0).out
    assert all(name in found for name in ("dead", "doctor", "demo"))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_holds_what_the_modules_hold(name: str) -> None:
    """The table's name is the command's own."""
    command = cli.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    assert command.name == name


def test_version(run: Run) -> None:
    """The version, as in the package."""
    assert run("--version").ended(0).out == f"batchq {__version__}\n"


def test_no_command_shows_the_help(run: Run) -> None:
    """Asked for nothing, it shows what there is, as wrong usage."""
    done = run()
    assert done.code == 2
    assert "Commands:" in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("stats",), "no command 'stats'. Did you mean status"),
        (("xyzzy",), "no command 'xyzzy'"),
        (("--nonsense",), "No such option '--nonsense'"),
        (("status", "--jsn"), "--json"),
        (("show",), "ID"),
        (("show", "a", "b"), "b"),
    ],
)
def test_wrong_usage_is_one_line(run: Run, args: tuple[str, ...], said: str) -> None:
    """Unknown commands and options name what is near; exit 2, one line."""
    done = run(*args).ended(2, said)
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("args", [("--help",), ("status",), ("status", "--json"), ("--version",)])
def test_a_full_disk_behind_stdout_is_a_failure(run: Run, url: str, args: tuple[str, ...]) -> None:
    """/dev/full: exit 1 and one line that says why."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "batchq", *args],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(BATCHQ_URL=url),
            timeout=30,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "batchq: error: stdout: No space left on device\n")


@pytest.mark.parametrize("args", [("--help",), ("status",), ("status", "--json")])
def test_a_reader_that_left_is_no_failure(url: str, args: tuple[str, ...]) -> None:
    """A closed pipe behind stdout: exit 0, and nothing is said."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "batchq", *args],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(BATCHQ_URL=url),
            timeout=30,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_of_something_else_is_not_stdout_s(url: str, tmp_path: Path) -> None:
    """Where no more files can be opened, wherever that is met: nobody is to look at the output for it."""
    (tmp_path / "shop.py").write_text("from batchq import App\n\napp = App()\n")
    said = ""
    for most in range(6, 10):
        limited = ["sh", "-c", f'ulimit -n {most} && exec "$@"', "sh", sys.executable, "-m", "batchq"]
        done = subprocess.run(
            [*limited, "start", "-n", "1", "--burst", "shop:app"],
            capture_output=True,
            text=True,
            env=environment(BATCHQ_URL=url),
            cwd=tmp_path,
            timeout=30,
            check=False,
        )
        said += done.stderr
    assert "Too many open files" in said
    assert "stdout" not in said


def test_the_rest_of_an_error(run: Run) -> None:
    """An error is a line; -v shows its traceback as well."""
    env = {"BATCHQ_URL": "redis://127.0.0.1:1/0"}
    assert "Traceback" not in run("jobs", env=env).ended(4).err
    done = run("-v", "jobs", env=env)
    assert done.code == 4
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("batchq: error: ")
