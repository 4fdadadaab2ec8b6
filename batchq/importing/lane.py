"""The identity of an import and what is remembered of it, in a small file beside the spool: the same command goes on.

Whether a chunk is in says the store alone, by its mark. This file says which import a command means: it finds a file
that has changed, options that have changed, a second importer at work, and marks that may be forgotten by now.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from batchq.clock import SYSTEM
from batchq.config import Settings
from batchq.errors import ConfigError
from batchq.job import random_name
from batchq.jsons import orjson

#: The state of an import that nobody has touched for so long goes.
FORGET_S = 60 * 86_400
#: Between two writes while it runs.
WRITE_S = 0.5
#: The last note may be this much younger than the last mark.
SLACK_MS = 3_600_000


@dataclass(slots=True)
class State:
    """What the file holds."""

    #: The path, or the name that was given.
    source: str
    #: Of the content, see Source.fingerprint.
    content: dict[str, object]
    #: Everything that says what rows become and where chunks end.
    options: dict[str, object]
    #: Drawn anew by --restart.
    nonce: str = ""
    began_ms: int = 0
    updated_ms: int = 0
    #: Something was sent.
    sent: bool = False
    #: Its last row was read.
    finished: bool = False
    #: So many were rejected.
    rejected: int = 0
    #: How far this run is, for those who look: rows, and bytes of the file.
    rows: int = 0
    read: int = 0
    #: The totals of the queues when it began.
    baseline: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def lane(self) -> str:
        """Names this import for ever: the same file, store and options give the same lane."""
        return "import-" + _hash([self.source, self.content, self.options, self.nonce])


def stream_lane() -> str:
    """For an input that can't be read a second time."""
    return "import-" + random_name(16) + random_name(16)


def _hash(value: object) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def default_folder(settings: Settings) -> str:
    """Where imports are remembered unless somebody says otherwise: beside the spool."""
    return f"{settings.own_spool.rstrip('/')}.imports"


class Ledger:
    """The place of one import's state on this host."""

    def __init__(self, folder: str, source: str, job: str, store: str) -> None:
        self._folder = folder
        self._source = source
        self._path = os.path.join(folder, _hash([source, job, store]) + ".json")

    def begin(
        self,
        content: dict[str, object],
        options: dict[str, object],
        *,
        restart: bool,
        mark_ttl_ms: int,
        shown: str,
    ) -> Memory:
        """Goes on with the import that was begun here, or begins one. Raises ConfigError where the folder can't be
        used, where another process is at it, and where the earlier import is another one or too old."""
        lock = self._take(shown)
        try:
            before = self._read()
            now = SYSTEM.now_us() // 1000
            fresh = State(self._source, content, options, began_ms=now, updated_ms=now)
            if restart:
                fresh.nonce = random_name(16)
            elif before is not None:
                fresh.nonce = before.nonce
                if before.sent and _goes_on(before, fresh, mark_ttl_ms, shown):
                    return Memory(before, self._path, lock, was_finished=before.finished)
            return Memory(fresh, self._path, lock, was_finished=False)
        except BaseException:
            os.close(lock)
            raise

    def _take(self, shown: str) -> int:
        """The lock of this import: a descriptor."""
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            lock = os.open(self._path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ConfigError(
                f"--state-dir: {self._folder}: {error.strerror}; what is known of an import is kept there, so that it "
                "can go on; name a folder that this user can write to"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise ConfigError(f"{shown}: another process is importing it at this moment; wait until it ends") from None
        # Its age says when it was last in use.
        os.utime(lock)
        self._tidy()
        return lock

    def _read(self) -> State | None:
        try:
            with open(self._path, "rb") as file:
                fields: dict[str, Any] = orjson.loads(file.read())
            return State(**fields)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(
                f"--state-dir: {self._path} is not what batchq wrote ({error}); if no import of this file is under "
                "way, remove it"
            ) from error

    def _tidy(self) -> None:
        """Removes what nobody has touched for long."""
        oldest = SYSTEM.now_us() / 1e6 - FORGET_S
        with suppress(OSError):
            for entry in os.scandir(self._folder):
                if entry.name.endswith((".json", ".json.lock", ".json.new")) and entry.stat().st_mtime < oldest:
                    os.unlink(entry.path)


def _goes_on(before: State, now: State, mark_ttl_ms: int, shown: str) -> bool:
    """Whether this is the same import once more; False for a new one. Raises ConfigError where nobody can tell."""
    same_content, same_options = before.content == now.content, before.options == now.options
    if same_content and same_options:
        age_ms = now.updated_ms - before.updated_ms
        if not before.finished and age_ms > mark_ttl_ms - min(SLACK_MS, mark_ttl_ms // 2):
            raise ConfigError(
                f"{shown}: its import was interrupted longer ago than chunks are remembered (mark_ttl): nobody knows "
                "which of the last rows are in; look, and say --restart to import all of it anew"
            )
        if before.finished and age_ms > mark_ttl_ms - min(SLACK_MS, mark_ttl_ms // 2):
            raise ConfigError(
                f"{shown}: it was imported before, to its end, and its chunks are remembered no more (mark_ttl); say "
                "--restart to import all of it once more"
            )
        return True
    changed = "the file has changed" if not same_content else _difference(before.options, now.options)
    if not before.finished:
        raise ConfigError(
            f"{shown}: an import of it was interrupted, and {changed} since: the rows that are in can't be told from "
            "those that are not. Finish it with the file and the command as they were, or say --restart to import all "
            "of it anew, with what is in already"
        )
    if same_content:
        raise ConfigError(
            f"{shown}: it was imported before, and {changed} since; say --restart to import all of it once more"
        )
    if before.rejected:
        raise ConfigError(
            f"{shown}: its last import rejected {before.rejected} rows, and the file has changed since; if these were "
            "mended in it, import them alone, from a file of their own; if this is new data, say --restart"
        )
    # Tomorrow's file under today's name.
    return False


def _difference(before: dict[str, object], now: dict[str, object]) -> str:
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return f"what is asked for ({', '.join(names)}) has changed"


class Memory:
    """The state of the import under way, kept on the disk. Nobody else has it at this time."""

    def __init__(self, state: State, path: str, lock: int, *, was_finished: bool) -> None:
        self.state = state
        #: An earlier run had come to the end.
        self.was_finished = was_finished
        self._path = path
        self._lock = lock
        self._written = 0.0

    def sending(self) -> None:
        """A chunk is about to be sent. The first one is noted before: from then on this import is under way."""
        if not self.state.sent:
            self.state.sent = True
            self._write(flush=True)

    def note(self, rows: int, read: int, rejected: int) -> None:
        """So far, when it is time."""
        self.state.rows, self.state.read, self.state.rejected = rows, read, rejected
        if self.state.sent and not self.was_finished and time.monotonic() - self._written >= WRITE_S:
            self._write()

    def end(self, *, finished: bool, rejected: int) -> None:
        """How this run ended."""
        if self.state.sent and not self.was_finished:
            self.state.finished, self.state.rejected = finished, rejected
            self._write(flush=True)

    def _write(self, *, flush: bool = False) -> None:
        """Raises ConfigError."""
        self._written = time.monotonic()
        self.state.updated_ms = SYSTEM.now_us() // 1000
        try:
            fd = os.open(self._path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(orjson.dumps(asdict(self.state), option=orjson.OPT_INDENT_2))
                file.flush()
                if flush:
                    os.fsync(file.fileno())
            os.rename(self._path + ".new", self._path)
        except OSError as error:
            raise ConfigError(f"--state-dir: {self._path}: {error.strerror}; make room there") from error

    def close(self) -> None:
        os.close(self._lock)
