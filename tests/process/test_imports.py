"""Imports. Each module that a master imports stands in its memory and in that of all its workers."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Megabytes for what a pool of plain functions never does; all of them were imported once.
UNWANTED = (
    "_hashlib",
    "asyncio",
    "concurrent.futures.thread",
    "decimal",
    "importlib.resources",
    "redis",
    "rich",
    "ssl",
    "tempfile",
)
MASTER = "import batchq.cli.start, batchq.master.master, batchq.redis.store, batchq.fallback.forward, sys"


def test_master_of_plain_functions_imports_nothing_that_its_workers_never_use() -> None:
    """On Redis, with the fallback; by a fresh interpreter."""
    code = f"{MASTER}; print(*(name for name in {UNWANTED!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_coroutines_find_asyncio_imported_before_the_fork() -> None:
    """Imported by each worker it would be in the memory of each."""
    code = f"""{MASTER}
from batchq import App
from batchq.config import load
from batchq.worker.runner import Runner
app = App("memory:")
@app.job
def plain(): ...
Runner(app.registry, load({{}}, environ={{}}))
before = "asyncio" in sys.modules
@app.job
async def waits(): ...
Runner(app.registry, load({{}}, environ={{}}))
print(before, "asyncio" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("looked_up", ["dataclasses", "datetime", "enum", "json", "uuid"])
def test_an_interrupt_among_the_imports_is_an_interrupt(looked_up: str) -> None:
    """At the moment in which a module is looked for that C code asks for: it would take the answer for granted."""
    code = f"""import importlib.abc, os, signal, sys
class Interrupts(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {looked_up!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
for name in [name for name in sys.modules if name.split(".")[0] == {looked_up!r}]:
    del sys.modules[name]
try:
    import batchq.job
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
