"""Read by the type checker, never run: what users write, and what they get. All of it must pass."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from batchq import App, Job, JobRef, State, Word, current_job, exponential, fixed, full_jitter

app = App("memory:", lease="30s", fallback=None)


@app.job
def plain(url: str, body: dict[str, int], *, retries: int = 0) -> int:
    return len(url) + len(body) + retries


@app.job(queue="webhooks", max_attempts=8, backoff=exponential(1.0, cap=300, jitter=0.2), timeout=30, result=True)
def deliver(url: str) -> list[str]:
    return [url]


@app.job
async def fetch(url: str) -> bytes:
    return url.encode()


@app.job(backoff=[1, 5, timedelta(seconds=30)], result=timedelta(hours=1))
async def later(url: str) -> float:
    return 1.0


@app.job(backoff=full_jitter(fixed(3)), batch_claim=False)
def nothing() -> None: ...


@app.job(backoff=lambda attempt, error: attempt * 2.0)
def anything(*args: int, **kwargs: str) -> None: ...


assert_type(plain("u", {"a": 1}, retries=2), int)
assert_type(plain.enqueue("u", {"a": 1}), JobRef[int])
assert_type(plain.enqueue("u", body={}, retries=1).result(timeout=10), int)
assert_type(plain.enqueue_in(60, "u", {}), JobRef[int])
assert_type(plain.enqueue_in(timedelta(minutes=1), "u", {}), JobRef[int])
assert_type(plain.enqueue_at(datetime.now(UTC), "u", {}), JobRef[int])
assert_type(deliver("u"), list[str])
assert_type(deliver.enqueue("u").result(), list[str])
assert_type(deliver.options(priority=5, job_id="x", max_attempts=1).enqueue("u"), JobRef[list[str]])
waiting: Coroutine[Any, Any, bytes] = fetch("u")
assert_type(fetch.enqueue("u"), JobRef[bytes])
assert_type(later.enqueue("u").result(), float)
assert_type(deliver.enqueue("u").status(), State | None)
assert_type(deliver.enqueue("u").get(), Job | None)
assert_type(app.cancel("x"), Word)
assert_type(app.cancel(["x"]), list[Word])
assert_type(app.requeue({"x"}), list[Word])
assert_type(app.get("x"), Job | None)
nothing.enqueue()
anything.enqueue(1, 2, a="b")
deliver.enqueue_many([("u",), {"url": "v"}], ids=True)


async def main() -> None:
    assert_type(await plain.aenqueue("u", {}), JobRef[int])
    assert_type(await fetch("u"), bytes)
    await plain.aenqueue_many(("u", {}) for _ in range(3))


@app.on_worker_start
def opened() -> None:
    assert_type(current_job().token, int)


@app.on_dead
def died(job: Job) -> None: ...


opened()
