"""`batchq check`: would `batchq start` work here? For CI, and before a reload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from batchq.cli.output import Column, Table, fields, json_line, named, write
from batchq.cli.params import load, quiet_events
from batchq.kinds import show_duration

if TYPE_CHECKING:
    from batchq.app import App
    from batchq.config import Settings


@click.command("check")
@click.argument("app", metavar="[APP]", required=False)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("--url", metavar="URL", help="The store, instead of the app's own.")
@click.option("--prefix", metavar="PREFIX", help="What all Redis keys begin with.")
def check(app: str | None, as_json: bool, url: str | None, prefix: str | None) -> None:
    """Import APP, list its handlers and the settings with their sources, and try the store.

    Exit codes: 2 a setting is wrong, 3 the app can't be loaded, 4 the store can't be reached, 0 all is well.

    \b
    batchq check tasks:app
    """
    quiet_events()
    loaded, settings, spec = load({"app": app, "url": url, "prefix": prefix}, "batchq check module:app")
    with loaded:
        # Tried before anything is printed: what is on stdout then is the whole answer.
        stats = _try(loaded)
    report = _report(spec, loaded, settings, stats)
    if as_json:
        json_line(report)
    else:
        _print(report)


def _try(app: App) -> dict[str, Any]:
    """Reads from the store. Raises StoreError."""
    store = app.store
    store.now_ms()
    info = store.info()
    return {"url": info.url, "kind": info.kind, "version": info.version, "queues": store.queues()}


def _report(spec: str, app: App, settings: Settings, store: dict[str, Any]) -> dict[str, Any]:
    handlers = []
    for name in app.registry.names():
        one = app.registry.get(name)
        timeout_ms = settings.timeout_ms if one.timeout_ms is None else one.timeout_ms
        attempts = settings.max_attempts if one.max_attempts is None else one.max_attempts
        handlers.append(
            {
                "name": name,
                "queue": one.queue,
                "max_attempts": attempts,
                "timeout_ms": timeout_ms,
                "keep_ms": one.keep_ms,
                "async": one.is_async,
            }
        )
    effective = {key: {"value": value, "source": source} for key, value, source in settings.effective()}
    return {"app": spec, "store": store, "handlers": handlers, "settings": effective}


def _print(report: dict[str, Any]) -> None:
    store = report["store"]
    fields(
        [
            ("app", report["app"]),
            ("store", f"{store['url']}  {named(store['kind'], store['version'])}, {len(store['queues'])} queues"),
        ]
    )
    write("\n")
    if report["handlers"]:
        titles = ("HANDLER", "QUEUE", "ATTEMPTS", "TIMEOUT", "RESULT")
        handlers = Table(*(Column(title, right=title == "ATTEMPTS") for title in titles))
        handlers.page(
            (
                one["name"],
                one["queue"],
                str(one["max_attempts"]),
                "none" if one["timeout_ms"] is None else show_duration(one["timeout_ms"]),
                show_duration(one["keep_ms"]) if one["keep_ms"] else "not kept",
            )
            for one in report["handlers"]
        )
    else:
        write("No handlers: every job would be parked, and dead after unknown_grace.\n")
    write("\n")
    settings = Table(Column("SETTING", whole=True), Column("VALUE", fold=True), Column("FROM", fold=True))
    settings.page((key, one["value"], one["source"]) for key, one in report["settings"].items())
