"""What ps shows for master and workers, where setproctitle is installed (the extra `title`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache


@cache
def _setter() -> Callable[[str], None] | None:
    try:
        from setproctitle import setproctitle
    except ImportError:
        return None
    setter: Callable[[str], None] = setproctitle
    return setter


class Title:
    """`batchq: who: what`, written where it is another; nothing where it can't be set."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._what = ""

    def say(self, what: str) -> None:
        """What it does now."""
        if what != self._what and (set_title := _setter()) is not None:
            self._what = what
            set_title(f"batchq: {self._who}: {what}")
