"""Throw-away environments: what batchq is compared with is installed from PyPI, or npm, and never into batchq's own.

They stand in benchmarks/.environments, which git ignores, and are made when first asked for; one whose list of
packages has changed is made anew. Removing that folder removes all of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / ".environments"
#: What an environment was made of; written last, so that one that was cut off is made again.
STAMP = "made-of.json"


class NotInstallable(Exception):
    """An environment can't be made here: the text says what was tried and what was answered."""


def python(name: str, packages: Sequence[str]) -> Path:
    """The interpreter of an environment that has these packages. Raises NotInstallable."""
    there = FOLDER / name

    def make() -> None:
        _run([sys.executable, "-m", "venv", str(there)])
        _run([str(there / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages])

    _ensure(there, [sys.version, *packages], make)
    return there / "bin" / "python"


def node(name: str, packages: Sequence[str]) -> Path:
    """A folder whose node_modules has these npm packages. Raises NotInstallable, also where there is no Node."""
    there = FOLDER / name
    missing = [tool for tool in ("node", "npm") if shutil.which(tool) is None]
    if missing:
        raise NotInstallable(f"{name}: {' and '.join(missing)} not found on PATH; install Node.js to measure it")

    def make() -> None:
        there.mkdir(parents=True)
        (there / "package.json").write_text('{"private": true}')
        _run(["npm", "install", "--prefix", str(there), "--no-fund", "--no-audit", "--loglevel=error", *packages])

    _ensure(there, list(packages), make)
    return there


def _ensure(there: Path, made_of: list[str], make: Callable[[], None]) -> None:
    with _lock(there):
        stamp = there / STAMP
        if stamp.exists() and json.loads(stamp.read_text()) == made_of:
            return
        shutil.rmtree(there, ignore_errors=True)
        print(f"making an environment: {' '.join(made_of[-4:])}", file=sys.stderr, flush=True)
        make()
        stamp.write_text(json.dumps(made_of))


@contextlib.contextmanager
def _lock(there: Path) -> Iterator[None]:
    """Two benchmarks may want the same environment."""
    there.parent.mkdir(parents=True, exist_ok=True)
    with (there.parent / f"{there.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        told = " ".join((done.stderr or done.stdout).split()[-60:])
        raise NotInstallable(f"`{' '.join(command[-4:])}` ended with {done.returncode}: {told}")
