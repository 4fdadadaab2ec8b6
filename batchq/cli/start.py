"""`batchq start`: reads the settings, loads the app, and hands over to the master. Every setting is a flag here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import click

from batchq.cli.params import F, load
from batchq.config import Settings, rules
from batchq.kinds import Count, Duration, Flag, Queues, Size

if TYPE_CHECKING:
    from batchq.app import App

#: The line of help of each setting, in the order of the help. A test compares them with the settings there are.
HELP = {
    "processes": "Workers: 1 to 256.  [default: one a CPU]",
    "concurrency": "Jobs that each worker runs at once: async handlers, and threads.",
    "threads": "Plain functions may run on threads, with --concurrency.",
    "queues": "A queue to serve, with its weight; again for more.  [default: those of the handlers, and default]",
    "strict_order": "Serve the queues in the order given instead of by weight.",
    "url": "redis://HOST:PORT/DB (also rediss, unix, redis+sentinel, redis+cluster), spool:PATH.  [default: the spool]",
    "prefix": "What all Redis keys begin with.",
    "lease": "A worker's promise to be alive; the time until a lost host's jobs run elsewhere.",
    "shutdown_timeout": "How long a graceful stop waits for running jobs.",
    "grace": "From JobTimeout or JobCancelled in a handler to SIGKILL.",
    "timeout": "Time limit of handlers that have none of their own.",
    "max_attempts": "Tries before a job is dead, where its handler says nothing else.",
    "max_crashes": "Crashes of its worker before a job is dead as poison.",
    "max_lost": "Losses of its host or master before a job is dead as poison.",
    "unknown_grace": "How long a job without a handler is parked before it is dead.",
    "max_jobs": "Replace a worker after about so many jobs.",
    "max_rss": "Replace a worker, between jobs, above this memory.",
    "max_rss_hard": "Kill a worker above this memory: a crash.",
    "sweep": "How often the master looks for what is due, expired or too old.  [default: 1s, or a third of the lease]",
    "watchdog": "What to bear without a claim though jobs are ready and a worker is idle; 0: all.",
    "log_format": "text or json, an event a line.",
    "log_level": "debug, info, warning or error.",
    "metrics_port": "Serve /metrics, /healthz and /readyz there; needs the extra metrics.",
    "metrics_host": "The address for that: 127.0.0.1, or 0.0.0.0 for all.",
    "pid_file": "Where the master's process id is written.",
    "spool": "The file spool: the store without a url.",
    "fallback": "Forward the jobs that waited in the spool of this host while Redis was away.  [default: yes]",
    "fallback_ephemeral": "Handlers may spool jobs also where the spool does not outlive this machine or container.",
    "forward_confirm": "When forwarded jobs leave the spool: reply, waitaof or grace.",
    "ordered": "Handlers go on spooling while jobs of this host wait, so that none overtakes them.",
    "durability": "What a power cut may take from the spool: power, strict or process.",
    "result_keep": "How long results stay where a handler asks for them.",
    "result_max": "The greatest result that is kept.",
    "dead_keep": "How long dead jobs stay.",
    "dead_limit": "How many dead jobs stay, a queue.",
    "max_payload": "The greatest job: name, arguments and options.",
    "max_pending": "How many jobs may be pending in a queue for an enqueue to be taken (1000, orders:500).",
    "when_full": "What a producer does about a full queue: raise, spool, or wait so long.",
    "enqueue_timeout": "How long an enqueue may wait for a store that does not answer.",
    "socket_timeout": "How long a connection may be silent inside a call.",
    "mark_ttl": "How long an enqueue call can be repeated safely.",
    "remember": "How long an id given by a caller is known after its job's end.",
    "debug": "Show the traceback of an error that ends the command.",
}

_DEFAULTS = Settings()

_METAVARS: tuple[tuple[type, str], ...] = (
    (Duration, "DURATION"),
    (Size, "SIZE"),
    (Count, "N"),
    (Queues, "QUEUE[:WEIGHT]"),
)


def takes_settings(command: F) -> F:
    """Adds a flag for every setting but `app`. What they say is read by `config`, like all other sources."""
    known = [key for key in rules() if key != "app"]
    ordered = sorted(known, key=lambda key: list(HELP).index(key) if key in HELP else len(HELP))
    for key in reversed(ordered):
        command = _flag(key)(command)
    return command


def _flag(key: str) -> Callable[[F], F]:
    rule = rules()[key]
    long = "--queue" if key == "queues" else f"--{key.replace('_', '-')}"
    names = [rule.flag, *([long] if rule.flag != long else [])]
    if isinstance(rule.kind, Flag):
        return click.option(f"{long}/--no-{long[2:]}", key, default=None, help=_help(key))
    metavar = next((word for kind, word in _METAVARS if isinstance(rule.kind, kind)), "TEXT")
    if key == "max_pending":
        metavar = "N|QUEUE:N"
    return click.option(*names, key, metavar=metavar, multiple=key == "queues", default=None, help=_help(key))


def _help(key: str) -> str:
    """With the default, where that is a value and the line does not say it in words."""
    line, rule = HELP.get(key, ""), rules()[key]
    default = rule.kind.show(getattr(_DEFAULTS, rule.name))
    told = "[default" in line or default in ("", "none", "false")
    return line if told else f"{line}  [default: {default}]"


class StartCommand(click.Command):
    """`--burst` stands alone or as --burst=ready: what follows it is never its value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        flags = ["--burst=all" if arg == "--burst" else arg for arg in args[:end]]
        return super().parse_args(ctx, flags + args[end:])


@click.command("start", cls=StartCommand)
@click.argument("app", metavar="[APP]", required=False)
@click.option(
    "--burst",
    type=click.Choice(["all", "ready"]),
    metavar="[=ready]",
    help="Exit 0 when nothing is left; =ready does not wait for delayed jobs.",
)
@click.option("--autoreload", is_flag=True, help="For development: reload when a file below this folder changes.")
@takes_settings
def start(
    app: str | None,
    burst: Literal["all", "ready"] | None,
    autoreload: bool,
    queues: tuple[str, ...],
    **flags: Any,
) -> int:
    """Run the jobs of APP (module:app): a master and its workers.

    APP is BATCHQ_APP, or app in [tool.batchq], where it is not given. Without a queue all those that its handlers name
    are served.

    \b
    batchq start -n 8 tasks:app
    batchq start -q critical:5 -q default --metrics-port 9464 tasks:app

    \b
    TERM, INT   claim no more, wait for running jobs, give back the rest;
                again: at once
    QUIT        at once
    HUP         reload: settings and app anew, without losing capacity
    TTIN, TTOU  one worker more, one fewer
    TSTP, CONT  claim nothing more; go on
    USR1        the workers and their stacks to the log
    """
    from batchq.master.handover import Heritage, origin
    from batchq.master.signals import Signals
    from batchq.system import streams

    streams.secure()
    began = origin()
    heritage = Heritage.take()
    # After an exec they are blocked until now, and what came meanwhile is recorded here.
    signals = None if heritage is None else Signals(heritage.signal_fds)
    try:
        loaded, settings, check = _prepare(app, queues, flags)
        if autoreload:
            from batchq.master.autoreload import check_installed

            check_installed()
    except BaseException as error:
        if heritage is not None:
            heritage.give_up(error)
        raise
    if check:
        return 0

    from batchq.master.master import Master

    return Master(
        loaded, settings, began, burst=burst, heritage=heritage, signals=signals, watches_files=autoreload
    ).run()


def _prepare(app: str | None, queues: tuple[str, ...], flags: dict[str, Any]) -> tuple[App, Settings, bool]:
    """The app and the settings; True where this process is to check just that, for a reload."""
    from batchq import log
    from batchq.master.handover import asked_to_check, check_identity

    wanted = asked_to_check()
    flags |= {"app": app, "queues": [part for given in queues for part in given.split(",")] or None}
    loaded, settings, _ = load(flags, "batchq start module:app")
    log.setup_all(settings.log_format, settings.log_level)
    if settings.concurrency > 1:
        # With asyncio behind it, which workers of one job at a time have no use for.
        from batchq.worker.concurrent import check_concurrency

        check_concurrency(loaded.registry, settings)
    if wanted is not None:
        check_identity(wanted, settings)
    return loaded, settings, wanted is not None
