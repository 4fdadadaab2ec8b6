"""The policy of connections: what is tried again, how long, and by whom."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

import pytest
import tenacity

from batchq.errors import (
    ConfigError,
    InternalError,
    StoreCorrupt,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from batchq.job import Claim, Completed, NewJob, Retried, pack_error, pack_row
from batchq.lifecycle import State, Word
from batchq.redis import connect
from batchq.redis.connect import Links
from batchq.redis.dial import Dialer
from batchq.redis.link import Link, Reply
from batchq.redis.outage import Outage
from batchq.redis.replies import Unreached, raise_for
from batchq.redis.store import RedisStore
from batchq.redis.wire import ErrorReply
from tests.faults.proxy import Proxy
from tests.servers import Server, free_port

SOURCES = Path(connect.__file__).parent
PING = [("PING",)]


def ping(link: Link, again: bool) -> list[Reply]:
    return link.ask(PING)


@pytest.fixture
def nowhere() -> str:
    """A url at which nobody listens."""
    return f"redis://127.0.0.1:{free_port()}/0"


def links_to(url: str, patience_s: float | None, socket_timeout_s: float = 5.0) -> Links:
    return Links(Dialer(url, socket_timeout_s=socket_timeout_s), patience_s=patience_s)


# -- one policy ------------------------------------------------------------------------------------------------------


def test_waits_between_tries_are_made_in_one_module() -> None:
    """tenacity is imported here and nowhere else, and no client that would try again by itself."""
    users = [path.name for path in SOURCES.rglob("*.py") if re.search(r"\btenacity\b", path.read_text())]
    assert users == ["connect.py"]
    assert not [
        path for path in SOURCES.parent.rglob("*.py") if re.search(r"^ *(import|from) redis\b", path.read_text(), re.M)
    ]


def test_no_job_retry_passes_through_the_policy(
    redis_server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that fails until it is dead is moved by the delayed set alone: the connection is never tried again."""

    def insist(*args: object, **kwargs: object) -> list[Reply]:
        raise AssertionError("the policy of connections was asked")

    monkeypatch.setattr(Links, "_insist", insist)
    store = RedisStore(redis_server.url, prefix=prefix)
    store.register("mail", "w", 15_000)
    store.enqueue("mail", [NewJob("j", pack_row("send"))])
    for attempt in range(1, 4):
        claims: tuple[Claim, ...] = ()
        while not claims:
            # Due in the next millisecond.
            claims = store.claim("mail", "w", 1, 0).claims
        [claim] = claims
        assert claim.attempt == attempt
        failed = Retried(claim, 0, 3, pack_error("ValueError", "no", attempt=attempt, at_ms=1))
        assert store.retry("mail", "w", [failed]) == [Word.OK if attempt < 3 else Word.DEAD]
    job = store.get("mail", "j")
    assert job is not None
    assert job.state is State.DEAD
    store.close()


def test_calls_wait_for_a_server_that_is_away_until_they_are_told_not_to(nowhere: str) -> None:
    """Workers: for ever, in growing steps, and no longer than they are wanted."""
    links = links_to(nowhere, None)
    began, tries = time.monotonic(), 0
    links.give_up = lambda: time.monotonic() - began > 0.5

    def exchange(link: Link, again: bool) -> list[Reply]:
        nonlocal tries
        assert again is (tries > 0)
        tries += 1
        return ping(link, again)

    with pytest.raises(StoreUnavailable, match=r"^redis at [\d.:]+: Connection refused; is the server up"):
        links.run(exchange)
    assert 0.5 < time.monotonic() - began < 1.5
    assert 3 < tries < 60


@pytest.mark.parametrize("patience_s", [0.2, 0.5])
def test_patience_bounds_a_call_to_a_server_that_refuses(nowhere: str, patience_s: float) -> None:
    """Producers."""
    links = links_to(nowhere, patience_s)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable) as away:
        links.run(ping)
    assert time.monotonic() - began < patience_s + 1
    assert away.value.maybe is False


@pytest.mark.parametrize("opened", [False, True])
def test_patience_bounds_a_call_to_a_server_that_is_silent(redis_server: Server, opened: bool) -> None:
    """Less than the socket's own time-out; what was sent may have been done."""
    with Proxy(redis_server.port) as proxy:
        links = links_to(proxy.url, 0.3)
        if opened:
            links.run(ping)
        proxy.silent = True
        began = time.monotonic()
        with pytest.raises(StoreUnavailable) as away:
            links.run(ping)
        assert 0.25 < time.monotonic() - began < 2
        # The handshake of a new connection says nothing about the call.
        assert away.value.maybe is opened
        links.forget()


def test_last_try_that_had_little_time_hides_no_reason(redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server refused, and then is silent at the end of the call's time: what it said is told."""
    monkeypatch.setattr(connect, "PAUSES", tenacity.wait_fixed(0.05))
    with Proxy(redis_server.port) as proxy:
        proxy.refusing = True
        links = links_to(proxy.url, 2.0)
        began = time.monotonic()

        def exchange(link: Link, again: bool) -> list[Reply]:
            if time.monotonic() > began + 1.1:
                proxy.refusing, proxy.silent = False, True
            return ping(link, again)

        with pytest.raises(StoreUnavailable, match=r"Connection (reset|closed|refused)"):
            links.run(exchange)
        assert proxy.silent
        links.forget()


def test_brisk_call_is_tried_once_but_for_a_connection_that_was_old(redis_server: Server, nowhere: str) -> None:
    """A master: no waits; that the server has closed an idle connection is no outage."""
    links = links_to(nowhere, 0)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        links.run(ping)
    assert time.monotonic() - began < 1
    with Proxy(redis_server.port) as proxy:
        links = links_to(proxy.url, 0)
        links.run(ping)
        proxy.cut_all()
        assert links.run(ping) == [b"PONG"]
        assert links.outage.count == 0
        links.forget()


def test_call_whose_outcome_is_unknown_ends_its_lane(redis_server: Server) -> None:
    """What comes after it must not be taken for it, nor it for what comes after."""
    with Proxy(redis_server.port) as proxy:
        links = links_to(proxy.url, 0.2)
        lanes: list[str] = []

        def exchange(link: Link, again: bool) -> list[Reply]:
            lanes.append(link.lane)
            return link.ask(PING)

        links.run(exchange)
        links.run(exchange)
        assert lanes[0] == lanes[1], "a lane is kept while all goes well: each costs a key"
        proxy.silent = True
        with pytest.raises(StoreUnavailable):
            links.run(exchange)
        proxy.silent = False
        links.run(exchange)
        assert set(lanes[:-1]) == {lanes[0]}
        assert lanes[-1] != lanes[0]
        links.forget()


def test_process_may_open_any_number_of_links_in_its_life(redis_server: Server) -> None:
    """One after the other: none of them is counted, or kept."""
    links = links_to(redis_server.url, 1.0)
    for _ in range(300):
        links.run(ping)
        links.forget()


# -- the circuit -----------------------------------------------------------------------------------------------------


def test_calls_that_fail_fast_take_no_time_while_the_server_is_away(redis_server: Server) -> None:
    """The first failure takes the patience; then one call a second asks, for a quarter of a second at most."""
    with Proxy(redis_server.port) as proxy:
        links = links_to(proxy.url, 0.4)
        links.fails_fast = True
        links.run(ping)
        proxy.silent = True
        took: list[float] = []
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                links.run(ping)
            took.append(time.monotonic() - began)
            time.sleep(0.002)
        assert 0.35 < took[0] < 2
        slow = [t for t in took[1:] if t > 0.05]
        # Without the circuit each of them would take the patience: six in this time and none that is quick.
        assert len(slow) >= 1
        assert len(slow) < len(took) / 4
        assert sorted(slow)[len(slow) // 2] < connect.PROBE_WAIT_S + 0.1
        proxy.silent = False
        deadline = time.monotonic() + 3
        while links.outage.since is not None:
            assert time.monotonic() < deadline, "nobody noticed that it is back"
            try:
                links.run(ping)
            except StoreUnavailable:
                time.sleep(0.01)
        assert links.outage.count == 1
        links.forget()


# -- what is said ----------------------------------------------------------------------------------------------------


def test_outage_is_a_line_when_it_begins_and_one_when_it_ends(
    nowhere: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many calls fail; the end tells how long it was and what was spooled."""
    monkeypatch.setattr(logging.getLogger("batchq"), "propagate", True)
    links = links_to(nowhere, 0.05)
    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            links.run(ping)
    links.outage.spooled += 3
    links.outage.end()
    links.outage.end()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0].startswith("store_unavailable error=")
    assert re.fullmatch(r"store_back store=127\.0\.0\.1:\d+ after_ms=\d+ spooled=3 outages=1", lines[1])


def test_read_does_not_end_an_outage_of_writes() -> None:
    """READONLY: the server answers, and takes nothing."""
    outage = Outage("here")
    outage.quiet = True
    outage.begin(Unreached("READONLY", refused=True))
    assert outage.refused
    outage.end()
    outage.begin(Unreached("refused"))
    assert not outage.refused
    assert outage.count == 2


@pytest.mark.parametrize(
    ("code", "way_out"),
    [
        ("READONLY You can't write against a read only replica.", "name the primary"),
        ("BUSY Redis is busy running a script.", "SCRIPT KILL"),
        ("MISCONF Errors writing to the AOF file", "disk"),
        ("NOREPLICAS Not enough good replicas to write.", "min-replicas-to-write"),
        ("CLUSTERDOWN The cluster is down", "CLUSTER INFO"),
    ],
)
def test_server_that_is_there_and_says_no_is_not_asked_whether_it_is_up(code: str, way_out: str, nowhere: str) -> None:
    """What the producer reads names what a person can do about it."""
    links = links_to(nowhere, 0)

    def refused(link: Link, again: bool) -> list[Reply]:
        raise_for(ErrorReply(code), "here:6379")

    with pytest.raises(
        StoreUnavailable, match=f"redis at here:6379: {re.escape(code)}; .*{re.escape(way_out)}"
    ) as told:
        links.run(refused)
    assert "is the server up" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("LOADING Redis is loading the dataset in memory", Unreached, "LOADING"),
        ("READONLY You can't write against a read only replica.", Unreached, "READONLY"),
        ("BUSY Redis is busy running a script.", Unreached, "BUSY"),
        ("MISCONF Errors writing to the AOF file", Unreached, "MISCONF"),
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreFull, "maxmemory"),
        ("NOAUTH Authentication required.", Unreached, "user and password"),
        ("NOPERM User x has no permissions to run the 'evalsha' command", StoreDenied, "evalsha"),
        ("WRONGTYPE Operation against a key", StoreCorrupt, "WRONGTYPE"),
        ("MOVED 3999 127.0.0.1:6381", StoreError, "node of a cluster"),
        ("ERR unknown command 'EVALSHA', with args beginning with:", StoreDenied, "has renamed it"),
        ("ERR syntax error", InternalError, "syntax error"),
    ],
)
def test_error_replies_say_what_to_do(text: str, kind: type[Exception], said: str) -> None:
    """Each class of reply has one meaning."""
    with pytest.raises(kind, match=re.escape(said)):
        raise_for(ErrorReply(text), "here:6379")


def test_database_that_the_server_does_not_have_is_a_wrong_url(redis_server: Server, prefix: str) -> None:
    """No bug, and nothing to wait for."""
    store = RedisStore(redis_server.url.removesuffix("/0") + "/9999", prefix=prefix)
    with pytest.raises(ConfigError, match=r"expected a database.*found 9999"):
        store.now_ms()


def test_what_was_settled_beside_a_step_that_failed_is_not_fenced(redis_server: Server, prefix: str) -> None:
    """Outcomes of two kinds go in one write, each kind by its script."""
    store = RedisStore(redis_server.url, prefix=prefix)
    store.register("mail", "w", 15_000)
    store.enqueue("mail", [NewJob("a", pack_row("send")), NewJob("b", pack_row("send"))])
    first, second = store.claim("mail", "w", 2, 0).claims
    error = pack_error("ValueError", "no", attempt=1, at_ms=1)
    outcomes = [Retried(first, 60_000, 5, error), Completed(second)]
    delayed = f"{prefix}:{{mail}}:delayed"
    redis_server.client.set(delayed, "not ours")
    with pytest.raises(StoreCorrupt, match="WRONGTYPE"):
        store.exchange("mail", "w", outcomes, 0, 0)
    redis_server.client.delete(delayed)
    assert store.exchange("mail", "w", outcomes, 0, 0).words == (Word.OK, Word.SETTLED)
    assert store.stats("mail").totals["fenced"] == 0
    store.close()


def test_settling_again_after_an_unknown_outcome_is_not_fenced(redis_server: Server, prefix: str) -> None:
    """A call that was given up may have been done: the next one of that worker says so."""
    with Proxy(redis_server.port) as proxy:
        store = RedisStore(proxy.url, prefix=prefix, patience_s=0.2)
        store.register("mail", "w", 15_000)
        store.enqueue("mail", [NewJob("first", pack_row("send")), NewJob("j", pack_row("send"))])
        [first, claim] = store.claim("mail", "w", 2, 0).claims
        # The script is loaded now: what is held is done when it arrives.
        store.complete("mail", "w", [Completed(first)])
        held = proxy.hold(lambda frame, number: b"EVALSHA" in frame)
        # Nothing would hold a second attempt, for which there may be a moment left.
        proxy.refusing = True
        done = [Completed(claim)]
        with pytest.raises(StoreUnavailable):
            store.complete("mail", "w", done)
        proxy.refusing = False
        held.release()
        assert store.complete("mail", "w", done) == [Word.SETTLED]
        assert store.complete("mail", "w", done) == [Word.STALE]
        assert store.stats("mail").totals["fenced"] == 1
        store.close()
