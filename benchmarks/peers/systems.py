"""The systems that are compared: what each file of `adapters` says on top, read without importing it."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import environments

ADAPTERS = Path(__file__).resolve().parent / "adapters"
#: batchq first: the others are held against it.
OURS = ("batchq", "batchq_spool", "batchq_spool_unsynced")
#: What batchq's spools are held against, in their order.
IN_FILES = ("huey_sqlite", "huey_sqlite_unsynced")


@dataclass(frozen=True, slots=True)
class System:
    """One system, as its adapter describes it. See adapters/__init__.py for the words."""

    name: str
    #: The adapter's first line.
    title: str
    packages: tuple[str, ...]
    about: dict[str, str]
    best: dict[str, str]
    note: str
    is_node: bool
    #: Its jobs are in files: there is no Redis to measure.
    has_spool: bool
    #: The only questions that it is asked; empty: all.
    asked: tuple[str, ...]
    #: What it needs beside to deliver webhooks.
    delivers: tuple[str, ...]

    def answers(self, question: str) -> bool:
        return not self.asked or question in self.asked

    def configuration(self, question: str) -> str:
        return self.best.get(question, next(iter(self.about)))

    def install(self) -> list[str]:
        """Makes the environment where it is not there yet; answers how its child is started. Raises NotInstallable."""
        if self.is_node:
            environments.node(self.name, self.packages)
            return ["node", str(ADAPTERS / f"{self.name}.mjs")]
        return self._child(environments.python(self.name, self.packages) if self.packages else Path(sys.executable))

    def install_to_deliver(self) -> list[str]:
        """The same, in an environment of its own that has an HTTP client as well."""
        return self._child(environments.python(f"{self.name}-delivers", (*self.packages, *self.delivers)))

    def _child(self, interpreter: Path) -> list[str]:
        return [str(interpreter), "-m", "peers.child", self.name]


def read(name: str) -> System:
    tree = ast.parse((ADAPTERS / f"{name}.py").read_text())
    said: dict[str, Any] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id.isupper() and value is not None:
            try:
                said[target.id] = ast.literal_eval(value)
            except ValueError:
                continue  # Not one of the constants: it is made of other things.
    return System(
        name,
        (ast.get_docstring(tree) or name).partition("\n")[0].rstrip("."),
        tuple(said["PACKAGES"]),
        said["ABOUT"],
        said["BEST"],
        said["NOTE"],
        said.get("NODE", False),
        said.get("SPOOL", False),
        tuple(said.get("ASKED", ())),
        tuple(said.get("DELIVERS", ())),
    )


def names() -> list[str]:
    """All there are, batchq first."""
    found = sorted(path.stem for path in ADAPTERS.glob("*.py") if path.stem != "__init__")
    return [*OURS, *(name for name in found if name not in OURS)]
