"""`batchq import`: its options. The work is done in `batchq.importing`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from batchq.cli.endings import USAGE, complain, ended_by_sigterm
from batchq.cli.output import clean
from batchq.cli.params import delay_ms as read_delay
from batchq.cli.params import reach, reaches_store, span_ms, takes_json, whole
from batchq.errors import ConfigError

if TYPE_CHECKING:
    from batchq.app import App
    from batchq.importing.options import Options


@click.command("import")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--job", metavar="NAME", help="The handler that each row is for.")
@click.option("-q", "--queue", metavar="QUEUE", help="[default: the handler's where its app is loaded, else default]")
@click.option(
    "--format",
    type=click.Choice(["csv", "tsv", "ndjson", "json"]),
    help="[default: by the file's name, else by its first character]",
)
@click.option("--encoding", metavar="NAME", help="Of the text.  [default: by its byte order mark, else utf-8]")
@click.option("--delimiter", metavar="CHAR", help="CSV: between cells; tab for a tab.  [default: found in the head]")
@click.option("--quote", metavar="CHAR", help='CSV: around cells; none for no quotes at all.  [default: "]')
@click.option("--header/--no-header", default=None, help="CSV: the first row names the columns.  [default: it does]")
@click.option("--columns", metavar="A,B,...", help="CSV: the columns' names; with --header instead of those there.")
@click.option(
    "--types",
    metavar="COL:TYPE,...",
    help="CSV: str, int, float, bool, json or date; a ? behind it makes an empty cell null. "
    "`handler`: by the handler's annotations.  [default: every cell is a string]",
)
@click.option(
    "--args/--kwargs",
    "positional",
    default=None,
    help="A row is the handler's positional, or its keyword arguments.  [default: CSV with names and JSON objects are "
    "keyword, the rest positional]",
)
@click.option(
    "--envelope", is_flag=True, help="Each object says of itself what job it is, as `batchq export` writes it."
)
@click.option("--new-ids", is_flag=True, help="Envelopes: leave their ids aside.")
@click.option("--id", "id_column", metavar="COLUMN", help="The column, or key, that is the job's id.")
@click.option("--priority", type=whole(-100, 100), default="0", metavar="N", help="-100 to 100, higher runs first.")
@click.option("--in", "delay_ms", type=read_delay, default="0", metavar="DURATION", help="Not before: 10s, 5m, 2h, 1d.")
@click.option("--max-attempts", type=whole(1, 2**31 - 1), metavar="N", help="Tries before a job is dead.")
@click.option("--app", metavar="APP", help="module:app, for --types handler.  [default: BATCHQ_APP]")
@click.option("--strict", is_flag=True, help="Stop at the first row that becomes no job.")
@click.option("--dry-run", is_flag=True, help="Read and check everything, change nothing.")
@click.option("--rejects", metavar="PATH", help="Where rejected rows go.  [default: FILE.rejects.ndjson]")
@click.option("--name", metavar="NAME", help="The import's name, in place of the file's path: the file may move.")
@click.option("--restart", is_flag=True, help="Import all rows anew, though an earlier run had enqueued some.")
@click.option("--state-dir", metavar="DIR", help="What is remembered of imports.  [default: SPOOL.imports]")
@click.option("--wait", is_flag=True, help="Then watch until no job stands in the queue any more.")
@click.option(
    "--max-pending",
    type=whole(1, 2**31 - 1),
    metavar="N",
    help="Wait while so many jobs are pending in the queue.  [default: the setting max_pending]",
)
@click.option(
    "--patience",
    "patience_ms",
    type=span_ms,
    default="30s",
    metavar="DURATION",
    help="How long to wait for a store that is away.  [default: 30s]",
)
@takes_json
@reaches_store
def import_(files: tuple[str, ...], **given: Any) -> int:
    """Enqueue a job for each row of CSV, TSV, NDJSON or a JSON array; - is stdin.

    gzip, bzip2, xz and zstd are recognised. The same command again goes on where it was interrupted: no row is
    missing, none is doubled. Rows that can't be read are passed by and kept in a file with their lines and reasons;
    the exit code is 0 only when there were none. `batchq imports` tells how far it is.

    \b
    batchq import orders.csv --job load -q orders --wait
    zcat dump.ndjson.gz | batchq import - --job load
    """
    from batchq.importing.options import Options

    options = Options(**given)
    _check(files, options)
    _look_at_all(files)
    from batchq.importing.progress import chosen
    from batchq.importing.session import Session

    watch = chosen(as_json=options.as_json)
    with ended_by_sigterm(), _app(options) as app:
        try:
            return Session(app, options, watch).run(files)
        finally:
            watch.close()


def _check(files: Sequence[str], options: Options) -> None:
    """Options that exclude each other. Raises UsageError."""
    wrong = [
        (not options.envelope and options.job is None, "--job is missing: which handler is a row for? (or --envelope)"),
        (options.envelope and options.id_column is not None, "--id: an envelope has its own id"),
        (options.envelope and options.positional is not None, "--args, --kwargs: an envelope holds both"),
        (options.new_ids and not options.envelope, "--new-ids: of use with --envelope only"),
        (options.name is not None and len(files) > 1, "--name names one import; give one FILE"),
        (options.name is not None and files[0] == "-", "--name: stdin can't be read again, so its import can't go on"),
        (files.count("-") > 1, "stdin can be read once"),
        (options.wait and options.dry_run, "--wait: a dry run enqueues nothing to wait for"),
    ]
    for is_wrong, message in wrong:
        if is_wrong:
            raise click.UsageError(message, click.get_current_context())


def _look_at_all(files: Sequence[str]) -> None:
    """Every path before the first row of the first: a line for each that can't be read, exit 2."""
    from batchq.importing.rows import Refused
    from batchq.importing.source import look_at

    bad = False
    for path in files:
        try:
            look_at(path)
        except Refused as error:
            complain(f"{clean(path)} {error}")
            bad = True
    if bad:
        raise click.exceptions.Exit(USAGE)


def _app(options: Options) -> App:
    """The app on the store that is meant; with its handlers where these are asked for."""
    app = reach(options.url, options.prefix, fallback=False)
    if options.app is None and (options.types != "handler" or len(app.registry)):
        return app
    from batchq.loading import load_app

    spec = options.app or app.settings.app
    if spec is None:
        raise ConfigError("--types handler: which app has it? give --app module:app, or set BATCHQ_APP")
    app = load_app(spec)
    app.configure({"url": options.url, "prefix": options.prefix, "fallback": False})
    return app
