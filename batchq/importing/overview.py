"""How far the imports of this host are: read from what each keeps on the disk, while it runs and after."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from batchq.importing.lane import State
from batchq.jsons import orjson


class Import(NamedTuple):
    """One import that was begun here."""

    state: State
    #: A process is at it now.
    running: bool

    @property
    def word(self) -> str:
        return "finished" if self.state.finished else "running" if self.running else "stopped"

    @property
    def part(self) -> float | None:
        """How much of the file was read, 0 to 1; None where nobody knows."""
        size = self.state.content.get("size")
        if self.state.finished:
            return 1.0
        return min(1.0, self.state.read / size) if isinstance(size, int) and size else None

    def as_dict(self) -> dict[str, Any]:
        """As one JSON object; keys are stable."""
        state = self.state
        return {
            "source": state.source,
            "state": self.word,
            "rows": state.rows,
            "rejected": state.rejected,
            "part": self.part,
            "job": state.options.get("job"),
            "queue": state.options.get("queue"),
            "began_ms": state.began_ms,
            "updated_ms": state.updated_ms,
        }


def imports(folder: str) -> Iterator[Import]:
    """Those that are known in this folder, the latest first. What can't be read is left out: `import` says why."""
    found = []
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".json")]
    except FileNotFoundError:
        names = []
    for name in names:
        path = os.path.join(folder, name)
        try:
            with open(path, "rb") as file:
                found.append(Import(State(**orjson.loads(file.read())), _is_held(path + ".lock")))
        except (OSError, ValueError, TypeError):
            continue
    yield from sorted(found, key=lambda one: (not one.running, -one.state.updated_ms))


def _is_held(path: str) -> bool:
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
