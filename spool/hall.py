"""Where the ledger keeps the gates of a queue: see `batchq/gates.py` for what they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from batchq import gates
from batchq.jsons import orjson
from batchq.spool.ledger import Book
from batchq.spool.schema import sql

_DOOR = sql("SELECT state FROM gate WHERE queue=? AND name=?")
_PUT = sql("INSERT OR REPLACE INTO gate(queue,name,state) VALUES(?,?,?)")
_VISIT = sql("INSERT OR REPLACE INTO visit(queue,gate,at) VALUES(?,?,?)")
_VISITS = sql("SELECT gate FROM visit WHERE queue=? AND at<=? ORDER BY at,gate LIMIT ?")
_VISITED = sql("DELETE FROM visit WHERE queue=? AND gate=?")
_FORGET_PASSED = sql("DELETE FROM passed WHERE queue=? AND gate=?")
_FORGET = sql("DELETE FROM gate WHERE queue=? AND name=?")
_PASS = sql("SELECT pass FROM guest WHERE queue=? AND id=?")
_GIVE = sql("INSERT OR REPLACE INTO guest(queue,id,pass) VALUES(?,?,?)")
_TAKE = sql("DELETE FROM guest WHERE queue=? AND id=?")
_FIRST = sql(
    "SELECT place,w.id,token,(SELECT attempts FROM job WHERE queue=w.queue AND id=w.id) FROM waiter w "
    "WHERE queue=? AND gate=? ORDER BY place LIMIT 1"
)
_WAIT = sql("INSERT OR REPLACE INTO waiter(queue,gate,place,token,id) VALUES(?,?,?,?,?)")
_UNWAIT = sql("DELETE FROM waiter WHERE queue=? AND gate=? AND place=?")
_PLACE = sql("SELECT coalesce((SELECT place FROM turn WHERE queue=?),0)+1")
_TURN = sql("INSERT OR REPLACE INTO turn(queue,place) VALUES(?,?)")
_DROP = sql("DELETE FROM passed WHERE queue=? AND gate=? AND at<?")
_PASSED = sql("SELECT at FROM passed WHERE queue=? AND gate=? ORDER BY at")
_NOTE = sql("INSERT OR REPLACE INTO passed(queue,gate,at,id,token) VALUES(?,?,?,?,?)")
_CALL = sql("UPDATE job SET state=0,place=?,at=? WHERE queue=? AND id=? AND state=1")
_FIRE = sql("UPDATE job SET at=?,place=? WHERE queue=? AND id=? AND state=1")


_ANYBODY = sql("SELECT 1 FROM guest WHERE queue=? LIMIT 1")


def gone(book: Book, ids: Iterable[str]) -> None:
    """The rows of these jobs are gone."""
    if book.db.execute(_ANYBODY, (book.queue,)).fetchone():
        hall = Hall(book)
        for job_id in ids:
            gates.gone(hall, job_id)


class Hall(gates.Hall):
    """See gates.Hall. Of one queue in one transaction."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._db = book.db
        self._queue = book.queue
        self.now_us = book.now_us

    def door(self, name: str) -> gates.Door:
        row = self._db.execute(_DOOR, (self._queue, name)).fetchone()
        return gates.Door(name) if row is None else gates.Door(**orjson.loads(row[0]))

    def is_there(self, name: str) -> bool:
        return self._db.execute(_DOOR, (self._queue, name)).fetchone() is not None

    def keep(self, door: gates.Door, *, forget: bool) -> None:
        if forget:
            self._db.execute(_FORGET, (self._queue, door.name))
        else:
            self._db.execute(_PUT, (self._queue, door.name, orjson.dumps(door.as_dict()).decode()))

    def visit(self, name: str, at_ms: int) -> None:
        self._db.execute(_VISIT, (self._queue, name, at_ms))

    def visits(self, limit: int) -> list[str]:
        return [name for (name,) in self._db.execute(_VISITS, (self._queue, self.now_ms, limit))]

    def visited(self, name: str) -> None:
        self._db.execute(_VISITED, (self._queue, name))

    def pass_of(self, job_id: str) -> gates.Pass | None:
        row = self._db.execute(_PASS, (self._queue, job_id)).fetchone()
        if row is None:
            return None
        flag, token, place, at, names = orjson.loads(row[0])
        return gates.Pass(flag, token, place, at, tuple(names))

    def give_pass(self, job_id: str, given: gates.Pass | None) -> None:
        if given is None:
            self._db.execute(_TAKE, (self._queue, job_id))
        else:
            self._db.execute(_GIVE, (self._queue, job_id, orjson.dumps([*given[:4], list(given.names)]).decode()))

    def first(self, name: str) -> gates.Waiting | None:
        while True:
            row = self._db.execute(_FIRST, (self._queue, name)).fetchone()
            if row is None or row[2] == row[3]:
                return None if row is None else gates.Waiting(row[0], row[1])
            self.wait_no_more(name, row[0])

    def wait(self, name: str, place: int, token: int, job_id: str) -> None:
        self._db.execute(_WAIT, (self._queue, name, place, token, job_id))

    def wait_no_more(self, name: str, place: int) -> None:
        self._db.execute(_UNWAIT, (self._queue, name, place))

    def new_place(self) -> int:
        [[place]] = self._db.execute(_PLACE, (self._queue,))
        self._db.execute(_TURN, (self._queue, place))
        return int(place)

    def passed(self, name: str, since_us: int) -> list[int]:
        self._db.execute(_DROP, (self._queue, name, since_us))
        return [at for (at,) in self._db.execute(_PASSED, (self._queue, name))]

    def forget_passed(self, name: str) -> None:
        self._db.execute(_FORGET_PASSED, (self._queue, name))

    def note_passed(self, name: str, job_id: str, token: int) -> None:
        self._db.execute(_NOTE, (self._queue, name, self.now_us, job_id, token))

    def call(self, ids: Sequence[str]) -> None:
        book = self._book
        for job_id in reversed(ids):
            book.n["head"] -= 1
            moved = self._db.execute(_CALL, (book.n["head"], book.now, self._queue, job_id)).rowcount
            book.n["n_delayed"] -= moved
            book.n["n_pending"] += moved
            book.n["promoted"] += moved
        book.ready = True

    def set_fire(self, job_id: str, fire_ms: int) -> None:
        book = self._book
        book.n["tail"] += 1
        self._db.execute(_FIRE, (fire_ms, book.n["tail"], self._queue, job_id))
        book.timer = True
