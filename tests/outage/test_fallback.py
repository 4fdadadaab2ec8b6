"""Producers while Redis is away: bounded waits, a spool on disk, and each job run once when it is back."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batchq import App, QueueFull, StoreFull, StoreUnavailable
from batchq.fallback.forward import Forwarder
from batchq.fallback.producer import Fallback
from batchq.job import Completed, Mark, NewJob, new_id, pack_row
from batchq.lifecycle import Word
from batchq.redis.connect import PROBE_WAIT_S
from batchq.redis.store import RedisStore
from batchq.spool import inbox
from batchq.store import Limits
from tests.faults.proxy import Proxy
from tests.servers import Server, free_port

Q = "default"


@pytest.fixture
def app_on(prefix: str, spool: Path) -> Iterator[Callable[..., App]]:
    """An app at that url, with the test's spool."""
    made: list[App] = []

    def make(url: str, **settings: object) -> App:
        base = {"prefix": prefix, "spool": str(spool), "fallback_ephemeral": True, "enqueue_timeout": 0.3}
        made.append(App(url, **(base | settings)))
        return made[-1]

    yield make
    for app in made:
        app.close()


@pytest.fixture
def direct(store: RedisStore) -> RedisStore:
    """Beside those stores that go through a proxy."""
    return store


def lines(spool: Path) -> list[dict[str, object]]:
    """All lines that wait there."""
    files = sorted((spool / "inbox" / "new").glob("*.ndjson"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def forward_all(store: RedisStore, spool: Path) -> int:
    """Forwards until nothing is left; answers how many jobs."""
    forwarder, jobs = Forwarder(store, spool, Limits(), everything=True), 0
    while (took := forwarder.sweep()).files or took.bad:
        jobs += took.jobs
    return jobs


def names(store: RedisStore) -> set[str]:
    from batchq.lifecycle import State

    return {job.id for job in store.jobs(Q, State.PENDING, limit=5000).jobs}


# -- the first failure, and those after it ---------------------------------------------------------------------------


def test_enqueue_takes_its_patience_once_and_no_time_while_the_outage_lasts(
    app_on: Callable[..., App], spool: Path
) -> None:
    """Refused: the first call waits as long as it may, the others go to the disk at once."""
    app = app_on(f"redis://127.0.0.1:{free_port()}/0")
    took = []
    for n in range(20):
        began = time.monotonic()
        ref = app.enqueue("work", args=[n])
        took.append(time.monotonic() - began)
        assert ref.spooled
        assert ref.created
    assert took[0] < 0.3 + 1
    assert sorted(took[1:])[len(took) // 2] < 0.1
    assert [line["args"] for line in lines(spool)] == [[n] for n in range(20)]
    assert not any(line.get("maybe") for line in lines(spool)), "nothing was ever sent"


def test_silent_server_holds_up_one_call_and_then_a_quarter_of_a_second_each_second(
    redis_server: Server, app_on: Callable[..., App], spool: Path
) -> None:
    """A network that swallows all: the enqueue that was on its way may have been done, and says so."""
    with Proxy(redis_server.port) as proxy:
        app = app_on(proxy.url, enqueue_timeout=1.5)
        assert not app.enqueue("work").spooled
        proxy.silent = True
        began = time.monotonic()
        assert app.enqueue("work").spooled
        assert 1.4 < time.monotonic() - began < 3
        for _ in range(10):
            began = time.monotonic()
            assert app.enqueue("work").spooled
            assert time.monotonic() - began < PROBE_WAIT_S + 0.75
        first, *rest = lines(spool)
        assert first["maybe"] is True
        assert isinstance(first["mark"], list)
        assert not any("mark" in line for line in rest)
        proxy.silent = False


def test_bulk_goes_on_in_the_spool(app_on: Callable[..., App], spool: Path) -> None:
    """enqueue_many with a server that is away from the beginning: one wait, and all items are kept."""
    app = app_on(f"redis://127.0.0.1:{free_port()}/0")

    @app.job
    def work(n: int) -> None: ...

    began = time.monotonic()
    sums = work.enqueue_many(((n,) for n in range(2000)), ids=True)
    assert time.monotonic() - began < 3
    assert (sums.created, sums.known, sums.spooled) == (2000, 0, 2000)
    assert sums.ids is not None
    assert [line["id"] for line in lines(spool)] == list(sums.ids)


@pytest.mark.parametrize("off", [None, False])
def test_without_a_fallback_the_caller_is_told(app_on: Callable[..., App], spool: Path, off: object) -> None:
    """StoreUnavailable, within the patience; nothing is written."""
    app = app_on(f"redis://127.0.0.1:{free_port()}/0", fallback=off)
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="is the server up"):
            app.enqueue("work")
        assert time.monotonic() - began < 0.3 + 1
    assert not spool.exists()


def test_spool_that_may_be_gone_tomorrow_is_no_fallback(
    app_on: Callable[..., App], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tmpfs: refused with one warning at the start, unless it is allowed."""
    folder = Path(f"/dev/shm/batchq-test-{os.getpid()}")
    if not Path("/dev/shm").is_dir():
        pytest.skip("no tmpfs on this system")
    monkeypatch.setattr(logging.getLogger("batchq"), "propagate", True)
    app = app_on(f"redis://127.0.0.1:{free_port()}/0", spool=str(folder), fallback_ephemeral=False)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"no fallback.*lies on tmpfs.*fallback_ephemeral"):
            app.enqueue("work")
    assert not folder.exists()
    assert len([record for record in caplog.records if "fallback_off" in record.getMessage()]) == 1
    allowed = app_on(f"redis://127.0.0.1:{free_port()}/0", spool=str(folder))
    try:
        assert allowed.enqueue("work").spooled
    finally:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def test_spool_that_can_not_be_written_is_told_with_both_reasons(app_on: Callable[..., App], spool: Path) -> None:
    """A directory of something else's stands at its place."""
    spool.mkdir(mode=0o700)
    (spool / "letters.txt").write_text("not a spool")
    app = app_on(f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(StoreUnavailable, match=r"refused.*fallback can't take it either.*letters\.txt"):
        app.enqueue("work")


def test_call_that_may_have_been_done_says_so_where_there_is_no_fallback(
    app_on: Callable[..., App], redis_server: Server, spool: Path
) -> None:
    """The directory is used by something else, so that the caller has to know what to send again, and as what."""
    spool.mkdir(mode=0o700)
    (spool / "letters.txt").write_text("not a spool")
    with Proxy(redis_server.port) as proxy:
        app = app_on(proxy.url)
        proxy.refusing = True
        with pytest.raises(StoreUnavailable) as surely_not:
            app.enqueue("work")
        proxy.refusing = False
        proxy.cut = lambda reply: reply.startswith(b"*1\r\n")
        with pytest.raises(StoreUnavailable) as perhaps:
            app_on(proxy.url).enqueue("work")
    assert (surely_not.value.maybe, surely_not.value.mark) == (False, None)
    assert perhaps.value.maybe
    assert perhaps.value.mark is not None


def test_copy_of_a_call_keeps_its_mark_also_where_it_was_surely_not_done_again(spool: Path) -> None:
    """Its first sending, which found the queue full, may still come through."""
    store = RedisStore(f"redis://127.0.0.1:{free_port()}/0", patience_s=0.1)
    fallback = Fallback(store, str(spool), Limits(), ephemeral=True)
    assert fallback.enqueue(Q, [NewJob(new_id(), pack_row("work"))], Mark("lane", 3), max_pending=1) is None
    assert [line["mark"] for line in lines(spool)] == [["lane", 3]]


def test_full_server_spools_and_takes_them_when_it_has_room(
    app_on: Callable[..., App], spool: Path, flavour: str, prefix: str
) -> None:
    """maxmemory: no outage, for the server answers; what waits is not lost while there is no room."""
    server = Server(flavour, "--maxmemory-policy", "noeviction")
    try:
        app = app_on(server.url)
        app.enqueue("work")
        server.client.config_set("maxmemory", 1)
        refs = [app.enqueue("work") for _ in range(5)]
        assert all(ref.spooled for ref in refs)
        store = RedisStore(server.url, prefix=prefix)
        assert forward_all(store, spool) == 0
        assert inbox.census(spool).jobs == 5
        strict = app_on(server.url, fallback=False)
        with pytest.raises(StoreFull, match="maxmemory"):
            strict.enqueue("work")
        server.client.config_set("maxmemory", 0)
        assert forward_all(store, spool) == 5
        assert {ref.id for ref in refs} <= names(store)
        assert store.stats(Q).totals["forwarded"] == 5
        store.close()
    finally:
        server.stop()


# -- back again ------------------------------------------------------------------------------------------------------


def test_producer_forwards_by_its_next_call_that_goes_well(
    redis_server: Server, app_on: Callable[..., App], direct: RedisStore, spool: Path
) -> None:
    """The circuit asks once a second; then what waits goes out in portions, with the calls that follow."""
    with Proxy(redis_server.port) as proxy:
        app = app_on(proxy.url)
        proxy.refusing = True
        spooled = {app.enqueue("work").id for _ in range(100)}
        proxy.refusing = False
        sent = set()
        deadline = time.monotonic() + 5
        while inbox.census(spool).files:
            assert time.monotonic() < deadline
            ref = app.enqueue("work")
            (spooled if ref.spooled else sent).add(ref.id)
            time.sleep(0.01)
        assert sent
        assert names(direct) == spooled | sent
        totals = direct.stats(Q).totals
        assert (totals["enqueued"], totals["forwarded"]) == (len(spooled | sent), len(spooled))


def test_next_process_forwards_what_one_before_it_spooled(
    redis_server: Server, app_on: Callable[..., App], direct: RedisStore, spool: Path
) -> None:
    """Short-lived producers: nothing waits for a master that this host does not have."""
    with Proxy(redis_server.port) as proxy:
        first = app_on(proxy.url)
        proxy.refusing = True
        ref = first.enqueue("work")
        proxy.refusing = False
        other = app_on(proxy.url)
        other.enqueue("work")
        assert ref.id in names(direct)


def test_outage_is_told_with_what_was_spooled(
    redis_server: Server,
    app_on: Callable[..., App],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two lines, whatever the number of calls."""
    monkeypatch.setattr(logging.getLogger("batchq"), "propagate", True)
    with Proxy(redis_server.port) as proxy:
        app = app_on(proxy.url)
        proxy.refusing = True
        for _ in range(30):
            app.enqueue("work")
        proxy.refusing = False
        deadline = time.monotonic() + 5
        while app.enqueue("work").spooled:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    told = [r.getMessage() for r in caplog.records if "store_" in r.getMessage()]
    assert len(told) == 2
    assert int(told[1].split("spooled=")[1].split(" ")[0]) >= 30


@pytest.mark.parametrize("done", [True, False], ids=["was done", "was not done"])
@pytest.mark.parametrize("finished", [True, False], ids=["and is gone", "and stands"])
def test_call_that_may_have_been_done_runs_once(
    redis_server: Server, app_on: Callable[..., App], direct: RedisStore, spool: Path, done: bool, finished: bool
) -> None:
    """Executed and spooled, or spooled alone; also where the job has run and left no trace before it is forwarded."""
    with Proxy(redis_server.port) as proxy:
        app = app_on(proxy.url)
        app.enqueue("warm")
        direct.register(Q, "w", 60_000)
        [warm] = direct.claim(Q, "w", 1, 0).claims
        direct.complete(Q, "w", [Completed(warm)])
        held = proxy.hold(lambda frame, number: b"EVALSHA" in frame)
        # Nothing would hold the second attempt, for which there may be time left.
        proxy.refusing = True
        ref = app.enqueue("work")
        assert ref.spooled
        assert held.caught.is_set()
        if done:
            held.release()
        if finished:
            if not done:
                forward_all(direct, spool)
            [claim] = direct.claim(Q, "w", 1, 0).claims
            assert claim.id == ref.id
            direct.complete(Q, "w", [Completed(claim)])
        forward_all(direct, spool)
        # Late, after all that.
        held.release()
        forward_all(direct, spool)
        assert inbox.census(spool).files == 0
        stats = direct.stats(Q)
        assert stats.totals["enqueued"] == 2
        assert stats.totals["completed"] == 1 + finished
        assert stats.counts["pending"] == 1 - finished


def test_flapping_server_gets_each_job_once(
    redis_server: Server, app_on: Callable[..., App], direct: RedisStore, spool: Path
) -> None:
    """Connections end at random replies while several threads enqueue and a forwarder works: each id comes once."""
    accepted: list[str] = []
    stop = threading.Event()
    with Proxy(redis_server.port) as proxy:
        app = app_on(proxy.url, enqueue_timeout=0.05)

        def produce() -> None:
            accepted.extend(app.enqueue("work").id for _ in range(150))

        def break_things() -> None:
            while not stop.wait(0.003):
                proxy.cut_before = proxy.replies + 3
                if proxy.replies % 7 == 0:
                    proxy.refusing = not proxy.refusing
                    proxy.cut_all()

        breaker = threading.Thread(target=break_things)
        breaker.start()
        producers = [threading.Thread(target=produce) for _ in range(3)]
        for thread in producers:
            thread.start()
        through = RedisStore(proxy.url, prefix=direct.destination.split(" ")[1], patience_s=0.05)
        forwarder = Forwarder(through, spool, Limits(), everything=True)
        while any(thread.is_alive() for thread in producers):
            try:
                forwarder.sweep()
            except StoreUnavailable:
                time.sleep(0.01)
        stop.set()
        breaker.join()
        proxy.cut_before, proxy.refusing = None, False
        last = RedisStore(proxy.url, prefix=direct.destination.split(" ")[1])
        while Forwarder(last, spool, Limits()).sweep().files:
            pass
        through.close()
        last.close()
    assert len(accepted) == len(set(accepted)) == 450
    assert direct.stats(Q).totals["enqueued"] == 450
    assert names(direct) == set(accepted)


def test_results_of_spooled_jobs_are_waited_for(
    redis_server: Server, app_on: Callable[..., App], direct: RedisStore, spool: Path
) -> None:
    """A ref of a spooled job finds the job once it is forwarded."""
    with Proxy(redis_server.port) as proxy:
        app = app_on(proxy.url)

        @app.job(result=True)
        def work() -> int:
            return 7

        proxy.refusing = True
        ref = work.enqueue()
        proxy.refusing = False
        forward_all(RedisStore(proxy.url, prefix=direct.destination.split(" ")[1]), spool)
        direct.register(Q, "w", 60_000)
        [claim] = direct.claim(Q, "w", 1, 0).claims
        assert direct.complete(Q, "w", [Completed(claim, b"7", 60_000)]) == [Word.OK]
        deadline = time.monotonic() + 5
        while True:
            try:
                assert ref.result(timeout=1) == 7
                break
            except StoreUnavailable:
                # The circuit asks once a second.
                assert time.monotonic() < deadline
                time.sleep(0.05)


# -- a full queue ------------------------------------------------------------------------------------------------------


def test_what_a_full_queue_refuses_may_wait_in_the_spool(
    app_on: Callable[..., App], redis_server: Server, direct: RedisStore, spool: Path
) -> None:
    """It is forwarded as there is room, never beyond the limit, each job once; batches do not go that way."""
    app = app_on(redis_server.url, max_pending=3, when_full="spool")
    call = app.call("work")
    assert [call.enqueue(n).spooled for n in range(5)] == [False] * 3 + [True] * 2
    with pytest.raises(QueueFull):
        call.options(when_full="raise").enqueue(9)
    with app.batch(), pytest.raises(QueueFull):
        call.enqueue(9)
    assert len(lines(spool)) == 2
    forwarder = Forwarder(direct, spool, Limits(), everything=True, max_pending=lambda queue: 3)
    assert forwarder.sweep().jobs == 0
    direct.register(Q, "w", 60_000)
    done = []
    for _ in range(5):
        assert direct.stats(Q).counts["pending"] <= 3
        [claim] = direct.claim(Q, "w", 1, 0).claims
        direct.complete(Q, "w", [Completed(claim)])
        done.append(json.loads(claim.row)["args"][0])
        forwarder.sweep()
    assert done == [0, 1, 2, 3, 4]
    assert lines(spool) == []
