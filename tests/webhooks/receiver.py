"""A receiver of webhooks in a thread, which counts what arrives and answers as its path says."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Got(NamedTuple):
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes
    #: On the monotonic clock, when it came.
    at: float
    #: Requests under way on this path, this one included.
    at_once: int
    connection: int


class Receiver:
    """POST /status/CODE answers that; ?header=value lines come back as headers; /slow/SECONDS waits."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self._lock = threading.Lock()
        self._under_way: dict[str, int] = {}
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                receiver._post(self)

            def log_message(self, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def _post(self, request: Any) -> None:
        path, _, query = request.path.partition("?")
        with self._lock:
            now = self._under_way[path] = self._under_way.get(path, 0) + 1
        body = request.rfile.read(int(request.headers["content-length"]))
        headers = {name.lower(): value for name, value in request.headers.items()}
        with self._lock:
            self.got.append(Got(path, headers, body, time.monotonic(), now, request.client_address[1]))
        kind, _, value = path[1:].partition("/")
        if kind == "slow":
            time.sleep(float(value))
        with self._lock:
            self._under_way[path] -= 1
        request.send_response(int(value) if kind == "status" else 200)
        for line in filter(None, query.split("&")):
            name, _, text = line.partition("=")
            request.send_header(name, text)
        answer = json.dumps({"said": "x" * 2000 if kind == "long" else path}).encode()
        request.send_header("content-length", str(len(answer)))
        request.end_headers()
        request.wfile.write(answer)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
