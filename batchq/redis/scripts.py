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
from batchq.lifecycle import VERBS

Arg = str | bytes | int

#: Calls (a script on a queue) whose keys are remembered.
_CALLS_KEPT = 1024

_INCLUDE = re.compile(r"^--! include (\w+)\n", re.MULTILINE)
_KEY = re.compile(r"^--\s+(?:KEYS\s+)?(\d+)\s+(\w+)\s+(LIST|SET|ZSET|HASH|STRING)\b", re.MULTILINE)
_REST = re.compile(r"^--\s+(?:KEYS\s+)?(\d+)\.\.\s+(\w+)\s+(?:LIST|SET|ZSET|HASH|STRING)\b", re.MULTILINE)

#: A command in the text of a script.
COMMAND = re.compile(r"redis\.call\('(\w+)'")
#: Where a script looks at keys before it writes. Redis keeps the writes of one that fails half-way: a key of another
#: type, somebody's slip, has to fail before the first. Looks cost time, so that what runs for each job has few.
_CHECK = re.compile(r"^ *--! check ([\w ]+)\n", re.MULTILINE)
#: A command that fails where a key is of another type.
_LOOK = {
    "LIST": "redis.call('LLEN', KEYS[%d])\n",
    "SET": "redis.call('SCARD', KEYS[%d])\n",
    "ZSET": "redis.call('ZCARD', KEYS[%d])\n",
    "HASH": "redis.call('HSTRLEN', KEYS[%d], '')\n",
    "STRING": "redis.call('GET', KEYS[%d])\n",
}

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
#: What stands around such a move.
_WITHIN = ("clock", "whole", "hint", "note", "ready", "delay", "ends", "batch", "failed", "pass", "gate", "gated")


def _gate(name: str, text: str, keys: Iterable[str], replaced: Mapping[str, str] | None) -> str:
    """The text of the same move for jobs that may hold places at gates: as it is, inside what the gates have to do."""
    step, verdict = _GATED[name]
    named = ", ".join(f"{key} = KEYS[{n}]" for n, key in enumerate(keys, 1))
    around = [(replaced or {}).get(include) or _read(f"include/{include}") for include in _WITHIN]
    return "\n".join(
        (
            *around,
            f"local k = {{{named}}}",
            "--! check all",
            "local function move(KEYS, ARGV)",
            _CHECK.sub("", text),
            "end",
            f"return gated(k, ARGV, 2, {step}, move, function(argv, i) return {verdict} end)",
        )
    )


def _keys_of(name: str) -> tuple[dict[str, str], str]:
    """The keys that the header of a script names, in their order, with their types; and the one that stands once for
    each worker behind them."""
    head = _read(name).split("-- ARGV")[0]
    found = _KEY.findall(head)
    if [int(number) for number, _, _ in found] != list(range(1, len(found) + 1)):
        raise InternalError(f"lua/{name}.lua: the keys of its header are not numbered from 1 without gaps")
    keys = {key: kind for _, key, kind in found}
    if keys.keys() - QUEUE_KEYS or not keys:
        raise InternalError(
            f"lua/{name}.lua: its header names no keys, or unknown ones: {sorted(keys.keys() - QUEUE_KEYS)}"
        )
    rest = _REST.search(head)
    return keys, rest[2] if rest else ""


def load(name: str, replaced: Mapping[str, str] | None = None) -> Script:
    """Reads `lua/<name>.lua`; `gated/<name>` is the move for those at gates.

    Raises InternalError where its header names keys that no queue has, or skips a number.
    """
    plain = name.removeprefix("gated/")
    text = expand(plain, replaced)
    keys, each = _keys_of(plain)
    if plain != name:
        keys |= {key: kind for key, kind in _keys_of("admit")[0].items() if key not in keys}
        text = _gate(plain, text, keys, replaced)
    looks = {key: _LOOK[kind] % n for n, (key, kind) in enumerate(keys.items(), 1)}
    data = _CHECK.sub(lambda match: _look(looks, match[1]), text).encode()
    return Script(plain.rpartition("/")[2], data, sha1(data).hexdigest(), tuple(keys), each)


def _look(looks: Mapping[str, str], names: str) -> str:
    """The looks at these keys. `all`: those of batches where there is one."""
    if names != "all":
        return "".join(looks[key] for key in names.split())
    batches = [key for key in looks if key.startswith("batch")]
    lines = [looks[key] for key in looks if key not in batches]
    if batches:
        at = list(looks).index("meta") + 1
        lines += [
            f"if redis.call('HEXISTS', KEYS[{at}], 'batched') == 1 then\n",
            *map(looks.__getitem__, batches),
            "end\n",
        ]
    return "".join(lines)


@cache
def shipped(name: str) -> Script:
    """The script as it is shipped; read once a process."""
    return load(name)


@cache
def commands() -> tuple[str, ...]:
    """Every command that a move makes."""
    return tuple(sorted({command for verb in VERBS for command in COMMAND.findall(expand(verb))}))


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
