"""A local HTTP server that takes webhooks and refuses many: about a third of the events meet 503 first, some twice.

It counts by itself what came and what it answered: the summary compares that with the store.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self

#: The share of events that are refused at first, and of those, that are refused once more.
REFUSED, REFUSED_TWICE = 1 / 3, 1 / 4


class Seen(NamedTuple):
    """What the server counted: requests, refusals (503), and accepted deliveries by event."""

    requests: int
    refused: int
    accepted: Counter[str]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    #: Connections that may wait to be accepted: all workers can come at once.
    request_queue_size = 128


class Receiver:
    """A context: serves on a free port of 127.0.0.1 from a thread."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._lock = threading.Lock()
        self._tries: Counter[str] = Counter()
        self._refused = 0
        self._accepted: Counter[str] = Counter()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                code = receiver.answer(self.headers.get("Event-Id", ""))
                self.send_response(code)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook"

    def answer(self, event: str) -> int:
        """Takes one delivery and decides: 200 or 503."""
        with self._lock:
            self._tries[event] += 1
            if self._tries[event] <= self._refusals(event):
                self._refused += 1
                return 503
            self._accepted[event] += 1
            return 200

    def _refusals(self, event: str) -> int:
        rng = random.Random(f"{self._seed} {event}")
        if rng.random() >= REFUSED:
            return 0
        return 2 if rng.random() < REFUSED_TWICE else 1

    def seen(self) -> Seen:
        with self._lock:
            return Seen(self._tries.total(), self._refused, self._accepted.copy())

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="receiver", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
