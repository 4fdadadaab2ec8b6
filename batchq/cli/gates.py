"""`batchq gates`, `trip`, `mend`: limits and circuit breakers, and circuits by hand."""

from __future__ import annotations

import click

from batchq.cli.endings import flush, say
from batchq.cli.output import Column, Table, json_line, span, write
from batchq.cli.params import note_unknown_queue, reach, reaches_store, span_ms, takes_json, takes_queue


@click.command("gates")
@takes_queue
@takes_json
@reaches_store
def gates(queue: str | None, as_json: bool, url: str | None, prefix: str | None) -> None:
    """List the gates at which anything is going on: jobs that have passed (BUSY), jobs that wait, circuits.

    A gate is a limit of a handler, a key or a queue; its jobs wait delayed, without an attempt. With --json one object
    a line.

    \b
    batchq gates --queue webhooks
    """
    with reach(url, prefix, only_look=True) as app:
        note_unknown_queue(app, queue)
        now_ms = app.store.now_ms()
        found = [(name, gate) for name in ([queue] if queue else app.store.queues()) for gate in app.store.gates(name)]
    if as_json:
        for name, gate in found:
            json_line({"queue": name, **gate._asdict()}, indent=False)
    elif found:
        numbers = [Column(title, right=True) for title in ("BUSY", "LIMIT", "RATE", "WAITING", "FAILURES")]
        Table(Column("QUEUE"), Column("GATE", least=16), *numbers, Column("CIRCUIT", whole=True)).page(
            (
                *(name, gate.name, str(gate.busy), str(gate.limit or "-")),
                f"{gate.rate}/{span(gate.period_ms)}" if gate.rate else "-",
                *(str(gate.waiting), str(gate.failures)),
                f"open, {span(max(0, gate.until_ms - now_ms))} left" if gate.phase == "open" else gate.phase,
            )
            for name, gate in found
        )
    flush()
    if not found:
        say("batchq: nothing is going on at any gate")


@click.command("trip")
@click.argument("queue", metavar="QUEUE")
@click.argument("gate", metavar="GATE")
@click.option("--for", "for_ms", type=span_ms, default="1h", show_default=True, metavar="DURATION", help="How long.")
@reaches_store
def trip(queue: str, gate: str, for_ms: int, url: str | None, prefix: str | None) -> None:
    """Open the circuit of GATE by hand: its jobs wait, without an attempt. Then one of them probes.

    What runs goes on; where it fails meanwhile it waits again. `batchq gates` lists names; they are made of the
    handler's name and the key.

    \b
    batchq trip webhooks deliver:example.org:443 --for 2h
    """
    with reach(url, prefix) as app:
        note_unknown_queue(app, queue)
        app.trip(gate, queue, for_ms / 1000)
    write(f"{queue}  {gate}  open\n")


@click.command("mend")
@click.argument("queue", metavar="QUEUE")
@click.argument("gate", metavar="GATE")
@reaches_store
def mend(queue: str, gate: str, url: str | None, prefix: str | None) -> None:
    """Close the circuit of GATE by hand: its jobs pass again, those that wait first.

    \b
    batchq mend webhooks deliver:example.org:443
    """
    with reach(url, prefix) as app:
        note_unknown_queue(app, queue)
        app.mend(gate, queue)
    write(f"{queue}  {gate}  closed\n")
