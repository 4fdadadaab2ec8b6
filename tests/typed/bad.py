"""Read by the type checker, never run: each line marked E must be an error, and no other."""

from __future__ import annotations

from batchq import App

app = App("memory:")


@app.job
def plain(url: str, body: dict[str, int], *, retries: int = 0) -> int:
    return 1


@app.job(queue="webhooks")
def deliver(url: str) -> str:
    return url


@app.job
async def fetch(url: str) -> bytes:
    return b""


plain.enqueue("u", {"a": 1})
plain.enqueue("u")  # E
plain.enqueue(3, {})  # E
plain.enqueue("u", {}, 3)  # E
plain.enqueue("u", {}, retry=3)  # E
plain.enqueue("u", {}, retries="3")  # E
plain.enqueue_in(60, 3, {})  # E
plain.enqueue_in("60", "u", {})  # E
plain.enqueue_at(60, "u", {})  # E
plain.options(priority=1).enqueue("u", 3)  # E
plain.options(prio=1)  # E
plain("u")  # E
deliver.enqueue(b"u")  # E
deliver.enqueue("u", "v")  # E
fetch.enqueue(3)  # E
number: int = deliver.enqueue("u").result()  # E
text: str = fetch("u")  # E
deliver.enqueue_many([["u"]])  # E
app.enqueue(3)  # E
app.job(queue=3)  # E
app.job(timeout="30s")  # E


async def main() -> None:
    await plain.aenqueue("u", {})
    await plain.aenqueue(3, {})  # E


@app.on_dead  # E
def died(nothing: int) -> None: ...
