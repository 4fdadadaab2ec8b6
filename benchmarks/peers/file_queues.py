"""Queues in files, each by its own library: `python -m peers.file_queues SYSTEM FOLDER JOBS fill|bulk|drain BATCH`.

Runs in the environment of the system measured, and prints one line of JSON. Each takes bytes and gives them back; the
classes do nothing but call the library the way its documentation does.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: What a job carries: about 100 bytes of JSON.
PAYLOAD = b'{"number":%09d,"kind":"noop","pad":"' + b"x" * 55 + b'"}'
#: Jobs handed over at a time in bulk.
STEP = 1000


class BatchqSpool:
    """batchq's ledger, claims and outcomes in one transaction."""

    mode: Any = "power"

    def __init__(self, folder: Path, batch: int) -> None:
        from batchq.spool import SpoolStore

        self._store = SpoolStore(folder / "spool", durability=self.mode)
        self._batch = batch

    def _jobs(self, payloads: list[bytes]) -> list[Any]:
        from batchq.job import NewJob, new_id

        return [NewJob(new_id(), b'{"job":"noop","args":[' + payload + b"]}") for payload in payloads]

    def one(self, payload: bytes) -> None:
        self._store.enqueue("q", self._jobs([payload]))

    def many(self, payloads: list[bytes]) -> None:
        self._store.enqueue("q", self._jobs(payloads))

    def drain(self) -> Iterator[int]:
        from batchq.job import Completed

        self._store.register("q", "w", 600_000)
        claims = self._store.claim("q", "w", self._batch, 0).claims
        while claims:
            done = [Completed(claim) for claim in claims]
            yield len(done)
            claims = self._store.exchange("q", "w", done, self._batch, 0).claimed.claims


class BatchqProcess(BatchqSpool):
    """The same without a flush."""

    mode = "process"


class SqliteHuey:
    """huey's SqliteStorage; a task that was taken is gone."""

    fsync = False

    def __init__(self, folder: Path, batch: int) -> None:
        from huey.storage import SqliteStorage

        self._queue = SqliteStorage(name="q", filename=str(folder / "huey.db"), fsync=self.fsync)

    def one(self, payload: bytes) -> None:
        self._queue.enqueue(payload)

    def drain(self) -> Iterator[int]:
        while self._queue.dequeue() is not None:
            yield 1


class SqliteHueyDurable(SqliteHuey):
    """The same with its option fsync."""

    fsync = True


class FileHuey(SqliteHuey):
    """huey's FileStorage."""

    def __init__(self, folder: Path, batch: int) -> None:
        from huey.storage import FileStorage

        self._queue = FileStorage(name="q", path=str(folder / "huey"))


class PersistAck:
    """persist-queue's SQLiteAckQueue: got, then acknowledged."""

    def __init__(self, folder: Path, batch: int) -> None:
        import persistqueue

        self._queue = persistqueue.SQLiteAckQueue(str(folder / "ack"), auto_commit=True)
        self._empty = persistqueue.Empty

    def one(self, payload: bytes) -> None:
        self._queue.put(payload)

    def drain(self) -> Iterator[int]:
        while True:
            try:
                item = self._queue.get(block=False)
            except self._empty:
                return
            self._queue.ack(item)
            yield 1


class PersistFile:
    """persist-queue's Queue of chunk files."""

    def __init__(self, folder: Path, batch: int) -> None:
        import persistqueue

        self._queue = persistqueue.Queue(str(folder / "file"), autosave=True)
        self._empty = persistqueue.Empty

    def one(self, payload: bytes) -> None:
        self._queue.put(payload)

    def drain(self) -> Iterator[int]:
        while True:
            try:
                self._queue.get(block=False)
            except self._empty:
                return
            yield 1


class Dirq:
    """python-dirq's QueueSimple: a file a job, a lock by hard link."""

    def __init__(self, folder: Path, batch: int) -> None:
        from dirq.QueueSimple import QueueSimple

        self._queue = QueueSimple(str(folder / "dirq"))

    def one(self, payload: bytes) -> None:
        self._queue.add(payload)

    def drain(self) -> Iterator[int]:
        for name in self._queue:
            if self._queue.lock(name):
                self._queue.get(name)
                self._queue.remove(name)
                yield 1


class Litequeue:
    """litequeue: popped, then done."""

    def __init__(self, folder: Path, batch: int) -> None:
        from litequeue import LiteQueue

        self._queue = LiteQueue(str(folder / "lite.db"))

    def one(self, payload: bytes) -> None:
        self._queue.put(payload.decode())

    def drain(self) -> Iterator[int]:
        while (message := self._queue.pop()) is not None:
            self._queue.done(message.message_id)
            yield 1


SYSTEMS: dict[str, Any] = {
    "batchq": BatchqSpool,
    "batchq_process": BatchqProcess,
    "sqlite_huey": SqliteHuey,
    "sqlite_huey_fsync": SqliteHueyDurable,
    "file_huey": FileHuey,
    "persist_ack": PersistAck,
    "persist_file": PersistFile,
    "dirq": Dirq,
    "litequeue": Litequeue,
}


def main(system: str, folder: str, jobs: int, what: str, batch: int) -> None:
    queue = SYSTEMS[system](Path(folder), batch)
    payloads = [PAYLOAD % number for number in range(jobs)]
    many = getattr(queue, "many", None)
    began = time.perf_counter()
    done = jobs
    if what == "drain":
        done = sum(queue.drain())
    elif what == "bulk" and many is not None:
        for start in range(0, jobs, STEP):
            many(payloads[start : start + STEP])
    else:
        for payload in payloads:
            queue.one(payload)
    print(json.dumps({"jobs": done, "seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
