"""One `batchq import`: what its options mean for each file, and the files one after the other."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from batchq.cli.endings import DONE, FAILED, say
from batchq.cli.output import clean, utf8
from batchq.clock import SYSTEM
from batchq.config import masked
from batchq.errors import ConfigError
from batchq.importing.build import Terms, check_delay, enveloped, plain, types_of
from batchq.importing.formats import Opened, Wanted, check_character, open_rows
from batchq.importing.lane import Ledger, Memory, default_folder, stream_lane
from batchq.importing.options import Options
from batchq.importing.part import Part, in_words
from batchq.importing.progress import Watch, sums, tell
from batchq.importing.rejects import Rejects
from batchq.importing.rows import Bad, Refused, Row, Unreadable
from batchq.importing.run import Counts
from batchq.importing.source import Source, open_source
from batchq.importing.wait import ENDS, wait
from batchq.job import check_queue
from batchq.registry import DEFAULT_QUEUE, HandlerSpec, check_name

if TYPE_CHECKING:
    from batchq.app import App


class Session:
    """One call of the command."""

    def __init__(self, app: App, options: Options, watch: Watch) -> None:
        """Raises UnknownHandler where the handler's annotations are asked for and it is not there."""
        self._app = app
        self._options = options
        self._watch = watch
        #: The totals of each queue when its import began.
        self._baseline: dict[str, dict[str, int]] = {}
        #: The handler, where its code is here. Envelopes may be for any.
        self._handler: HandlerSpec | None = None
        job = options.job
        if job is not None and not options.envelope and (job in app.registry or options.types == "handler"):
            self._handler = app.registry.get(job)
        #: Of all files, where a path was given.
        self._shared: Rejects | None = None
        self._arity = None if self._handler is None else self._handler.arity()

    def run(self, files: Sequence[str]) -> int:
        """Imports them; answers the exit code."""
        self._check_all(files)
        code = DONE
        total = Counts()
        for path in files:
            counts = Counts()
            code = max(code, self._import(path, counts))
            total.add(counts)
            if code and self._options.strict:
                break
        if len(files) > 1:
            self._tell_total(total)
        if self._options.wait and self._wait():
            code = FAILED
        return code

    def _check_all(self, files: Sequence[str]) -> None:
        """Heads of all regular files, where there are several: before the first row of the first."""
        for path in files if len(files) > 1 else ():
            if os.path.isfile(path):
                with self._open(path):
                    pass

    # -- one file

    def _import(self, path: str, counts: Counts) -> int:
        options, app = self._options, self._app
        with self._open(path) as (source, opened):
            terms = self._terms(opened, SYSTEM.now_us() // 1000)
            memory: Memory | None = None
            if source.is_stream and not options.dry_run:
                say(f"batchq: {source.shown} can't be read a second time: an interrupted import of it can't go on")
            elif not options.dry_run:
                memory = self._remember(source, opened, terms)
                # What a delay counts from when it is asked whether it can be stored: the same in every run.
                terms = self._terms(opened, memory.state.began_ms)
            rejects = self._rejects(source)
            part = Part(
                source=source,
                store=None if options.dry_run else app.store,
                lane=stream_lane() if memory is None else memory.state.lane,
                memory=memory,
                rejects=rejects,
                watch=self._watch,
                counts=counts,
                baseline=self._baseline,
                strict=options.strict,
                patience_ms=options.patience_ms,
                as_json=options.as_json,
                max_pending=self._max_pending,
            )
            with closing(part):
                # Beside the file: taken away by what is known to be its next run.
                if rejects is not None:
                    rejects.prepare()
                if opened.shown:
                    self._watch.say(f"batchq: {clean(source.shown)}: {clean(opened.shown)}; queue {terms.queue}")
                return part.run(opened.rows, enveloped(terms) if options.envelope else plain(terms))

    def _max_pending(self, queue: str) -> int:
        return self._options.max_pending or self._app.settings.pending_limit(queue)

    @contextmanager
    def _open(self, path: str) -> Iterator[tuple[Source, Opened]]:
        """An input and its rows, its header checked. Raises ConfigError where it is refused."""
        try:
            source = open_source(path)
        except Refused as error:
            raise ConfigError(f"{clean(path)} {error}") from error
        with closing(source):
            try:
                opened = open_rows(source, self._wanted(), self._types if self._options.types == "handler" else None)
            except Refused as error:
                raise ConfigError(f"{clean(source.shown)}: {error}") from error
            except Unreadable as error:
                # Not even the header came out whole.
                opened = Opened(_broken(error), "", {})
            self._check_header(opened, clean(source.shown))
            yield source, opened

    def _wanted(self) -> Wanted:
        options = self._options
        quote, delimiter = options.quote, options.delimiter
        if quote is not None:
            quote = "" if quote in ("none", "") else check_character(quote, "--quote")
        return Wanted(
            format=options.format,
            encoding=options.encoding,
            delimiter=None if delimiter is None else check_character(delimiter, "--delimiter"),
            quote=quote,
            header=options.header,
            columns=None if options.columns is None else tuple(options.columns.split(",")),
            types=options.types,
            positional=options.positional,
            envelope=options.envelope,
            max_payload=self._app.settings.max_payload_bytes,
        )

    def _types(self, names: Sequence[str], positional: bool) -> dict[str, str]:
        """The columns' types by the handler's annotations."""
        assert self._handler is not None
        if self._handler.batch:
            raise ConfigError(
                f"--types handler: {self._handler.name} takes jobs by the batch: no annotation says what one of them "
                "is called with; write --types COL:TYPE,..."
            )
        return types_of(self._handler.function, self._handler.name, names, positional=positional)

    def _check_header(self, opened: Opened, shown: str) -> None:
        """What a header tells before its rows: the id's column, and whether the handler takes these at all."""
        names, id_column = opened.names, self._options.id_column
        if names and id_column is not None and id_column not in names:
            raise ConfigError(f"{shown}: --id: there is no column {id_column!r:.60}, only {', '.join(names)}")
        if names and self._arity is not None:
            try:
                if opened.positional:
                    self._arity.check(tuple(names), {})
                else:
                    self._arity.check((), dict.fromkeys(names))
            except TypeError as error:
                raise ConfigError(f"{shown}: its columns are not what the handler takes: {error}") from error

    def _terms(self, opened: Opened, began_ms: int) -> Terms:
        options = self._options
        queue = DEFAULT_QUEUE if self._handler is None else self._handler.queue
        # An empty name is a wrong one, and not none.
        queue = queue if options.queue is None else options.queue
        id_column = options.id_column
        if id_column is not None and opened.positional:
            if opened.names:
                id_column = str(opened.names.index(id_column) + 1)
            elif not id_column.isdecimal() or int(id_column) < 1:
                raise ConfigError(f"--id: rows without names count from 1; {id_column!r:.60} is no such number")
        try:
            check_delay(options.delay_ms, began_ms)
        except ValueError as error:
            raise ConfigError(f"--in: {error}") from error
        return Terms(
            job=None if options.job is None else check_name(options.job),
            queue=check_queue(queue),
            id_column=id_column,
            priority=options.priority,
            delay_ms=options.delay_ms,
            max_attempts=options.max_attempts,
            max_payload=self._app.settings.max_payload_bytes,
            new_ids=options.new_ids,
            began_ms=began_ms,
            arity=self._arity,
        )

    def _rejects(self, source: Source) -> Rejects | None:
        """Where its rejected rows go: one place for all files where it was named. None: nowhere, in a dry run."""
        if self._options.rejects is not None:
            if os.path.exists(self._options.rejects) and os.path.samestat(
                os.stat(self._options.rejects), os.fstat(source.file.fileno())
            ):
                raise ConfigError(f"--rejects: {self._options.rejects} is the file that is imported; name another path")
            if self._shared is None:
                self._shared = Rejects(self._options.rejects)
            return self._shared
        if self._options.dry_run:
            return None
        return Rejects(("stdin" if source.path == "-" else source.path) + ".rejects.ndjson")

    def _remember(self, source: Source, opened: Opened, terms: Terms) -> Memory:
        """What is known of this import. Raises ConfigError where it can't go on from there."""
        settings, options = self._app.settings, self._options
        url = settings.store_url
        # The password may change, and is nobody's business.
        store = os.path.realpath(settings.own_spool) if url.startswith("spool:") else f"{masked(url)} {settings.prefix}"
        name = utf8(f"name:{options.name}" if options.name is not None else os.path.realpath(source.path))
        facts = opened.facts | {
            "v": 1,
            "job": terms.job,
            "queue": terms.queue,
            "id": terms.id_column,
            "priority": terms.priority,
            "in": terms.delay_ms,
            "max_attempts": terms.max_attempts,
            "envelope": options.envelope,
            "new_ids": options.new_ids,
            "handler": "" if self._handler is None else str(inspect.signature(self._handler.function)),
        }
        ledger = Ledger(options.state_dir or default_folder(settings), name, terms.job or "", utf8(store))
        return ledger.begin(
            source.fingerprint(),
            facts,
            restart=options.restart,
            mark_ttl_ms=settings.mark_ttl_ms,
            shown=clean(source.shown),
        )

    # -- all of them

    def _tell_total(self, total: Counts) -> None:
        if self._options.as_json:
            tell({"event": "total", **sums(total)})
        else:
            tell(f"in all: {in_words(total, dry_run=self._options.dry_run)}")

    def _wait(self) -> int:
        """Watches the second stage; answers how many jobs have died."""
        try:
            ended = wait(self._app.store, self._baseline, self._watch)
        except KeyboardInterrupt:
            self._watch.close()
            say("batchq: the rows are in; the same command goes on watching")
            raise
        self._watch.close()
        for queue, facts in ended.items():
            if self._options.as_json:
                tell({"event": "settled", "queue": queue, **facts})
            else:
                tell(f"queue {queue}: {', '.join(f'{facts[name]} {name}' for name in ENDS)}; nothing is left in it")
        if ended:
            say("batchq: counted since the import began, whoever enqueued there")
        return sum(facts["dead"] for facts in ended.values())


def _broken(error: Unreadable) -> Iterator[Row | Bad]:
    """Rows of which there is not even the first."""
    raise error
    yield
