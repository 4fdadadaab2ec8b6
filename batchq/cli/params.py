"""Options that several commands have, and how their values are read. Wrong ones end as wrong usage, in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from batchq.cli.endings import say, show_tracebacks
from batchq.clock import MAX_FIRE_MS

if TYPE_CHECKING:
    from batchq.app import App
    from batchq.config import Settings

F = TypeVar("F", bound=Callable[..., Any])

#: States that can be listed, in the order in which people look at them.
STATES = ("active", "pending", "delayed", "dead", "completed")

_WHOLE = re.compile(r"-?(?:0|[1-9]\d{0,17})", re.ASCII)


def whole(low: int, high: int) -> Callable[[str], int]:
    """Reads a whole number in plain ASCII digits: int() takes 1_000 and the digits of other scripts as well."""

    def number(text: str) -> int:
        if _WHOLE.fullmatch(text) and low <= int(text) <= high:
            return int(text)
        raise click.BadParameter(f"expected a whole number from {low} to {high}, found {text!r:.100}")

    return number


def _duration_ms(text: str, shown: str) -> int:
    from batchq.kinds import duration_ms

    try:
        return duration_ms(text)
    except ValueError:
        raise click.BadParameter(
            f"{shown!r:.100} is no duration; write 10s, 5m, 2h, 7d, 500ms or a number of seconds"
        ) from None


def span_ms(text: str) -> int:
    """Reads a length of time."""
    ms = _duration_ms(text, text)
    if ms > MAX_FIRE_MS:
        raise click.BadParameter(
            f"{text!r:.100} is too long; no delay ends after 7 September 2039, and no job is older"
        )
    return ms


def delay_ms(text: str) -> int:
    """Reads how long from now a job is to wait. What is negative is now."""
    if text.startswith("-"):
        _duration_ms(text[1:], text)
        return 0
    return span_ms(text)


def instant(text: str) -> datetime:
    """Reads an aware time in ISO 8601."""
    try:
        at = datetime.fromisoformat(text if text.isascii() else "")
    except ValueError:
        raise click.BadParameter(f"{text!r:.100} is no time; write it as 2030-01-31T09:00:00+01:00") from None
    if at.utcoffset() is None:
        raise click.BadParameter(f"{text!r:.100} has no time zone, so it names no instant; append Z or +01:00")
    return at


def reaches_store(command: F) -> F:
    """Adds the options that say which store is meant: see `reach`."""
    return with_options(
        click.option("--url", metavar="URL", help="redis://HOST:PORT/DB, spool:PATH ...  [default: BATCHQ_URL]"),
        click.option("--prefix", metavar="PREFIX", help="What all Redis keys begin with.  [default: bq]"),
    )(command)


def takes_json(command: F) -> F:
    """Adds --json."""
    return click.option("--json", "as_json", is_flag=True, help="For programs.")(command)


def takes_spool(command: F) -> F:
    """Adds --spool."""
    return click.option("--spool", "path", metavar="PATH", help="The spool.  [default: the store's, or BATCHQ_SPOOL]")(
        command
    )


def configured() -> str:
    """The store's own directory where that is a spool, else the one that producers fall back to."""
    settings = reach().settings
    return settings.own_spool


def takes_queue(command: F) -> F:
    """Adds --queue, as a filter."""
    return click.option("-q", "--queue", metavar="QUEUE", help="This queue only.")(command)


def takes_yes(command: F) -> F:
    """Adds --yes."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask.")(command)


def asks(yes: bool) -> bool:
    """Whether a person sits at the terminal who wants to be asked; a program means what it says."""
    import sys

    return not yes and all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def confirm(question: str, yes: bool) -> None:
    """Asks, where somebody can be asked. Raises click.Abort for a no."""
    if asks(yes):
        click.confirm(question, abort=True, err=True)


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in the order of the help."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def takes_limit(default: int, shown: str = "At most so many; 0 for all.") -> Callable[[F], F]:
    """Adds --limit."""
    return click.option(
        "-n", "--limit", type=whole(0, 2**31 - 1), default=str(default), show_default=True, metavar="N", help=shown
    )


def note_unknown_queue(app: App, queue: str | None) -> None:
    """Says so where nothing was ever enqueued to that queue: most likely a slip. Raises ConfigError for no name."""
    from batchq.job import check_queue

    if queue is None:
        return
    known = app.store.queues()
    if check_queue(queue) not in known:
        say(f"batchq: nothing was ever enqueued to queue {queue}; known are: {', '.join(known) or 'none'}")


def warn_of_password(url: object) -> None:
    """Says that a password among the arguments is no secret on this host."""
    from batchq.config import masked

    if isinstance(url, str) and masked(url) != url:
        say("batchq: --url holds a password that every user of this host can see; put the url into BATCHQ_URL")


#: How long a look may wait, twice, for a server that is connected and silent, unless socket_timeout says otherwise.
LOOK = "1s"


def quiet_events() -> None:
    """The command itself says what went wrong: not a second time as an event."""
    import logging

    logging.getLogger("batchq").addHandler(logging.NullHandler())


def load(flags: dict[str, object], command: str) -> tuple[App, Settings, str]:
    """The app that the flags, the environment or the file name, under all its settings; and its name there.

    Raises UsageError where none is named (`command` shows how it would be written), ConfigError, AppError.
    """
    from batchq import config
    from batchq.loading import load_app

    warn_of_password(flags.get("url"))
    # Read before the app is imported, so that a wrong flag is told at once; and again below what the app's code says.
    settings = config.load(flags)
    show_tracebacks(settings.debug)
    if settings.app is None:
        raise click.UsageError(
            f"no app given; write `{command}`, or set BATCHQ_APP, or app in [tool.batchq]", click.get_current_context()
        )
    app = load_app(settings.app)
    return app, app.configure(flags), settings.app


def reach(
    url: str | None = None,
    prefix: str | None = None,
    *,
    only_look: bool = False,
    brief: bool = False,
    fallback: bool | None = None,
    spec: str | None = None,
) -> App:
    """An App on the store that the flags, the environment or the file name; no handlers are needed for it.

    Where none of them names a store, but an app is configured, the app's own code says which one: the same store
    that `batchq start` would serve. With `only_look` a spool that is not there is not made; with `brief` a silent
    server is given up sooner: health checks must answer. `spec`: the command line's app, instead of the configured one.
    Raises ConfigError, AppError.
    """
    from batchq import config
    from batchq.app import App
    from batchq.errors import AppError

    warn_of_password(url)
    quiet_events()
    flags: dict[str, object] = {"url": url, "prefix": prefix, "fallback": fallback, "app": spec}
    settings = config.load(flags)
    show_tracebacks(settings.debug)
    if settings.url is None and settings.app is not None and "spool" not in settings.sources:
        from batchq.loading import load_app

        try:
            app = load_app(settings.app)
        except AppError as error:
            raise AppError(
                f"{error}\nThe app was asked which store it uses; --url or BATCHQ_URL name it too"
            ) from error
    else:
        app = App()
    if brief and "socket_timeout" not in settings.sources:
        flags["socket_timeout"] = LOOK
    app.configure(flags)
    if only_look:
        app.only_look()
    return app
