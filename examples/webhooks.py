"""Webhooks: try again what may go well later, give up what can't, and never surprise the receiver with a repetition.

In this folder, with batchq installed:

    python webhooks.py receive                            # terminal 1: a receiver that is often busy, on port 8765
    python webhooks.py                                    # terminal 2: enqueues 200 deliveries
    batchq start -n 4 webhooks:app --burst                # works them off, retries included, and ends
    BATCHQ_APP=webhooks:app batchq jobs --state dead      # those whose endpoint is gone
    python webhooks.py counts                             # what the receiver counted

The jobs stand in ./var/webhooks. With BATCHQ_URL=redis://127.0.0.1:6379/0 all of these commands use Redis instead.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from batchq import App, Dead, Retry, current_job, exponential

app = App(spool="./var/webhooks")

RECEIVER = os.environ.get("RECEIVER", "http://127.0.0.1:8765")


# Delays of 0.5 s, 1 s, 2 s ... up to a minute, each 20 % more or less: what was refused together comes back apart.
@app.job(queue="webhooks", max_attempts=10, backoff=exponential(0.5, cap=60, jitter=0.2), timeout=15)
def deliver(url: str, event: dict[str, str]) -> None:
    headers = {
        "Content-Type": "application/json",
        # The same on every attempt: by it the receiver knows what it has taken already.
        "Idempotency-Key": current_job().id,
    }
    try:
        urlopen(Request(url, json.dumps(event).encode(), headers), timeout=10).close()
    except HTTPError as error:
        with error:
            if error.code in (404, 410):
                raise Dead(f"{url} is gone ({error.code})") from None
            if error.code in (429, 503):
                raise Retry(f"{url} is busy ({error.code})", after=_retry_after(error)) from None
        raise  # Any other answer, and any failure of the connection: the backoff decides.


def _retry_after(error: HTTPError) -> float | None:
    """What the receiver asks for, in seconds. None where it asks for nothing: then the backoff decides."""
    value = error.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else None


def deliveries(count: int = 200) -> Iterator[tuple[str, dict[str, str]]]:
    for n in range(count):
        yield f"{RECEIVER}/customers/{n % 40}", {"id": f"event-{n}", "kind": "order.paid"}


class Receiver(BaseHTTPRequestHandler):
    """A third of the events meet 503 at first; some are taken, but the answer is lost; one customer is gone."""

    lock = threading.Lock()
    tries: ClassVar[Counter[str]] = Counter()
    counts: ClassVar[Counter[str]] = Counter()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers["Idempotency-Key"]
        with self.lock:
            self.tries[key] += 1
            outcome = self.decide(key, zlib.crc32(key.encode()))
            self.counts[outcome] += 1
        if outcome != "taken, answer lost":
            codes = {"busy": 503, "gone": 410}
            self.send_response(codes.get(outcome, 200))
            self.send_header("Retry-After", "1")
            self.end_headers()

    def decide(self, key: str, luck: int) -> str:
        first = self.tries[key] == 1
        if self.path == "/customers/13":
            return "gone"
        if luck % 3 == 0:
            return "busy" if first else "taken"
        if luck % 20 == 1:
            return "taken, answer lost" if first else "known already"
        return "taken" if first else "known already"

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.counts).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def main(what: str = "enqueue") -> None:
    if what == "receive":
        host, port = RECEIVER.removeprefix("http://").split(":")
        ThreadingHTTPServer((host, int(port)), Receiver).serve_forever()
    elif what == "counts":
        with urlopen(RECEIVER, timeout=10) as answer:
            print(answer.read().decode())
    else:
        # An id of its own for each event: a second run of this program enqueues none of them again.
        done = deliver.enqueue_many(deliveries(), job_id=lambda item: item[1]["id"])
        print(f"{done.created} enqueued, {done.known} known already")


if __name__ == "__main__":
    main(*sys.argv[1:])
