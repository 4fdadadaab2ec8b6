"""Loads the Lua moves: expands their includes, reads from each header which keys it takes, and builds its calls.

The header is the contract: `-- KEYS  1 active  SET ...` names the keys, so callers give no key by hand, and a script
that wants an unknown one fails here. Knows no connection; `store` sends what this module builds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pkgutil import get_data

from batchq.digest import sha1
from batchq.errors import InternalError

Arg = str | bytes | int

#: Calls (a script on a queue) whose keys are remembered.
_CALLS_KEPT = 1024

_INCLUDE = re.compile(r"^--! include (\w+)\n", re.MULTILINE)
_KEY = re.compile(r"^--\s+(?:KEYS\s+)?(\d+)\s+(\w+)\s+(?:LIST|SET|ZSET|HASH|STRING)\b", re.MULTILINE)
_REST = re.compile(r"^--\s+(?:KEYS\s+)?(\d+)\.\.\s+(\w+)\s+(?:LIST|SET|ZSET|HASH|STRING)\b", re.MULTILINE)

#: The keys of a queue that a script may name; `active` and `mark` are one a worker, one a lane.
QUEUE_KEYS = frozenset(
    {"pending", "prioritized", "delayed", "rows", "attempts", "notes", "priority", "active", "leases", "dead"}
    | {"completed", "results", "mark", "given", "wake", "timer", "meta"}
    | {"batched", "batches", "batch_ends", "gates", "passes", "waiters", "passed", "visits"}
    | {"traces", "traced"}
)


@dataclass(frozen=True, slots=True)
class Script:
    """One move: its expanded text, its SHA1, and the names of its keys in order."""

    name: str
    text: bytes
    sha: str
    keys: tuple[str, ...]
    #: The name of the key that stands once for each worker behind the others, where there is one.
    each: str = ""


class Keys:
    """The key names of a prefix. All keys of a queue share the hash tag {queue}: one slot of a cluster."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._of_calls: dict[tuple[str, str], tuple[list[str], int]] = {}

    def of_call(self, script: Script, queue: str) -> tuple[list[str], int]:
        """The keys of a call of that script, and the place of the one that has an owner (-1: none has). They are the
        same for each call: a list not to be changed."""
        found = self._of_calls.get((script.sha, queue))
        if found is None:
            if len(self._of_calls) >= _CALLS_KEPT:
                self._of_calls.clear()
            owned = [place for place, key in enumerate(script.keys) if key in ("active", "mark")]
            found = [self.of(queue, key) for key in script.keys], owned[0] if owned else -1
            self._of_calls[script.sha, queue] = found
        return found

    def of(self, queue: str, name: str, owner: str = "") -> str:
        """The key of that name; `owner` is the worker of `active`, the lane of `mark`."""
        return f"{self.prefix}:{{{queue}}}:{name}:{owner}" if owner else f"{self.prefix}:{{{queue}}}:{name}"

    def top(self, name: str) -> str:
        """A key that belongs to no queue: the registries."""
        return f"{self.prefix}:{name}"


def _read(name: str) -> str:
    # importlib.resources would do the same, and import a megabyte of archives and temporary files for it.
    data = get_data("batchq", f"lua/{name}.lua")
    assert data is not None, "loaders of packages read their files"
    return data.decode()


def expand(name: str, replaced: Mapping[str, str] | None = None) -> str:
    """The text of a script with its includes in place. `replaced` gives other texts for includes, by name."""

    def include(match: re.Match[str]) -> str:
        return (replaced or {}).get(match[1]) or _read(f"include/{match[1]}")

    return _INCLUDE.sub(include, _read(name))


#: The moves out of active as the holders of places at gates make them: how many arguments a job has, behind the first;
#: and what the end says about the other side.
_GATED = {
    "complete": (3, "'good'"),
    "bury": (4, "'good'"),
    "retry": (7, "(argv[i + 4] == 'failed' or argv[i + 4] == 'timed_out') and 'bad' or 'none'"),
    "snooze": (3, "'none'"),
    "release": (3, "'none'"),
    "reap": (5, "'none'"),
}
#: What gates touch, beside what the move does.
_AT_GATES = (
    *("active", "attempts", "rows", "notes", "priority", "given", "delayed", "pending", "prioritized", "meta"),
    *("timer", "wake", "batched", "batches", "batch_ends", "gates", "passes", "waiters", "passed", "visits"),
)
_WITHIN = ("clock", "whole", "hint", "note", "ready", "delay", "ends", "batch", "failed", "pass", "gate", "gated")


def _gate(move: Script, replaced: Mapping[str, str] | None) -> Script:
    """The same move for jobs that may hold places at gates: the script as it is, inside what the gates have to do."""
    step, verdict = _GATED[move.name]
    keys = (*move.keys, *(key for key in _AT_GATES if key not in move.keys))
    named = ", ".join(f"{key} = KEYS[{n}]" for n, key in enumerate(keys, 1))
    around = [(replaced or {}).get(name) or _read(f"include/{name}") for name in _WITHIN]
    text = "\n".join(
        (
            *around,
            f"local k = {{{named}}}",
            "local function move(KEYS, ARGV)",
            move.text.decode(),
            "end",
            f"return gated(k, ARGV, 2, {step}, move, function(argv, i) return {verdict} end)",
        )
    ).encode()
    return Script(move.name, text, sha1(text).hexdigest(), keys, move.each)


def load(name: str, replaced: Mapping[str, str] | None = None) -> Script:
    """Reads `lua/<name>.lua`; `gated/<name>` is the move for those at gates.

    Raises InternalError where its header names keys that no queue has, or skips a number.
    """
    if name.startswith("gated/"):
        return _gate(load(name.removeprefix("gated/"), replaced), replaced)
    text = expand(name, replaced)
    head = _read(name).split("-- ARGV")[0]
    keys = [(int(number), key) for number, key in _KEY.findall(head)]
    if [number for number, _ in keys] != list(range(1, len(keys) + 1)):
        raise InternalError(f"lua/{name}.lua: the keys of its header are not numbered from 1 without gaps")
    rest = _REST.search(head)
    names = tuple(key for _, key in keys)
    unknown = set(names) - QUEUE_KEYS
    if unknown or not names:
        raise InternalError(f"lua/{name}.lua: its header names no keys, or unknown ones: {sorted(unknown)}")
    data = text.encode()
    return Script(name.rpartition("/")[2], data, sha1(data).hexdigest(), names, rest[2] if rest else "")


@cache
def shipped(name: str) -> Script:
    """The script as it is shipped; read once a process."""
    return load(name)


def call(
    script: Script, keys: Keys, queue: str, argv: Iterable[Arg], *, owner: str = "", each: Sequence[str] = ()
) -> tuple[Arg, ...]:
    """The EVALSHA of a script. `owner` is the worker or the lane, `each` the workers whose active sets come behind."""
    names, owned = keys.of_call(script, queue)
    if owner and owned >= 0:
        names = names.copy()
        names[owned] = keys.of(queue, script.keys[owned], owner)
    if each:
        names = [*names, *(keys.of(queue, script.each, worker) for worker in each)]
    return ("EVALSHA", script.sha, len(names), *names, *argv)
