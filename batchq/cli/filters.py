"""The options that choose jobs, alike for every command that lists or moves some: one decorator, one value."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from batchq.cli.params import F, note_unknown_queue, span_ms, takes_queue, with_options

if TYPE_CHECKING:
    from batchq.app import App
    from batchq.selection import Selection

_OPTIONS = with_options(
    takes_queue,
    click.option("--job", metavar="NAME", help="Those of this handler only."),
    click.option("--error", metavar="TEXT", help="Those whose last error holds this text, in whatever case."),
    click.option("--group", metavar="ID", help="Those of this group of `batchq dead`."),
    click.option("--batch", metavar="ID", help="Those of this batch."),
    click.option("--host", metavar="HOST", help="Those that failed last, or run, on this host."),
    click.option("--since", "since_ms", type=span_ms, metavar="DURATION", help="Died, failed or came within 1h, 2d."),
    click.option("--older-than", "older_ms", type=span_ms, metavar="DURATION", help="Died, or else came, before that."),
    click.option("--due", "due_ms", type=span_ms, metavar="DURATION", help="Delayed, and due within that."),
)


class Chosen(NamedTuple):
    """What the options say: the queue (None: all), and what a job there must be like."""

    queue: str | None
    what: Selection

    def __bool__(self) -> bool:
        return self.queue is not None or bool(self.what)

    def __str__(self) -> str:
        return f"{self.what} in {f'queue {self.queue}' if self.queue else 'all queues'}"

    def note_unknown(self, app: App) -> None:
        """Says so where the queue was never used. Raises ConfigError for no name."""
        note_unknown_queue(app, self.queue)

    def ids(self, app: App, states: Sequence[str]) -> dict[str, list[str]]:
        """The ids of the jobs that are meant, by queue: read to the end before anything is moved, or what comes back
        meanwhile would be met again and again."""
        found: dict[str, list[str]] = {}
        for state in states:
            for job in app.jobs(state=state, queue=self.queue, chosen=self.what):
                found.setdefault(job.queue, []).append(job.id)
        return found


def takes_filter(command: F) -> F:
    """Adds --queue, --job, --error, --group, --batch, --host, --since, --older-than and --due; the command gets a
    `Chosen`."""

    @wraps(command)
    def chosen(
        *,
        queue: str | None,
        job: str | None,
        error: str | None,
        group: str | None,
        batch: str | None,
        host: str | None,
        since_ms: int | None,
        older_ms: int | None,
        due_ms: int | None,
        **rest: Any,
    ) -> Any:
        from batchq.selection import Selection

        what = Selection(job, error, host, group, since_ms, older_ms, due_ms, batch)
        return command(chosen=Chosen(queue, what), **rest)

    return _OPTIONS(cast(F, chosen))
