"""The ways to a server: TLS with a CA of one's own, a Unix socket, and names that nobody resolves in time."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from batchq import ConfigError, StoreUnavailable
from batchq.config import load
from batchq.job import NewJob, new_id, pack_row
from batchq.redis import sockets
from batchq.redis.store import RedisStore
from batchq.redis.target import Target
from batchq.redis.waiting import WAIT_S
from batchq.stores import open_store
from tests.faults.drive import check, drive
from tests.outage.conftest import APP
from tests.process.rig import opened
from tests.servers import Server

TLS = Path(__file__).parent / "tls"
#: For `localhost` and 127.0.0.1, signed by ca.pem; good for a hundred years.
SERVER_PEM, CA_PEM = TLS / "server.pem", TLS / "ca.pem"


def _relay(raw: socket.socket, context: ssl.SSLContext, port: int) -> None:
    """One connection, by one thread: a TLS socket is not for two."""
    with (
        suppress(OSError),
        context.wrap_socket(raw, server_side=True) as client,
        socket.create_connection(("127.0.0.1", port)) as server,
    ):
        while True:
            ready = [client] if client.pending() else select.select([client, server], [], [])[0]
            for one, other in ((client, server), (server, client)):
                if one in ready:
                    data = one.recv(65536)
                    if not data:
                        return
                    other.sendall(data)


@contextmanager
def tls_in_front_of(server: Server) -> Iterator[int]:
    """A port that speaks TLS for that server: not every build of one does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(SERVER_PEM)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    raw, _ = listener.accept()
                    threading.Thread(target=_relay, args=(raw, context, server.port), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture(params=["127.0.0.1", "localhost"])
def tls_url(request: pytest.FixtureRequest, redis_server: Server) -> Iterator[str]:
    with tls_in_front_of(redis_server) as port:
        yield f"rediss://{request.param}:{port}/0?ssl_ca_certs={CA_PEM}"


def test_every_move_is_done_under_tls(tls_url: str, prefix: str) -> None:
    """The server shows a certificate of a CA that the url names."""
    store = open_store(tls_url, load({"prefix": prefix}, environ={}))
    drive(store)
    check(store, "TLS")
    store.close()


def test_pool_runs_under_tls(tls_url: str, prefix: str, tmp_path: Path) -> None:
    """Workers, their waits for hints, and the master's."""
    with opened(tmp_path, "redis", tls_url, prefix) as rig:
        rig.app(APP)
        rig.start(n=2)
        ids = rig.enqueue_many("work", [()] * 30)
        rig.until_counts(done=30, active=0)
        began = time.monotonic()
        rig.until_started(rig.enqueue("work"))
        assert time.monotonic() - began < WAIT_S / 2
        assert {entry.job for entry in rig.ledger.ends()} >= set(ids)


def test_certificate_of_a_stranger_is_refused(redis_server: Server, prefix: str) -> None:
    """Without the CA, and under a name that the certificate does not have: nothing is sent."""
    with tls_in_front_of(redis_server) as port:
        for url in (f"rediss://127.0.0.1:{port}/0", f"rediss://127.0.0.2:{port}/0?ssl_ca_certs={CA_PEM}"):
            store = RedisStore(url, prefix=prefix, patience_s=0.2)
            with pytest.raises(StoreUnavailable) as away:
                store.enqueue("mail", [NewJob(new_id(), pack_row("work"))])
            assert away.value.maybe is False
            store.close()


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile"])
def test_file_of_a_certificate_that_is_not_there_is_named(redis_server: Server, prefix: str, option: str) -> None:
    """It may come back (certificates are renewed): an outage, whose line says which file."""
    with tls_in_front_of(redis_server) as port:
        store = RedisStore(f"rediss://127.0.0.1:{port}/0?{option}=/no/such.pem", prefix=prefix, patience_s=0)
        with pytest.raises(StoreUnavailable, match=f"{option} /no/such.pem can't be used"):
            store.enqueue("mail", [NewJob(new_id(), pack_row("work"))])
        store.close()


def test_ciphers_that_nobody_knows_are_a_wrong_url(redis_server: Server, prefix: str) -> None:
    """No wait makes them right."""
    with tls_in_front_of(redis_server) as port:
        store = RedisStore(f"rediss://127.0.0.1:{port}/0?ssl_ciphers=NONE-SUCH", prefix=prefix)
        with pytest.raises(ConfigError, match="ssl_ciphers"):
            store.now_ms()
        store.close()


def test_address_that_swallows_all_leaves_time_for_the_next(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name of two addresses, as of IPv6 that is not routed and IPv4 that is."""
    with socket.socket() as deaf, ExitStack() as filling:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(3):
            # Until its queue is full: from then on it answers nobody.
            one = filling.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(deaf.getsockname())
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", at)
            for at in (deaf.getsockname(), ("127.0.0.1", redis_server.port))
        ]
        monkeypatch.setattr(sockets, "addresses", lambda *_: found)
        with sockets.connected(Target(host="two.example"), 2.0) as sock:
            assert sock.getpeername()[1] == redis_server.port


def test_every_move_is_done_over_a_unix_socket(serve: Callable[..., Server], prefix: str, tmp_path: Path) -> None:
    """unix:///path; its place is the path."""
    path = tmp_path / "s"
    serve("--unixsocket", str(path))
    store = open_store(f"unix://{path}?db=2", load({"prefix": prefix}, environ={}))
    drive(store)
    check(store, "a Unix socket")
    assert isinstance(store, RedisStore)
    assert store.destination == f"{path}/2 {prefix}"
    store.close()


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Answers no name until the event is set, as one behind a network that swallows all. `asked` counts."""
    answers = threading.Event()
    ask = socket.getaddrinfo

    def slow(host: Any, *args: Any, **options: Any) -> Any:
        if not options.get("flags"):
            answers.wait(30)
            host = "127.0.0.1"
        return ask(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    yield answers
    answers.set()


def test_resolver_that_does_not_answer_takes_no_more_than_the_patience(
    redis_server: Server, prefix: str, resolver: threading.Event
) -> None:
    """A producer waits `enqueue_timeout`, not as long as the system's resolver; and each try asks the same question."""
    store = RedisStore(f"redis://db.example:{redis_server.port}/0", prefix=prefix, patience_s=0.3)
    before = threading.active_count()
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"no address of db\.example") as away:
            store.enqueue("mail", [NewJob(new_id(), pack_row("work"))])
        assert time.monotonic() - began < 2
        assert away.value.maybe is False
    assert threading.active_count() == before + 1
    resolver.set()
    store.enqueue("mail", [NewJob(new_id(), pack_row("work"))])
    assert store.stats("mail").counts["pending"] == 1
    store.close()
