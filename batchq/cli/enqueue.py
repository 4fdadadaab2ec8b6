"""`batchq enqueue`: one job, without the handler's code."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from typing import Any

import click

from batchq.cli.endings import OutputFailed, flush, say
from batchq.cli.output import json_line, write
from batchq.cli.params import delay_ms as read_delay
from batchq.cli.params import instant, reach, reaches_store, takes_json, whole
from batchq.errors import ConfigError

#: How the API's arguments are spelled here.
_FLAGS = {"delay": "--in", "at": "--at", "job_id": "--id", "queue": "--queue", "name": "NAME"}


@click.command("enqueue")
@click.argument("name", metavar="NAME")
@click.option("--args", "args_text", metavar="JSON", help="Positional arguments: a JSON list, or - for stdin.")
@click.option("--kwargs", "kwargs_text", metavar="JSON", help="Named arguments: a JSON object, or - for stdin.")
@click.option("-q", "--queue", metavar="QUEUE", help="[default: default]")
@click.option("--in", "delay_ms", type=read_delay, metavar="DURATION", help="Not before: 10s, 5m, 2h, 1d from now.")
@click.option("--at", type=instant, metavar="TIME", help="Not before: ISO 8601 with its zone.")
@click.option("--id", "job_id", metavar="ID", help="Its id: a second job of that id is not enqueued.")
@click.option("--priority", type=whole(-100, 100), default="0", metavar="N", help="-100 to 100, higher runs first.")
@click.option("--max-attempts", type=whole(1, 2**31 - 1), metavar="N", help="Tries before it is dead.")
@click.option(
    "--fallback/--no-fallback",
    "fallback",
    default=None,
    help="While Redis is away the job waits in this host's spool.  [default: yes]",
)
@takes_json
@reaches_store
def enqueue(
    name: str,
    args_text: str | None,
    kwargs_text: str | None,
    queue: str | None,
    delay_ms: int | None,
    at: datetime | None,
    job_id: str | None,
    priority: int,
    max_attempts: int | None,
    fallback: bool | None,
    as_json: bool,
    url: str | None,
    prefix: str | None,
) -> None:
    """Enqueue one job for the handler NAME and print its id.

    The handler's code is not needed. An id that is known already enqueues nothing, says so on stderr, and is printed
    all the same, with exit code 0; --json prints {"id", "created", "queue", "spooled"}.

    \b
    batchq enqueue deliver --args '["https://example.org/hook"]' --in 10m
    """
    if delay_ms is not None and at is not None:
        raise click.UsageError("--in and --at exclude each other; give one")
    if args_text == "-" == kwargs_text:
        raise click.UsageError("--args and --kwargs can't both be read from stdin; give one of them as text")
    app = reach(url, prefix, fallback=fallback)
    limit = app.settings.max_payload_bytes
    args = _json("--args", args_text, list, 'a list: [1, "two"]', limit)
    kwargs = _json("--kwargs", kwargs_text, dict, 'an object: {"name": 1}', limit)
    with app:
        try:
            ref = app.enqueue(
                name,
                args or [],
                kwargs or {},
                queue=queue,
                priority=priority,
                job_id=job_id,
                max_attempts=max_attempts,
                delay=None if delay_ms is None else timedelta(milliseconds=delay_ms),
                at=at,
            )
        except ConfigError as error:
            raise _spelled(error) from error
        except (TypeError, ValueError) as error:
            # What only the whole call shows: --args and --kwargs together nested too deep.
            raise click.UsageError(str(error)) from error
    if not ref.created:
        say(f"batchq: job {ref.id} is known in queue {ref.queue}: nothing was enqueued")
    if ref.spooled:
        say(f"batchq: the store can't be reached: job {ref.id} waits in this host's spool")
    _print(ref.id, {"id": ref.id, "created": ref.created, "queue": ref.queue, "spooled": ref.spooled}, as_json)


def _print(job_id: str, answer: dict[str, Any], as_json: bool) -> None:
    try:
        if as_json:
            json_line(answer)
        else:
            write(f"{job_id}\n")
        flush()
    except OutputFailed as error:
        # The job is in: whoever sends it again must know.
        raise OutputFailed(f"{error}; job {job_id} is enqueued all the same") from error


def _json(flag: str, text: str | None, kind: type, form: str, limit: int) -> Any:
    """The option's value, of that kind. Raises UsageError that names the place where it is wrong."""
    if text is None:
        return None
    from batchq.payload import pack, parse

    raw = _stdin(flag, limit) if text == "-" else text
    try:
        value = parse(raw, flag)
        if not isinstance(value, kind):
            raise ValueError(f"{flag}: expected {form}, found {_kind(value)}")
        pack(value, flag)
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error), click.get_current_context()) from error
    return value


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _stdin(flag: str, limit: int) -> bytes:
    """What stands on stdin, as far as a job could hold it: escapes and blanks may make it four times as long."""
    if sys.stdin is None:
        raise click.UsageError(f"{flag}: stdin is closed; give the JSON as text")
    raw = sys.stdin.buffer.read(4 * limit + 1)
    if len(raw) > 4 * limit:
        raise click.UsageError(
            f"{flag}: more than {4 * limit} bytes on stdin, max_payload is {limit}; "
            "store the data elsewhere and send its name"
        )
    return raw


def _spelled(error: ConfigError) -> ConfigError:
    """The API's error with the flag's name in front."""
    name, colon, rest = str(error).partition(":")
    return ConfigError(f"{_FLAGS.get(name, name)}{colon}{rest}")
