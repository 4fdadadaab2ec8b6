"""The inbox: files that anybody may drop, each taken exactly once, whatever is in it and whenever somebody dies."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batchq.clock import MAX_FIRE_MS, ManualClock
from batchq.errors import ConfigError, StoreFull
from batchq.job import Completed, Mark, NewJob, pack_row
from batchq.lifecycle import State, Word
from batchq.spool import SpoolStore, drop, fs, inbox
from batchq.store import Ingested, Limits
from tests.unit.spool.helpers import Q, a_job, check_books, claim_all, end_at, fork, wait

HOUR_MS = 3_600_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def store(path: Path, clock: ManualClock) -> Iterator[SpoolStore]:
    opened = SpoolStore(path, clock=clock)
    yield opened
    opened.close()
    check_books(path)


def put(path: Path, name: str, data: bytes | str) -> None:
    """Drops a file as a person does: cp, then mv."""
    temporary = path / "inbox" / "tmp" / "x"
    temporary.write_bytes(data.encode() if isinstance(data, str) else data)
    temporary.rename(path / "inbox" / "new" / name)


def standing(store: SpoolStore, queue: str = Q, state: State = State.PENDING) -> list[str]:
    return [job.id for job in store.jobs(queue, state, limit=10_000).jobs]


def reasons(path: Path) -> dict[str, str]:
    """What was moved aside, by its label, and why."""
    bad = path / "inbox" / "bad"
    return {
        name.split("-", 1)[1]: (bad / f"{name}.why").read_text()
        for name in os.listdir(bad)
        if not name.endswith(".why")
    }


def leftovers(path: Path) -> list[str]:
    return [str(p) for part in ("tmp", "new", "work") for p in (path / "inbox" / part).iterdir()]


# -- what a parcel says --------------------------------------------------------------------------------------------


def test_dropped_by_hand(store: SpoolStore, path: Path, clock: ManualClock) -> None:
    """The least and the most that a line can say."""
    fire = store.now_ms() + HOUR_MS
    lines = [
        {"job": "send"},
        {
            "v": 1,
            "id": "invoice-17",
            "queue": "images",
            "job": "resize",
            "args": [1, "two"],
            "kwargs": {"deep": {"er": [None]}},
            "priority": 7,
            "at": fire,
            "max": 3,
            "timeout": 5000,
            "keep": 60_000,
            "colour": "blue",
        },
        {"job": "send", "delay_ms": 1000},
    ]
    put(path, "orders.json", "\n".join(json.dumps(line) for line in lines))
    assert store.sweep_inbox() == Ingested(1, 3, 0)
    assert leftovers(path) == []
    [plain] = store.jobs("default", State.PENDING).jobs
    assert (plain.job, plain.args, plain.priority, plain.enqueued_ms) == ("send", [], 0, store.now_ms())
    assert plain.id.endswith(":1")
    [image] = store.jobs("images", State.DELAYED).jobs
    assert (image.id, image.job, image.args, image.kwargs) == (
        "invoice-17",
        "resize",
        [1, "two"],
        {"deep": {"er": [None]}},
    )
    assert (image.priority, image.since_ms, image.max_attempts) == (7, fire, 3)
    [later] = store.jobs("default", State.DELAYED).jobs
    assert later.since_ms == store.now_ms() + 1000
    clock.advance(2 * HOUR_MS)
    [claim] = claim_all(store, "w1", queue="images")
    row = json.loads(claim.row)
    assert {key: row[key] for key in ("max", "timeout", "keep", "colour")} == {
        "max": 3,
        "timeout": 5000,
        "keep": 60_000,
        "colour": "blue",
    }


def test_pretty_printed_object_is_one_job(store: SpoolStore, path: Path) -> None:
    """People drop files that their editor has formatted."""
    put(path, "job.json", json.dumps({"id": "a", "queue": Q, "job": "send", "args": [1]}, indent=2))
    assert store.sweep_inbox() == Ingested(1, 1, 0)
    assert standing(store) == ["a"]


def test_id_in_a_file_is_remembered_like_one_that_a_caller_gave(store: SpoolStore, path: Path) -> None:
    """Dropped again after its end it changes nothing; one that says that it was generated is not remembered."""
    for name, line in (("a", {"id": "a"}), ("b", {"id": "b", "given": False})):
        put(path, name, json.dumps({"job": "send", "queue": Q} | line))
    store.sweep_inbox()
    store.complete(Q, "w1", [Completed(claim) for claim in claim_all(store, "w1")])
    assert store.enqueue(Q, [a_job("a"), a_job("b")]) == [Word.KNOWN, Word.OK]


def test_what_drop_writes_is_what_sweep_reads(store: SpoolStore, path: Path, clock: ManualClock) -> None:
    """Every option of a new job survives the way through a file."""
    row = pack_row("send", ["ä", {"b": 1.5}], {"k": None}, max_attempts=9, timeout_ms=77, keep_ms=5)
    jobs = [
        (Q, NewJob("plain", row)),
        (Q, NewJob("first", row, priority=100, given=True)),
        ("other", NewJob("late", row, priority=-100, delay_ms=5000)),
        ("other", NewJob("dated", row, fire_ms=store.now_ms() + 9000)),
    ]
    [name] = drop(path, jobs, clock=clock)
    assert name.endswith(".4.ndjson")
    assert inbox.census(path) == inbox.Census(1, 4, 0)
    assert store.sweep_inbox() == Ingested(1, 4, 0)
    assert standing(store) == ["first", "plain"]
    fires = {job.id: (job.since_ms, job.priority) for job in store.jobs("other", State.DELAYED).jobs}
    assert fires == {"late": (store.now_ms() + 5000, -100), "dated": (store.now_ms() + 9000, 0)}
    [first, plain] = claim_all(store, "w1")
    assert json.loads(plain.row) == {"t": store.now_ms()} | json.loads(row)
    store.complete(Q, "w1", [Completed(first), Completed(plain)])
    assert store.enqueue(Q, [a_job("plain"), a_job("first")]) == [Word.OK, Word.KNOWN]


def test_many_jobs_are_several_parcels(store: SpoolStore, path: Path) -> None:
    """No file is larger than a reader accepts; order is kept."""
    ids = [f"j{n:05d}" for n in range(2500)]
    assert len(drop(path, [(Q, a_job(id)) for id in ids])) == 3
    large = NewJob("large", pack_row("send", ["x" * (9 << 20)]))
    assert len(drop(path, [(Q, large), (Q, large._replace(id="larger"))])) == 2
    while store.sweep_inbox().files:
        pass
    assert standing(store) == [*ids, "large", "larger"]


def test_copy_of_a_call_that_may_have_been_done_runs_once(store: SpoolStore, path: Path) -> None:
    """A line under the mark of an enqueue call: if that call came through after all, the copy adds nothing."""
    done, lost = Mark("lane", 1), Mark("lane", 2)
    store.enqueue(Q, [a_job("a")], done)
    store.complete(Q, "w1", [Completed(claim) for claim in claim_all(store, "w1")])
    drop(path, [(Q, a_job("a"))], mark=done, maybe=True)
    drop(path, [(Q, a_job("b"))], mark=lost, maybe=True)
    assert store.sweep_inbox() == Ingested(2, 1, 0)
    assert standing(store) == ["b"]
    assert store.enqueue(Q, [a_job("b")], lost) == [Word.AGAIN]


def test_same_file_dropped_twice_is_two_parcels(store: SpoolStore, path: Path) -> None:
    """People drop `job.json` again and again: the name is no identity."""
    for _ in range(3):
        put(path, "job.json", '{"job":"send","queue":"mail"}')
        assert store.sweep_inbox() == Ingested(1, 1, 0)
    assert store.stats(Q).counts["pending"] == 3


BAD_LINES = {
    "no JSON": (b"{job", "line 1: JSON"),
    "no object": (b"[1]", "line 1: expected an object, found list"),
    "no job": (b'{"args":[]}', "line 1: job: expected the handler's name, a string, found none"),
    "empty job": (b'{"job":""}', "job: expected the handler's name"),
    "job no string": (b'{"job":5}', "job: expected the handler's name, a string, found 5"),
    "version": (b'{"job":"x","v":2}', "v: expected 1, found 2"),
    "args": (b'{"job":"x","args":{}}', "args: expected a list, found {}"),
    "kwargs": (b'{"job":"x","kwargs":[]}', "kwargs: expected an object"),
    "queue": (b'{"job":"x","queue":"../etc"}', "queue: '../etc' is no queue name"),
    "queue no string": (b'{"job":"x","queue":null}', "queue: None is no queue name"),
    "id": (b'{"job":"x","id":"a b"}', "job_id: 'a b' is no id"),
    "id null": (b'{"job":"x","id":null}', "job_id: None is no id"),
    "priority": (b'{"job":"x","priority":101}', "priority: expected a whole number from -100 to 100"),
    "priority bool": (b'{"job":"x","priority":true}', "priority: expected a whole number"),
    "at float": (b'{"job":"x","at":1.5}', "at: expected a whole number"),
    "at late": (b'{"job":"x","at":%d}' % (MAX_FIRE_MS + 1), "at: expected a whole number from 0 to 2199023255551"),
    "delay late": (b'{"job":"x","delay_ms":%d}' % MAX_FIRE_MS, "delay_ms: expected a whole number"),
    "delay negative": (b'{"job":"x","delay_ms":-1}', "delay_ms: expected a whole number"),
    "both": (b'{"job":"x","delay_ms":1,"at":1}', "at, delay_ms: expected one of the two, found both"),
    "max": (b'{"job":"x","max":0}', "max: expected a whole number from 1"),
    "max huge": (b'{"job":"x","max":99999999999999999999}', "line 1:"),
    "mark": (b'{"job":"x","mark":["a"]}', "mark: expected [lane, call]"),
    "mark lane": (b'{"job":"x","mark":["\\ud800",1]}', "mark[0]: a string with a lone surrogate"),
    "given": (b'{"job":"x","id":"a","given":1}', "given: expected true or false"),
    "twice": (b'{"job":"x","job":"y"}', "'job' stands twice"),
    "nan": (b'{"job":"x","args":[NaN]}', "NaN is no JSON"),
    "big": (b'{"job":"x","args":[123456789012345678901234567890]}', "beyond 64 bits"),
    "surrogate": (b'{"job":"x","args":["\\ud800"]}', "line 1:"),
    "utf-8": (b'{"job":"\xff"}', "no valid UTF-8"),
    "deep": (b'{"job":"x","args":' + b"[" * 5000 + b"]" * 5000 + b"}", "nested deeper"),
    "second line": (b'{"job":"x"}\n{"job":1}\n', "line 2: job:"),
    "empty": (b"", "expected at least one job, found an empty file"),
    "blank": (b"\n \n\n", "expected at least one job, found an empty file"),
    "nul": (b"\x00" * 100, "line 1:"),
    "too many lines": (b'{"job":"x"}\n' * 1001, "expected at most 1000 lines, found 1001"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_parcel_with_a_bad_line_is_moved_aside_whole(store: SpoolStore, path: Path, name: str) -> None:
    """With a reason that names line, place, what was expected and found; its neighbours come through."""
    data, why = BAD_LINES[name]
    put(path, "1.json", '{"job":"send","queue":"mail","id":"before"}')
    put(path, "2.json", data)
    put(path, "3.json", '{"job":"send","queue":"mail","id":"after"}')
    assert store.sweep_inbox() == Ingested(2, 2, 1)
    assert standing(store) == ["before", "after"]
    assert store.queues() == [Q]
    assert list(reasons(path)) == ["2.json"]
    assert why in reasons(path)["2.json"]
    [kept] = [p for p in (path / "inbox" / "bad").iterdir() if p.suffix != ".why"]
    assert kept.read_bytes() == data
    assert leftovers(path) == []


# -- hostile files -------------------------------------------------------------------------------------------------


def _link(path: Path, name: str) -> None:
    secret = path.parent / "secret"
    secret.write_text('{"job":"send","queue":"mail","id":"stolen"}')
    (path / "inbox" / "new" / name).symlink_to(secret)


def _hard_link(path: Path, name: str) -> None:
    secret = path.parent / "hard"
    secret.write_text('{"job":"send","queue":"mail","id":"stolen"}')
    os.link(secret, path / "inbox" / "new" / name)


def _folder(path: Path, name: str) -> None:
    (path / "inbox" / "new" / name / "inner").mkdir(parents=True)


def _fifo(path: Path, name: str) -> None:
    os.mkfifo(path / "inbox" / "new" / name)


def _socket(path: Path, name: str) -> None:
    here = os.getcwd()
    os.chdir(path / "inbox" / "new")
    try:
        socket.socket(socket.AF_UNIX).bind(name)
    finally:
        os.chdir(here)


def _large(path: Path, name: str) -> None:
    with open(path / "inbox" / "new" / name, "wb") as file:
        file.truncate(17 << 20)


HOSTILE: dict[str, tuple[Callable[[Path, str], None], str]] = {
    "symlink": (_link, "expected a regular file, found a symbolic link"),
    "hard link": (_hard_link, "found 2 hard links"),
    "folder": (_folder, "found a directory"),
    "fifo": (_fifo, "found a FIFO or device"),
    "socket": (_socket, "found a socket or device"),
    "large": (_large, "expected at most 16777216 bytes"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_file_is_moved_aside_and_stops_no_other(store: SpoolStore, path: Path, kind: str) -> None:
    """It is neither followed, nor waited for, nor read to its end, nor deleted."""
    make, why = HOSTILE[kind]
    put(path, "1.json", '{"job":"send","queue":"mail","id":"before"}')
    make(path, "2.json")
    put(path, "3.json", '{"job":"send","queue":"mail","id":"after"}')
    assert store.sweep_inbox() == Ingested(2, 2, 1)
    assert standing(store) == ["before", "after"]
    assert why in reasons(path)["2.json"]
    assert leftovers(path) == []
    assert store.sweep_inbox() == Ingested(0, 0, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_file_of_a_stranger_is_moved_aside(store: SpoolStore, path: Path) -> None:
    put(path, "a.json", '{"job":"send"}')
    os.chown(path / "inbox" / "new" / "a.json", 12345, -1)
    assert store.sweep_inbox() == Ingested(0, 0, 1)
    assert "found 12345" in reasons(path)["a.json"]


def test_file_that_can_not_be_read_is_moved_aside(
    store: SpoolStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad block under one file stops no other."""
    put(path, "1.json", '{"job":"send","queue":"mail","id":"a"}')
    put(path, "2.json", '{"job":"send","queue":"mail","id":"b"}')
    read, calls = os.read, []

    def failing(fd: int, n: int) -> bytes:
        calls.append(fd)
        if len(calls) == 1:
            raise OSError(errno.EIO, "Input/output error")
        return read(fd, n)

    monkeypatch.setattr(fs.os, "read", failing)
    assert store.sweep_inbox() == Ingested(1, 1, 1)
    assert "found Input/output error" in reasons(path)["1.json"]


STRANGE_NAMES = [
    "with space",
    "new\nline",
    "semi;colon $(rm -rf)",
    "..json",
    "-rf",
    "x" * 255,
    "ümläut",
    b"not-utf8-\xff".decode("utf-8", "surrogateescape"),
    "queue.db",
    "a.why",
]


def test_strange_names_are_only_labels(store: SpoolStore, path: Path) -> None:
    """A name reaches no shell, no path and no statement. One that begins with a dot is not looked at."""
    for n, name in enumerate(STRANGE_NAMES):
        put(path, name, json.dumps({"job": "send", "queue": Q, "id": f"a{n}"}))
    put(path, "bad name\n", "{")
    put(path, ".hidden", '{"job":"send","queue":"mail","id":"hidden"}')
    found = store.sweep_inbox()
    seen = [name for name in STRANGE_NAMES if not name.startswith(".")]
    assert found == Ingested(len(seen), len(seen), 1)
    assert sorted(standing(store)) == sorted(f"a{n}" for n, name in enumerate(STRANGE_NAMES) if name in seen)
    assert list(reasons(path)) == ["bad_name_"]


def test_stranger_under_work_is_moved_aside(store: SpoolStore, path: Path) -> None:
    """Only the sweeper puts files there: one without its name has no identity."""
    (path / "inbox" / "work" / "job.json").write_text('{"job":"send"}')
    assert store.sweep_inbox() == Ingested(0, 0, 1)
    assert (path / "inbox" / "bad" / "job.json").exists()


# -- exactly once --------------------------------------------------------------------------------------------------

SWEEP = """
import sys
from batchq.spool import SpoolStore
store = SpoolStore(sys.argv[1])
while store.sweep_inbox().files:
    pass
"""


def _drain(path: Path) -> list[str]:
    """Runs everything that stands, as a worker that forgets finished jobs at once. Answers what was run."""
    store = SpoolStore(path)
    ran = []
    for queue in store.queues():
        worker = f"w-{os.urandom(4).hex()}"
        store.register(queue, worker, 15_000)
        while claims := store.claim(queue, worker, 480, 0).claims:
            ran += [json.loads(claim.row)["args"][0] for claim in claims]
            store.complete(queue, worker, [Completed(claim) for claim in claims])
    store.close()
    return ran


@pytest.mark.parametrize("point", ["I1", "I2", "T3", "T4", "I4", "I5"])
def test_sweeper_that_dies_takes_each_job_exactly_once(path: Path, point: str) -> None:
    """It dies at each point, jobs run and are forgotten in between, and it dies there again before one comes through.

    The jobs have no ids of their own, so only the parcel's mark tells that they came in before.
    """
    SpoolStore(path).close()
    for n in range(3):
        lines = [{"job": "send", "queue": f"q{m % 2}", "args": [f"{n}.{m}"]} for m in range(20)]
        put(path, f"{n}.json", "\n".join(json.dumps(line) for line in lines))
    ran = []
    for _ in range(2):
        end_at(point, SWEEP, str(path))
        ran += _drain(path)
    store = SpoolStore(path)
    while store.sweep_inbox().files:
        pass
    store.close()
    ran += _drain(path)
    assert sorted(ran) == sorted(f"{n}.{m}" for n in (0, 1, 2) for m in range(20))
    assert leftovers(path) == []
    check_books(path)


@pytest.mark.parametrize("point", ["P1", "P2", "P3", "P4", "P5", "P6"])
def test_producer_that_dies_leaves_a_whole_parcel_or_none(path: Path, point: str) -> None:
    """What is not whole is never seen, and is cleared away when nobody can be at it any more."""
    SpoolStore(path).close()
    code = """
    import sys
    from batchq.job import NewJob
    from batchq.spool import drop
    drop(sys.argv[1], [("mail", NewJob(f"a{n}", b'{"job":"send"}')) for n in range(500)])
    """
    end_at(point, code, str(path))
    clock = ManualClock(_now_ms() + 35 * HOUR_MS)
    store = SpoolStore(path, clock=clock)
    store.sweep_inbox()
    assert len(standing(store)) == (500 if point in ("P5", "P6") else 0)
    assert len(leftovers(path)) == (0 if point in ("P5", "P6") else 1)
    clock.advance(2 * HOUR_MS)
    store.sweep_inbox()
    assert leftovers(path) == []
    store.close()
    check_books(path)


def _now_ms() -> int:
    from batchq.clock import SYSTEM

    return SYSTEM.now_us() // 1000


def test_failed_drop_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk the unfinished file is taken away again, and the producer hears why."""
    SpoolStore(path).close()

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(fs.os, "write", full)
        with pytest.raises(StoreFull, match="No space left on device"):
            drop(path, [(Q, a_job())])
    assert leftovers(path) == []


def test_ingest_flushes_the_move_before_the_jobs(
    store: SpoolStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut could put the file back to new/ while its jobs are in: then it would come in under another name.
    And the jobs are flushed before the file goes, in every mode."""
    store.close()
    store = SpoolStore(path, durability="process")
    put(path, "a.json", '{"job":"send","queue":"mail"}')
    seen: list[str] = []
    flush_dir, flush, remove = fs.flush_dir, fs.flush, fs.remove
    monkeypatch.setattr(fs, "flush_dir", lambda p: (seen.append(f"dir {os.path.basename(p)}"), flush_dir(p))[1])
    monkeypatch.setattr(fs, "flush", lambda fd: (seen.append("log"), flush(fd))[1])
    monkeypatch.setattr(fs, "remove", lambda p: (seen.append("unlink"), remove(p))[1] if "/work/" in p else remove(p))
    monkeypatch.setattr(fs, "passed", lambda point: seen.append(point) if point == "T4" else None)
    assert store.sweep_inbox().jobs == 1
    assert seen == ["dir work", "dir new", "T4", "log", "unlink"]
    store.close()


def test_marks_of_parcels_do_not_gather(store: SpoolStore, path: Path) -> None:
    """Each goes with the next step, when its file is gone for good: one file a second for a week is 600,000."""
    for n in range(20):
        put(path, "a.json", json.dumps({"job": "send", "queue": f"q{n % 2}"}))
        store.sweep_inbox()
    assert store._ledger.look("SELECT count(*) FROM mark") == [(1,)]


def test_parcel_whose_mark_may_be_forgotten_is_moved_aside(path: Path, clock: ManualClock) -> None:
    """It stood under work/ for longer than marks are kept: nobody knows whether its jobs are in. A person decides."""
    store = SpoolStore(path, clock=clock, limits=Limits(mark_ttl_ms=HOUR_MS))
    put(path, "a.json", '{"job":"send","queue":"mail"}')
    store._inbox._box.take(10)
    clock.advance(HOUR_MS)
    assert store.sweep_inbox() == Ingested(0, 0, 1)
    assert "longer than marks are kept" in reasons(path)["a.json"]
    store.close()


def test_one_sweeper_at_a_time(store: SpoolStore, path: Path) -> None:
    """While one is at it, others do nothing; when it dies, the next one goes on."""
    lock = fs.open_lock(str(path / "sweep"))
    assert fs.try_lock(lock)
    put(path, "a.json", '{"job":"send","queue":"mail"}')
    assert store.sweep_inbox() == Ingested(0, 0, 0)
    fs.close(lock)
    assert store.sweep_inbox() == Ingested(1, 1, 0)


def test_many_sweepers_and_many_producers(path: Path) -> None:
    """Three processes drop, three sweep, all at once: every job comes in once."""
    SpoolStore(path).close()

    def produce(name: str) -> None:
        for n in range(40):
            drop(path, [(Q, a_job(f"{name}-{n}-{m}")) for m in range(5)])

    def sweep() -> None:
        store = SpoolStore(path)
        while store.stats(Q).totals["enqueued"] < 3 * 40 * 5:
            store.sweep_inbox()

    children = [fork(lambda n=n: produce(f"p{n}")) for n in range(3)] + [fork(sweep) for _ in range(3)]
    assert [wait(child, 60) for child in children] == [0] * 6
    store = SpoolStore(path)
    assert store.stats(Q).totals["enqueued"] == len(set(standing(store))) == 600
    store.close()
    assert leftovers(path) == []
    check_books(path)


def test_sweep_is_bounded(store: SpoolStore, path: Path) -> None:
    """It comes back before a master would miss a renewal; called again it goes on."""
    for _ in range(8):
        drop(path, [(Q, a_job()) for _ in range(1000)])
    taken = [store.sweep_inbox() for _ in range(3)]
    assert [found.jobs for found in taken] == [5000, 3000, 0]


def test_full_disk_leaves_the_files_where_they_are(
    store: SpoolStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(path, "a.json", '{"job":"send","queue":"mail"}')
    with monkeypatch.context() as patch:
        patch.setattr(fs, "free_bytes", lambda path: 0)
        with pytest.raises(StoreFull):
            store.sweep_inbox()
    assert inbox.census(path) == inbox.Census(1, 1, 0)
    assert store.sweep_inbox() == Ingested(1, 1, 0)


def test_drop_refuses_a_queue_that_is_none(path: Path) -> None:
    with pytest.raises(ConfigError, match="is no queue name"):
        drop(path, [("a/b", a_job())])


def test_census_of_nothing(tmp_path: Path) -> None:
    """Asking makes no directory."""
    assert inbox.census(tmp_path / "none") == inbox.Census(0, 0, 0)
    assert not (tmp_path / "none").exists()
