"""What a master is told, by signals and through its control socket, in its own verbs."""

from __future__ import annotations

import signal
from typing import Protocol

from batchq.config import MAX_PROCESSES
from batchq.errors import BatchqError


class Commanded(Protocol):
    """The verbs."""

    @property
    def is_stopping(self) -> bool: ...

    @property
    def processes(self) -> int: ...

    def stop(self, why: str, *, at_once: bool) -> None: ...

    def reload(self) -> None: ...

    def resize(self, want: int) -> None: ...

    def be_quiet(self, quiet: bool) -> None: ...

    def dump(self) -> None: ...

    def status(self) -> dict[str, object]: ...


def obey(master: Commanded, number: int) -> None:
    """What a signal asks for."""
    match number:
        case signal.SIGTERM | signal.SIGINT:
            master.stop(signal.Signals(number).name, at_once=master.is_stopping)
        case signal.SIGQUIT:
            master.stop("SIGQUIT", at_once=True)
        case signal.SIGHUP:
            master.reload()
        case signal.SIGTTIN:
            master.resize(master.processes + 1)
        case signal.SIGTTOU:
            master.resize(master.processes - 1)
        case signal.SIGTSTP:
            master.be_quiet(True)
        case signal.SIGCONT:
            master.be_quiet(False)
        case signal.SIGUSR1:
            master.dump()


def answer(master: Commanded, request: dict[str, object]) -> dict[str, object]:
    """What a request asks for, and the answer. Raises BatchqError for one that is refused."""
    match request:
        case {"do": "ping"}:
            pass
        case {"do": "status"}:
            return master.status()
        case {"do": "workers"}:
            return {"workers": master.status()["workers"]}
        case {"do": "stop", **options}:
            master.stop("asked to", at_once=bool(options.get("at_once")))
        case {"do": "reload"}:
            master.reload()
        case {"do": "quiet" | "resume" as word}:
            master.be_quiet(word == "quiet")
        case {"do": "resize", "processes": int(want)} if 1 <= want <= MAX_PROCESSES:
            master.resize(want)
        case {"do": "resize"}:
            raise BatchqError(f"resize: expected processes from 1 to {MAX_PROCESSES}")
        case _:
            raise BatchqError("do: expected ping, status, workers, stop, reload, quiet, resume or resize")
    status = master.status()
    return {"pid": status["pid"], "state": status["state"]}
