"""`batchq ingress`: an HTTP server that makes jobs of events."""

from __future__ import annotations

import signal
import socket

import click

from batchq.cli.endings import say
from batchq.cli.params import reach, reaches_store, whole
from batchq.errors import ConfigError
from batchq.system.listening import listen


@click.command("ingress")
@click.option("--host", default="127.0.0.1", metavar="HOST", help="Where to listen.  [default: 127.0.0.1]")
@click.option("--port", type=whole(0, 65535), default="8080", metavar="PORT", help="[default: 8080; 0: any]")
@click.option("--sources", metavar="FILE", help="TOML: who may send what, secrets, limits (docs/webhooks.md).")
@click.option("--token", "token", metavar="TOKEN", help="A bearer token that senders must have; env:NAME for secrecy.")
@click.option("--rate", metavar="RATE", help="Events taken, such as 100/s; more are answered 429.")
@click.option("--max-body", metavar="SIZE", help="The greatest body.  [default: 512KiB]")
@reaches_store
def ingress(
    host: str,
    port: int,
    sources: str | None,
    token: str | None,
    rate: str | None,
    max_body: str | None,
    url: str | None,
    prefix: str | None,
) -> int:
    """Receive events: POST /q/QUEUE/JOB is answered 202 with the job's id once the job is durable.

    It is in the store, or in this host's spool while Redis is away; where neither takes it the answer is 503 with
    Retry-After. The job gets the raw body and chosen headers. An Idempotency-Key header, or the provider's delivery
    id, makes an event that is sent again the same job. TERM and INT end it in order.

    \b
    batchq ingress --port 8080 --token env:INGRESS_TOKEN
    curl -d hello -H 'Idempotency-Key: 7' http://127.0.0.1:8080/q/QUEUE/JOB
    """
    try:
        import uvicorn

        from batchq.ingress.web import make_web
    except ImportError as error:
        raise ConfigError(f"ingress: needs an extra ({error}); pip install 'batchq[ingress]'") from None
    from batchq import config as settings_of
    from batchq import log
    from batchq.ingress.sources import make_source, read_sources

    flags = {"tokens": [token] if token else None, "rate": rate, "max_body": max_body}
    given = {key: value for key, value in flags.items() if value is not None}
    if sources is not None and given:
        raise click.UsageError("--sources says it all: --token, --rate and --max-body are keys of a source there")
    environ = settings_of.environment()
    known = read_sources(sources, environ) if sources else [make_source(given, environ, "the flags")]
    app = reach(url, prefix)
    log.setup(app.settings.log_format, app.settings.log_level)
    for source in known:
        if source.is_open:
            log.event("warning", "open_source", source=source.name, path=source.path, why="anybody may send to it")
    config = uvicorn.Config(
        make_web(app, known), host=host, port=port, log_level="warning", access_log=False, timeout_graceful_shutdown=20
    )
    server = uvicorn.Server(config)
    listening = listen_at(host, port)

    def end(number: int, frame: object) -> None:
        # Before uvicorn listens to signals. Later it ends in order, and then raises what it has heard once more.
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    shown = f"[{host}]" if ":" in host else host
    say(f"listening on http://{shown}:{listening.getsockname()[1]}/q/QUEUE/JOB")
    server.run(sockets=[listening])
    app.close()
    return 0 if server.started else 1


def listen_at(host: str, port: int) -> socket.socket:
    """A socket that listens there, and whose connections send what they have at once. Raises ConfigError."""
    listening = listen(host, port, f"port: {host}, port {port}", backlog=2048)
    # Connections have it from here; asyncio gives it to sockets of its own alone. Without it the second part of an
    # answer waits until the sender has confirmed the first, which takes it 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
