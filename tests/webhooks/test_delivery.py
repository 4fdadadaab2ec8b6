"""The ready handler: what it sends, what each answer means for its job, and where it does not go."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from batchq import App
from batchq.lifecycle import State
from batchq.signatures import verify_standard
from batchq.webhooks import Blocked, host_of, register
from batchq.webhooks.guard import GuardedBackend, check_url, is_public
from batchq.webhooks.handler import retry_after_s
from tests.webhooks.receiver import Receiver

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def test_delivery_is_signed_and_names_its_job(receiver: Receiver) -> None:
    """Body as JSON, headers of Standard Webhooks, the job's id as message id and idempotency key; result kept."""
    app = App("memory:")
    deliver = register(app, secrets=[SECRET], private=True, result=True)
    with app.testing() as jobs:
        ref = deliver.enqueue(f"{receiver.url}/hook", {"n": [1, 2]}, headers={"X-Tenant": "7", "Host": "evil"})
        jobs.run_pending()
        [got] = receiver.got
        assert json.loads(got.body) == {"n": [1, 2]}
        assert got.headers["webhook-id"] == got.headers["idempotency-key"] == ref.id
        assert (got.headers["x-tenant"], got.headers["content-type"]) == ("7", "application/json")
        assert got.headers["host"].startswith("127.0.0.1")
        verify_standard(got.headers, got.body, [SECRET], float(got.headers["webhook-timestamp"]))
        assert ref.result(timeout=1) == {"status": 200, "excerpt": '{"said": "/hook"}'}


@pytest.mark.parametrize(
    ("status", "state"),
    [
        *((status, None) for status in (200, 204)),
        *((status, State.DEAD) for status in (301, 400, 404, 410)),
        *((status, State.DELAYED) for status in (408, 425, 429, 500, 503)),
    ],
)
def test_answer_decides(receiver: Receiver, status: int, state: State | None) -> None:
    """What no retry can mend goes to the morgue, with the beginning of the answer; the rest is tried again."""
    app = App("memory:")
    deliver = register(app, private=True)
    with app.testing() as jobs:
        ref = deliver.enqueue(f"{receiver.url}/status/{status}?location=http://127.0.0.1:1/", {})
        jobs.run_pending()
        job = app.get(ref.id)
        assert (job.state if job else None) is state
        if job is not None:
            assert str(status) in job.errors[0]["error"]
            assert "said" in job.errors[0]["error"]
        assert len(receiver.got) == 1


def test_retry_after_sets_the_delay(receiver: Receiver) -> None:
    """Seconds or a date, instead of the backoff's delay."""
    app = App("memory:")
    deliver = register(app, private=True)
    with app.testing() as jobs:
        ref = deliver.enqueue(f"{receiver.url}/status/429?Retry-After=120", {})
        before = app.store.now_ms()
        jobs.run_pending()
        job = app.get(ref.id)
        assert job is not None
        assert job.since_ms - before == 120_000
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert retry_after_s(format_datetime(now + timedelta(seconds=90)), now) == 90
    assert retry_after_s(format_datetime(now - timedelta(seconds=90)), now) == 0
    assert retry_after_s("soon", now) is None


def test_connections_are_reused(receiver: Receiver) -> None:
    """One after the other to the same host over one connection."""
    app = App("memory:")
    deliver = register(app, private=True)
    with app.testing() as jobs:
        for n in range(5):
            deliver.enqueue(f"{receiver.url}/hook", n)
        jobs.run_pending()
    assert len(receiver.got) == 5
    assert len({got.connection for got in receiver.got}) == 1


def test_cookies_of_one_answer_do_not_go_to_another(receiver: Receiver) -> None:
    """Receivers on one host may be different people's."""
    app = App("memory:")
    deliver = register(app, private=True)
    with app.testing() as jobs:
        deliver.enqueue(f"{receiver.url}/one?set-cookie=session=7;path=/", {})
        deliver.enqueue(f"{receiver.url}/two", {})
        jobs.run_pending()
    assert [got.headers.get("cookie") for got in receiver.got] == [None, None]


def test_packed_answer_is_not_unpacked(receiver: Receiver) -> None:
    """None is asked for, and what another side sends all the same, broken or huge, does not undo a delivery."""
    app = App("memory:")
    deliver = register(app, private=True, result=True)
    with app.testing() as jobs:
        ref = deliver.enqueue(f"{receiver.url}/hook?content-encoding=gzip", {})
        jobs.run_pending()
        assert receiver.got[0].headers["accept-encoding"] == "identity"
        assert ref.result(timeout=1)["status"] == 200


def test_no_answer_in_time_is_a_failed_attempt(receiver: Receiver) -> None:
    """The limit is for the whole delivery; a refused connection fails too."""
    app = App("memory:")
    deliver = register(app, private=True, timeout=0.2)
    with app.testing() as jobs:
        slow = deliver.enqueue(f"{receiver.url}/slow/1.5", {})
        nobody = deliver.enqueue("http://127.0.0.1:1/", {})
        jobs.run_pending()
        for ref, text in ((slow, "no answer within 0.2 s"), (nobody, "Connect")):
            job = app.get(ref.id)
            assert job is not None
            assert job.state is State.DELAYED
            assert text in job.errors[0]["error"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433"])
def test_private_address_is_refused_after_the_look_up(receiver: Receiver, host: str) -> None:
    """Whatever spelling leads there: dead, and nothing is sent. Where its network is allowed, it is."""
    port = receiver.url.rsplit(":", 1)[1]
    app = App("memory:")
    deliver = register(app)
    open_one = register(app, name="open", allow=["127.0.0.0/8"])
    with app.testing() as jobs:
        ref = deliver.enqueue(f"http://{host}:{port}/hook", {})
        jobs.run_pending()
        job = app.get(ref.id)
        assert job is not None
        assert (job.state, job.reason) == (State.DEAD, "buried")
        assert "not public" in job.errors[0]["error"]
        assert receiver.got == []
        open_one.enqueue(f"{receiver.url}/hook", {})
        jobs.run_pending()
        assert len(receiver.got) == 1


class Inner:
    """Notes where connections go to."""

    def __init__(self) -> None:
        self.to: list[str] = []

    async def connect_tcp(self, host: str, *args: object) -> None:
        self.to.append(host)


def test_name_that_has_one_private_address_is_refused() -> None:
    """All addresses of a name are looked at before any is connected to, and then that very one."""
    backend, inner = GuardedBackend(private=False), Inner()
    backend._inner = inner  # type: ignore[assignment]

    async def look(addresses: list[str]) -> None:
        async def found(*args: object, **kwargs: object) -> list[tuple[object, ...]]:
            return [(2, 1, 6, "", (address, 9)) for address in addresses]

        asyncio.get_running_loop().getaddrinfo = found  # type: ignore[method-assign]
        await backend.connect_tcp("example.org", 9, timeout=0.05)

    with pytest.raises(Blocked, match=r"10\.0\.0\.8"):
        asyncio.run(look(["93.184.216.34", "10.0.0.8"]))
    assert inner.to == []
    asyncio.run(look(["93.184.216.34"]))
    assert inner.to == ["93.184.216.34"]


def test_addresses() -> None:
    """What carries a private IPv4 address inside is private."""
    private = ["10.0.0.1", "169.254.169.254", "100.64.0.1", "224.0.0.1", "fe80::1", "fc00::1", "64:ff9b::a00:1"]
    # IPv4 addresses inside, that a translator or a tunnel of this network may lead to; and sites of old.
    private += ["64:ff9b:1::a00:1", "::a00:1", "::ffff:0:a00:1", "fec0::1"]
    private += ["2002:a00:1::1", "::ffff:10.0.0.1", "0.0.0.0", "::", "192.168.1.1", "172.16.0.1"]
    assert [text for text in private if is_public(ipaddress.ip_address(text))] == []
    assert all(
        is_public(ipaddress.ip_address(text)) for text in ("93.184.216.34", "2606:2800:220:1::", "::ffff:8.8.8.8")
    )


@pytest.mark.parametrize(
    "url", ["ftp://example.org/", "https:///x", "https://user:pw@example.org/", "file:///etc/passwd"]
)
def test_urls_of_another_kind_are_refused(url: str) -> None:
    """Only http and https, with a host and without a password."""
    with pytest.raises(Blocked, match="url"):
        check_url(url)


def test_url_that_can_not_be_read_is_dead_at_once() -> None:
    """It has no host that a limit could be for; no retry can mend it."""
    app = App("memory:")
    deliver = register(app)
    with app.testing() as jobs:
        refs = [deliver.enqueue(url, {}) for url in ("http://example.org:99999/", "http://[::1", "no url")]
        jobs.run_pending()
        found = [app.get(ref.id) for ref in refs]
        assert [(job.state, job.reason) for job in found if job is not None] == [(State.DEAD, "buried")] * 3


def test_key_of_a_url() -> None:
    """Host and port, however it is written."""
    assert host_of("https://Example.org/a?b") == host_of("https://example.org:443/", {"body": 1}) == "example.org:443"
