"""The table of commands. `batchq --help` reads it alone: a command's module is imported when it is called."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click

from batchq.cli.endings import USAGE, say, show_tracebacks

#: name -> (the module that holds the command under that name, its line of help). The order is that of the help.
COMMANDS: dict[str, tuple[str, str]] = {
    "start": ("start", "Run the app's jobs: a master and its workers."),
    "enqueue": ("enqueue", "Enqueue one job by its handler's name."),
    "import": ("import_", "Enqueue a job for each row of CSV, NDJSON or JSON files."),
    "imports": ("imports", "How far the imports of this host are."),
    "export": ("export", "Write jobs, with their errors, as lines that can be imported."),
    "status": ("status", "Queues, workers and store at a glance."),
    "top": ("top", "Watch queues and workers on one live screen."),
    "jobs": ("jobs", "List jobs by state and queue."),
    "dead": ("dead", "What jobs died of: how many, by which error."),
    "batches": ("batches", "List batches of jobs and how far they are."),
    "batch": ("batches", "One batch; --watch until it is finished."),
    "show": ("jobs", "One job with its attempts and errors."),
    "requeue": ("moves", "Send dead jobs back to their queue."),
    "cancel": ("moves", "End jobs that wait or run."),
    "purge": ("purge", "Remove the jobs of one state."),
    "pause": ("queues", "Let no worker claim from a queue."),
    "resume": ("queues", "Let workers claim from a queue again."),
    "gates": ("gates", "Limits and circuit breakers, and who waits there."),
    "trip": ("gates", "Open a circuit by hand: its jobs wait."),
    "mend": ("gates", "Close a circuit by hand."),
    "workers": ("status", "The workers of all masters."),
    "stop": ("control", "Stop this host's master in order."),
    "reload": ("control", "Settings and app anew, without losing capacity."),
    "quiet": ("control", "Let this host's master claim nothing more."),
    "unquiet": ("control", "Let it go on."),
    "ping": ("control", "Does this host's master answer? For health checks."),
    "ingress": ("ingress", "Receive events over HTTP, acknowledged once they are durable."),
    "spool": ("spool", "Look after the spool on this host."),
    "backoff": ("backoff", "What a retry policy means: table, plot, and a herd of jobs."),
    "config": ("config", "Every setting, its value and where that comes from."),
    "doctor": ("doctor", "Look for what is wrong here, and say what to do."),
    "check": ("check", "Try the app, the settings and the store."),
    "completion": ("completion", "The script that completes commands in a shell."),
    "demo": ("demo", "See it all on generated work, in a minute."),
}

EPILOG = """\b
What is slow now?             batchq top, or batchq workers
Which handler fails most?     batchq dead --retrying, or --by job
On which host?                batchq dead --by host --since 1h
What waits longest?           batchq status (LAG), batchq jobs -s pending -n 1
What is due in the next hour? batchq jobs --due 1h
Why did that job die?         batchq show ID
How far is the import?        batchq imports
Is the spool empty?           batchq spool status
What is wrong here?           batchq doctor

\b
Completion: eval "$(batchq completion bash)", or zsh, or fish.

\b
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the app can't be loaded,
4 the store can't be reached, 5 the watchdog gave up, 130 interrupted.

\b
Settings are flags, what the code gives to App(...), BATCHQ_* variables and
[tool.batchq] in pyproject.toml, in this order. `batchq config` lists them."""

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class LazyGroup(click.Group):
    """A group that knows its commands from a table of (module, line of help)."""

    table = COMMANDS

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            # Asked for nothing: what there is, as a message and not as an answer.
            say(ctx.get_help())
            ctx.exit(USAGE)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module = import_module(f"batchq.cli.{self.table[cmd_name][0]}")
        # `import` is a word of Python's own.
        command: click.Command = getattr(module, "import_" if cmd_name == "import" else cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.table.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.table and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r:.60}.{near(args[0], list(self.table))}")
        return super().resolve_command(ctx, args)


def near(word: str, known: Sequence[str]) -> str:
    """ " Did you mean ...?", or nothing where no known word is near."""
    from difflib import get_close_matches

    found = get_close_matches(word, known, n=3)
    return f" Did you mean {' or '.join(found)}?" if found else ""


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from batchq import __version__

        click.echo(f"batchq {__version__}")
        ctx.exit()


def _verbose(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        show_tracebacks(True)


@click.group(cls=LazyGroup, context_settings=CONTEXT, epilog=EPILOG)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Say the version.")
@click.option(
    "-v", "--verbose", is_flag=True, expose_value=False, callback=_verbose, help="The traceback of an error, too."
)
def cli() -> None:
    """Jobs that must not be lost and must be fast, on Redis and on files."""
