"""The ingress: what is taken, what is refused and how, and that a 202 is a promise over kill -9 and outages."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from batchq import App
from batchq.cli.ingress import listen_at
from batchq.errors import ConfigError, StoreUnavailable
from batchq.ingress.sources import Bucket, make_source, parse_rate, read_sources
from batchq.ingress.web import make_web
from batchq.signatures import sign_standard
from tests.cli.conftest import environment
from tests.process.rig import Rig, die_with_pytest, opened, until
from tests.servers import Server, flavours, free_port

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def web(app: App, **source: object) -> TestClient:
    return TestClient(make_web(app, [make_source(source, {"TOKEN": "t0ken"}, "a test")]))


@pytest.fixture
def app() -> Iterator[App]:
    with App("memory:") as made:
        yield made


def test_event_becomes_a_job_with_its_raw_body(app: App) -> None:
    """202 with the id; body and chosen headers as they came, bytes that are no text as base64."""
    client = web(app, headers=["x-kind", "x-git-*"])
    answer = client.post("/q/mail/send", content=b'{"a":  1}', headers={"X-Kind": "k", "X-Git-A": "b", "X-Other": "c"})
    assert answer.status_code == 202
    job = app.get(answer.json()["id"])
    assert job is not None
    assert (job.queue, job.job) == ("mail", "send")
    assert job.kwargs == {"body": '{"a":  1}', "headers": {"x-kind": "k", "x-git-a": "b"}}
    raw = bytes(range(256))
    job = app.get(client.post("/q/mail/send", content=raw).json()["id"])
    assert job is not None
    assert (base64.b64decode(job.kwargs["body"]), job.kwargs["base64"]) == (raw, True)


def test_event_that_is_sent_again_is_the_same_job(app: App) -> None:
    """By Idempotency-Key, whatever stands in it; of another job it is another."""
    client = web(app)
    for key in ("k-1", "sp ace / \x7f" + "x" * 300):
        first, again = (client.post("/q/mail/send", content=b"x", headers={"Idempotency-Key": key}) for _ in range(2))
        other = client.post("/q/mail/other", content=b"x", headers={"Idempotency-Key": key})
        assert (first.status_code, again.status_code) == (202, 202)
        assert first.json()["id"] == again.json()["id"] != other.json()["id"]
        assert (first.json()["created"], again.json()["created"]) == (True, False)
    assert app.stats()["queues"]["mail"]["counts"]["pending"] == 4


@pytest.mark.parametrize("style", ["standard", "github", "stripe"])
def test_signed_source(app: App, style: str) -> None:
    """The provider's own delivery id names the job; what is not signed is refused and leaves nothing."""
    from tests.webhooks.test_signatures import headers_of

    client = web(app, signature=style, secrets=[SECRET])
    body = b'{"id": "evt_1"}'
    signed = headers_of(style, body, SECRET, int(time.time())) | {"x-github-delivery": "d-1"}
    ids = {client.post("/q/mail/send", content=body, headers=signed).json()["id"] for _ in range(2)}
    assert len(ids) == 1
    assert client.post("/q/mail/send", content=body + b" ", headers=signed).status_code == 401
    assert client.post("/q/mail/send", content=body).status_code == 401
    assert app.stats()["queues"]["mail"]["counts"]["pending"] == 1


def test_refusals(app: App) -> None:
    """Each with its status: path, token, size, rate, name."""
    client = web(app, path="mail/*", tokens=["env:TOKEN"], max_body=10, rate="1/m")
    known = {"Authorization": "Bearer t0ken"}
    assert client.post("/q/other/send", content=b"x", headers=known).status_code == 404
    assert client.post("/q/mail/send", content=b"x").status_code == 401
    assert client.post("/q/mail/send", content=b"x", headers={"Authorization": "Bearer no"}).status_code == 401
    assert client.get("/q/mail/send").status_code == 405
    assert client.post("/q/mail/send", content=b"x" * 11, headers=known).status_code == 413
    assert client.post("/q/mail/send", content=iter([b"x" * 6] * 2), headers=known).status_code == 413
    assert client.post("/q/mail/send", content=b"x" * 10, headers=known).status_code == 202
    late = client.post("/q/mail/send", content=b"x", headers=known)
    assert (late.status_code, int(late.headers["Retry-After"]) >= 1) == (429, True)
    assert client.get("/health").text == "ok\n"
    assert app.stats()["queues"]["mail"]["counts"]["pending"] == 1


def test_nothing_durable_left(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 and when to come back; the sender is told no more."""

    async def away(*args: object, **kwargs: object) -> None:
        raise StoreUnavailable("redis at secret-host: gone")

    monkeypatch.setattr(App, "asend", away)
    answer = web(app).post("/q/mail/send", content=b"x")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert "secret-host" not in answer.text


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[[source]]\nsignatur = 'x'\n", "signatur"),
        ("[[source]]\nsignature = 'md5'\nsecrets = ['x']\n", "md5"),
        ("[[source]]\nsignature = 'github'\n", "secrets"),
        ("[[source]]\nsignature = 'github'\nsecrets = ['env:NO_SUCH']\n", "NO_SUCH"),
        ("[[source]]\nrate = 'often'\n", "rate"),
        ("[other]\n", "source"),
        ("[[source", "TOML"),
    ],
)
def test_wrong_sources_are_named(tmp_path: Path, text: str, names: str) -> None:
    """File, source and key; never a secret."""
    file = tmp_path / "sources.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=names) as caught:
        read_sources(str(file), {})
    assert "sources.toml" in str(caught.value)


def test_rate() -> None:
    """Count and period; a bucket gives its tokens once."""
    assert [parse_rate(text) for text in ("100/s", "5/10s", "1/500ms")] == [(100, 1000), (5, 10_000), (1, 500)]
    bucket = Bucket(2, 60_000)
    assert [bucket.take() == 0 for _ in range(3)] == [True, True, False]


# -- the promise ---------------------------------------------------------------------------------------------------

APP = """
@app.job(queue="events")
def event(body, headers):
    note("S")
    with open("ran", "a") as file:
        file.write(body + "\\n")
"""


def test_told_to_stop_at_once_it_does(tmp_path: Path) -> None:
    """A signal that comes between the first words and the first request is heard: it ends, in order."""
    for number in (signal.SIGTERM, signal.SIGINT):
        command = [sys.executable, "-m", "batchq", "ingress", "--port", "0"]
        with subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment(BATCHQ_SPOOL=str(tmp_path / "spool")),
            stderr=subprocess.PIPE,
            preexec_fn=die_with_pytest,
        ) as process:
            assert process.stderr is not None
            while b"listening on" not in (line := process.stderr.readline()):
                assert line, process.wait()
            process.send_signal(number)
            assert process.wait(30) == 0


DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


class Gate:
    """`batchq ingress` as a process that is killed and started again on the same port."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "batchq", "ingress", "--port", str(self.port)],
            cwd=self._rig.folder,
            env=self._rig.env(BATCHQ_FALLBACK_EPHEMERAL="true"),
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_pytest,
        )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


async def _sender(gate: Gate, numbers: Iterator[int], acked: set[int], done: Callable[[], bool]) -> None:
    """Posts events, each with its key until it is acknowledged, as providers do."""
    async with httpx.AsyncClient(timeout=10) as client:
        for number in numbers:
            while True:
                try:
                    answer = await client.post(
                        f"{gate.url}/q/events/event", content=str(number), headers={"Idempotency-Key": f"e{number}"}
                    )
                except httpx.TransportError:
                    await asyncio.sleep(0.05)
                    continue
                if answer.status_code == 202:
                    acked.add(number)
                    break
                assert answer.status_code == 503, answer.text
                await asyncio.sleep(0.05)
            if done():
                return


@pytest.mark.parametrize("flavour", flavours())
def test_each_acknowledged_event_runs_once(tmp_path: Path, prefix: str, flavour: str) -> None:
    """The ingress is killed, the server is killed, a worker is killed, all in the middle of the load."""
    server = Server(flavour, *DURABLE)
    try:
        with opened(tmp_path, flavour, server.url, prefix) as rig:
            _run_load(rig, server)
    finally:
        server.stop()


def _run_load(rig: Rig, server: Server) -> None:
    rig.app(APP)
    gate, acked, over = Gate(rig), set[int](), threading.Event()
    gate.start()
    pool = rig.start("-q", "events", n=2, queue="events", BATCHQ_FALLBACK_EPHEMERAL="true")
    numbers = itertools.count()

    async def load() -> None:
        await asyncio.gather(*(_sender(gate, numbers, acked, over.is_set) for _ in range(8)))

    thread = threading.Thread(target=lambda: asyncio.run(load()))
    thread.start()
    try:
        rig.until(lambda: len(acked) > 100, "events are acknowledged", 20)
        gate.kill()
        gate.start()
        count = len(acked)
        rig.until(lambda: len(acked) > count + 100, "the ingress is back", 20)
        server.kill()
        count = len(acked)
        rig.until(lambda: len(acked) > count + 50, "events are taken while the server is away", 20)
        gate.kill()
        gate.start()
        count = len(acked)
        rig.until(lambda: len(acked) > count + 50, "and by one that has begun meanwhile", 20)
        server.start()
        os.kill(pool.workers()[0], signal.SIGKILL)
        count = len(acked)
        rig.until(lambda: len(acked) > count + 100, "the server is back", 20)
    finally:
        over.set()
        thread.join(20)
        gate.kill()
    ran = rig.folder / "ran"

    def missing() -> set[int]:
        return acked - {int(line) for line in ran.read_text().split()}

    rig.until(lambda: not missing(), "every acknowledged event has run", 20)
    rig.until_counts("events", pending=0, active=0, delayed=0)
    # A worker that was killed may have run a batch that it had not settled; nothing else runs twice.
    assert pool.stop() == 0
    per_job = [(entry.job, entry.token) for entry in rig.ledger.starts()]
    assert len(per_job) == len(set(per_job)), "one claim ran twice"
    jobs = {entry.job for entry in rig.ledger.starts()}
    assert rig.stats("events").totals["enqueued"] == len(jobs)
    assert rig.stats("events").totals["completed"] == len(jobs)


def test_command_says_where_it_listens(tmp_path: Path) -> None:
    """On any free port; TERM ends it in order."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("BATCHQ_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "batchq", "ingress", "--port", "0", "--token", "env:TOKEN"],
        cwd=tmp_path,
        env=env | {"BATCHQ_URL": f"spool:{tmp_path / 'spool'}", "TOKEN": "t"},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_pytest,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        url = line.split()[2].replace("QUEUE", "mail").replace("JOB", "send")

        def answer() -> httpx.Response | None:
            try:
                return httpx.post(url, content=b"x", headers={"Authorization": "Bearer t"})
            except httpx.TransportError:
                return None

        posted = until(answer, "it answers")
        assert posted is not None
        assert posted.status_code == 202
        assert posted.json().keys() == {"id", "created", "spooled"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()


def test_answers_wait_for_no_confirmation() -> None:
    """The connections of the socket that it listens at send at once what they have."""
    with listen_at("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_address_that_can_not_be_had_is_named() -> None:
    """A port that is taken, and a host that is nobody's."""
    with listen_at("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(
            ConfigError, match=f"127.0.0.1, port {port} can't be listened at \\(Address already in use\\)"
        ):
            listen_at("127.0.0.1", port)
    with pytest.raises(ConfigError, match="port: 192"):
        listen_at("192.0.2.1", 0)


def test_standard_signature_end_to_end(app: App) -> None:
    """What `batchq.webhooks` sends, an ingress takes; the message id becomes the job's."""
    client = web(app, signature="standard", secrets=[SECRET])
    body = json.dumps({"a": 1}).encode()
    headers = sign_standard("msg_1", int(time.time()), body, [SECRET])
    answer = client.post("/q/mail/send", content=body, headers=headers)
    assert answer.json()["id"] == "send:default:msg_1"
