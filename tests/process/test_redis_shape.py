"""What stands in Redis, looked at by a client that knows nothing of batchq: INCR-minted attempts, one delayed set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from batchq.job import Completed, NewJob, Retried, new_id, pack_error, pack_row
from batchq.lifecycle import State
from batchq.redis.store import RedisStore
from batchq.tally import NewBatch
from tests.process.rig import Rig
from tests.servers import Server

APP = """
@app.job(max_attempts=5, backoff=fixed(60))
def fails():
    note("S")
    raise ValueError("no")


@app.job(max_attempts=5, backoff=fixed(0))
def fails_twice():
    note("S")
    if current_job().attempt < 3:
        raise ValueError("no")
    while not os.path.exists("gate"):
        time.sleep(0.01)
"""


def raw(rig: Rig) -> Any:
    """A plain client; untyped, as redis-py is."""
    return redis.Redis.from_url(rig.url, decode_responses=True)


def key(rig: Rig, name: str) -> str:
    return f"{rig.prefix}:{{default}}:{name}"


def test_attempts_are_minted_by_the_server(redis_rig: Rig) -> None:
    """The hash field appears with the first claim and counts claims; it is the token that the handler sees."""
    rig = redis_rig
    rig.app(APP)
    job = rig.enqueue("fails_twice")
    client = raw(rig)
    assert client.hget(key(rig, "attempts"), job) is None
    pool = rig.start()
    rig.until_started(job, times=3)
    assert client.hget(key(rig, "attempts"), job) == "3"
    assert [entry.token for entry in rig.ledger.starts(job)] == [1, 2, 3]
    [worker] = [name.decode() if isinstance(name, bytes) else name for name in client.zrange(key(rig, "leases"), 0, -1)]
    assert client.smembers(key(rig, f"active:{worker}")) == {job}
    (rig.folder / "gate").touch()
    rig.until_counts(done=1)
    assert client.hget(key(rig, "attempts"), job) is None
    assert pool.stop() == 0


def test_retry_is_a_delayed_job_like_any_other(redis_rig: Rig) -> None:
    """A retry and a job scheduled for the first time stand in one sorted set, under one formula."""
    rig = redis_rig
    rig.app(APP)
    client = raw(rig)
    scheduled = rig.enqueue("fails", delay_ms=60_000)
    job = rig.enqueue("fails")
    before_ms = rig.store.now_ms()
    pool = rig.start()
    rig.until_counts(retried=1)
    after_ms = rig.store.now_ms()
    assert client.type(key(rig, "delayed")) == "zset"
    members = client.zrange(key(rig, "delayed"), 0, -1, withscores=True)
    assert [name for name, _ in members] == [scheduled, job]
    fire_ms, seq = divmod(int(members[1][1]), 4096)
    assert before_ms + 60_000 <= fire_ms <= after_ms + 60_000 + 1
    assert seq == 0
    assert client.hkeys(key(rig, "attempts")) == [job]
    assert pool.stop() == 0
    # No other key of the queue tells the two apart.
    for name in client.scan_iter(f"{rig.prefix}:*"):
        if name not in (key(rig, "delayed"), key(rig, "attempts"), key(rig, "rows"), key(rig, "notes")):
            assert client.type(name) not in ("zset", "set", "list") or not {scheduled, job} & members_of(client, name)


def members_of(client: Any, name: str) -> set[str]:
    match client.type(name):
        case "zset":
            return set(client.zrange(name, 0, -1))
        case "set":
            return set(client.smembers(name))
        case _:
            return set(client.lrange(name, 0, -1))


def test_promote_moves_at_most_a_thousand_in_order(redis_rig: Rig) -> None:
    """3000 jobs due at once: three sweeps of a thousand, in the order in which they became due."""
    rig = redis_rig
    client = raw(rig)
    ids = []
    for number in range(30):
        ids += rig.enqueue_many("fails", [()] * 100, delay_ms=300 + number)
    assert client.zcard(key(rig, "delayed")) == 3000
    [(_, last)] = client.zrange(key(rig, "delayed"), -1, -1, withscores=True)
    rig.until(lambda: rig.store.now_ms() > int(last) // 4096, "all are due")
    for sweep in range(3):
        assert rig.store.promote("default").moved == 1000
        assert client.llen(key(rig, "pending")) == (sweep + 1) * 1000
        assert client.zcard(key(rig, "delayed")) == 3000 - (sweep + 1) * 1000
    nothing = rig.store.promote("default")
    assert (nothing.moved, nothing.next_in_ms) == (0, None)
    assert client.lrange(key(rig, "pending"), 0, -1) == ids


def test_what_a_large_batch_holds_is_kept_in_tables(redis_server: Server, prefix: str) -> None:
    """Redis walks a packed list at each look-up. What makes it a table leaves nothing behind."""
    store, client = RedisStore(redis_server.url, prefix=prefix), redis_server.client
    attempts, active = (f"{prefix}:{{default}}:{name}" for name in ("attempts", "active:one"))
    store.register("default", "one", 60_000)
    ids = [new_id() for _ in range(100)]
    store.enqueue("default", [NewJob(job_id, pack_row("work")) for job_id in ids])
    claims = store.claim("default", "one", 100, 0).claims
    assert {client.object("encoding", key) for key in (attempts, active)} == {b"hashtable"}
    assert client.hgetall(attempts) == {job_id.encode(): b"1" for job_id in ids}
    assert client.smembers(active) == {job_id.encode() for job_id in ids}
    store.complete("default", "one", [Completed(claim) for claim in claims])
    assert client.exists(attempts, active) == 0
    store.close()


def test_jobs_without_a_batch_touch_nothing_of_batches(redis_rig: Rig) -> None:
    """Their moves ask one field of a hash whether there are any; those of a batch write its two keys once a call."""
    store, client = redis_rig.store, raw(redis_rig)
    store.register("default", "w", 60_000)
    # Scripts are loaded once: what is sent before a script is known is not looked at.
    assert len(touched(redis_rig, client, live, "")) > 20
    assert [command for command in touched(redis_rig, client, live, "") if ":batch" in command] == []
    store.begin("default", NewBatch("b"))
    batched = [command for command in touched(redis_rig, client, live, "b") if ":batch" in command]
    # Two jobs: joined in one call, one completed, one dead.
    assert len([command for command in batched if "HSET" in command and ":batches" in command]) == 3
    assert len(batched) <= 16, batched


def live(rig: Rig, batch: str) -> None:
    """Two jobs from their enqueue to their ends."""
    jobs = [NewJob(new_id(), pack_row("fails"), batch=batch) for _ in range(2)]
    rig.store.enqueue("default", jobs)
    good, bad = rig.store.claim("default", "w", 2, 0).claims
    error = pack_error("ValueError", "no", attempt=1, at_ms=1)
    rig.store.complete("default", "w", [Completed(good)])
    rig.store.retry("default", "w", [Retried(bad, 0, 1, error)])
    rig.store.purge("default", State.DEAD, [bad.id])


def touched(rig: Rig, client: Any, act: Callable[[Rig, str], None], batch: str) -> list[str]:
    """The commands that scripts of this rig have sent meanwhile."""
    with client.monitor() as monitor:
        act(rig, batch)
        client.echo(f"end of {rig.prefix}")
        seen = []
        for command in monitor.listen():
            if command["command"] == f"ECHO end of {rig.prefix}":
                return seen
            if command["client_type"] == "lua" and rig.prefix in command["command"]:
                seen.append(command["command"])
    raise AssertionError("the monitor ended")
