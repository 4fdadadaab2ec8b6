"""What one `batchq import` was asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, as it was given."""

    job: str | None
    queue: str | None
    format: str | None
    encoding: str | None
    delimiter: str | None
    quote: str | None
    header: bool | None
    columns: str | None
    types: str | None
    positional: bool | None
    envelope: bool
    new_ids: bool
    id_column: str | None
    priority: int
    delay_ms: int
    max_attempts: int | None
    app: str | None
    strict: bool
    dry_run: bool
    rejects: str | None
    name: str | None
    restart: bool
    state_dir: str | None
    wait: bool
    #: None: the setting.
    max_pending: int | None
    patience_ms: int
    as_json: bool
    url: str | None
    prefix: str | None
