"""A reader who does what a page says, from top to bottom in one folder: writes its files, runs its Python in one
interpreter, types its commands, each as it stands, and lets those that serve go on until their block ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.cli.conftest import environment
from tests.cli.terminal import Terminal
from tests.process.rig import until

from .pages import ROOT, Block, commands

#: A command that takes longer hangs.
DEADLINE_S = 60
#: What a command that goes on says once it is up, and the exit code of its end by SIGTERM (by a key, on a screen).
SERVES = (
    (re.compile(r"batchq start(?!.*--burst)"), "info started", (0,)),
    (re.compile(r"batchq ingress\b"), "listening on", (0,)),
    (re.compile(r"batchq spool forward.*--watch"), "", (130, -signal.SIGTERM)),
)
#: Commands that also tell something by 1.
MAY_TELL = re.compile(r"batchq doctor\b")


class Page(NamedTuple):
    """What a page takes for granted."""

    #: Python before its own.
    given: str = ""
    #: Files that are there.
    files: Mapping[str, str | bytes] = {}
    #: Apps whose pools run beside, once these files of the page are there.
    pools: Mapping[str, str] = {}


class Reader:
    """Reads one page. What it had begun ends with it."""

    def __init__(self, folder: Path, page: Page, places: Mapping[str, str]) -> None:
        """`places`: what stands on the page for something of the reader's own (a host, a port), and what that is."""
        self.folder = folder
        self.page = page
        self.places = places
        self.told: dict[str, str] = {}
        self.namespace: dict[str, Any] = {"__name__": "page"}
        found = Path(sys.executable).parent
        self.env = environment(
            PATH=f"{found}:{os.environ['PATH']}",
            HOME=str(folder),
            PYTHONDONTWRITEBYTECODE="1",
            PYTHONPATH=str(folder),
            BATCHQ_SPOOL=str(folder / "var" / "spool"),
            GITHUB_SECRET="secret",
            INGRESS_TOKEN="token",
        )
        self._serving: list[tuple[str, subprocess.Popen[bytes], tuple[int, ...]]] = []
        self._beside: list[str] = []
        for name, content in page.files.items():
            data = content.encode() if isinstance(content, str) else content
            (folder / name).write_bytes(data)

    def __enter__(self) -> Self:
        self._begin_pools()
        if self.page.given:
            exec(self._placed(self.page.given), self.namespace)
        return self

    def __exit__(self, *exc: object) -> None:
        for _, process, _ in self._serving:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def read(self, block: Block) -> None:
        """Does what the block says."""
        text = self._placed(block.text)
        if block.title:
            (self.folder / block.title).write_text(text)
            if block.title.endswith(".py"):
                compile(text, block.title, "exec")
            self._begin_pools()
        elif block.kind == "python":
            exec(compile("\n" * block.line + text, f"line {block.line}", "exec"), self.namespace)
            for name in [name for name in self.namespace if name.startswith("test_")]:
                self.namespace.pop(name)()
        elif block.kind == "sh":
            beside = len(self._serving)
            for line in commands(block._replace(text=text)):
                self.type(line, f"line {block.line}")
            while len(self._serving) > beside:
                self._end(*self._serving.pop())

    @contextlib.contextmanager
    def on(self, url: str) -> Iterator[None]:
        """With that store meanwhile."""
        before, self.env = self.env, self.env | {"BATCHQ_URL": url}
        yield
        self.env = before

    def finish(self) -> None:
        """What ran beside the page ends in order."""
        while self._serving:
            self._end(*self._serving.pop())

    def _placed(self, text: str) -> str:
        for there, here in self.places.items():
            text = text.replace(there, here)
        if "batch" in self.namespace:
            text = re.sub(r"\bID\b", str(self.namespace["batch"].id), text)
        return text

    def _begin_pools(self) -> None:
        for name, needed in self.page.pools.items():
            if name not in self._beside and (self.folder / needed).exists():
                self._beside.append(name)
                self._serve(f"batchq start -n 1 {name}", "info started", (0,))

    def type(self, line: str, where: str = "") -> None:
        """One command. What it says to later ones (`export`) is kept."""
        if line.startswith("pip install"):
            self._check_extra(line)
        elif line.startswith("batchq top"):
            with Terminal(["bash", "-c", line], self.env, self.folder) as shown:
                shown.until("q quit")
                shown.press("q")
                assert shown.wait() == 0, shown.text
        elif serves := next(((up, codes) for known, up, codes in SERVES if known.search(line)), None):
            self._serve(line, *serves)
        else:
            done = subprocess.run(
                ["bash", "-eo", "pipefail", "-c", f"{line}\nenv -0 > .env-after"],
                cwd=self.folder,
                env=self.env,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
            self.told[line] = done.stdout
            codes = (0, 1) if MAY_TELL.search(line) else (0,)
            assert done.returncode in codes, (where, line, done.stdout, done.stderr)
            assert "Traceback" not in done.stderr, (where, line, done.stderr)
            if line.startswith("export "):
                after = (self.folder / ".env-after").read_bytes().decode().split("\0")
                self.env = dict(one.split("=", 1) for one in after if "=" in one)

    def _check_extra(self, line: str) -> None:
        """What is to be installed is an extra of this package; it is not installed here."""
        [extra] = re.findall(r"'batchq\[([\w-]+)\]'", line)
        assert re.search(rf"^{extra} = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE), line

    def _serve(self, line: str, up: str, codes: tuple[int, ...]) -> None:
        log = self.folder / f".log-{time.monotonic_ns()}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._serving.append((line, process, codes))

        def is_up() -> bool:
            assert process.poll() is None, (line, process.returncode, log.read_text())
            return re.search(up, log.read_text()) is not None

        until(is_up, f"{line} is up", DEADLINE_S)

    def _end(self, line: str, process: subprocess.Popen[bytes], codes: tuple[int, ...]) -> None:
        if process.poll() is None:
            process.terminate()
        assert process.wait(DEADLINE_S) in codes, (line, process.returncode)


def untouched(pages: Sequence[Path]) -> Iterator[str]:
    """What of these pages nobody runs, as `page:line why`."""
    for page in pages:
        for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
            if line.startswith("<!-- not run:"):
                yield f"{page.name}:{number} {line.removeprefix('<!-- not run: ').removesuffix(' -->')}"
