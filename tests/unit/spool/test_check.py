"""check finds what is wrong and mends what may be mended; dump, load, salvage, vacuum keep what there is."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from batchq.clock import SYSTEM
from batchq.errors import ConfigError, SpoolError, StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from batchq.job import Buried, Completed, Mark, pack_error, pack_row
from batchq.lifecycle import State
from batchq.spool import SpoolStore, drop, dump, fs, hands
from batchq.spool.check import Finding, Level, check, is_well
from batchq.spool.ledger import Ledger
from batchq.spool.salvage import _KEYS, salvage
from batchq.store import Ingested
from batchq.tally import NewBatch
from tests.unit.spool.helpers import LEASE_MS, Q, a_job, check_books, claim_all


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A spool with a job in every state, notes, marks, remembered ids, a batch and a lease."""
    store = SpoolStore(tmp_path / "s")
    store.begin(Q, NewBatch("b"))
    store.enqueue(Q, [a_job("dead", given=True), a_job("kept"), a_job("gone", given=True), a_job("active")])
    claims = {claim.id: claim for claim in claim_all(store, "w1")}
    store.bury(Q, "w1", [Buried(claims["dead"], "bad", pack_error("E", "boom", attempt=1, at_ms=1))])
    store.complete(Q, "w1", [Completed(claims["kept"], b'{"a":1.5}', 3_600_000), Completed(claims["gone"])])
    store.enqueue(Q, [a_job("p1", batch="b"), a_job("p2", priority=7), a_job("late", delay_ms=3_600_000)], Mark("l", 3))
    store.enqueue("other", [a_job("elsewhere")])
    store.pause("other")
    store.close()
    return tmp_path / "s"


def change(path: Path, *statements: str) -> None:
    """Hands in the database."""
    db = sqlite3.connect(path / "queue.db")
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


def levels(found: list[Finding]) -> set[Level]:
    return {one.level for one in found}


def test_whole_spool_is_well(path: Path) -> None:
    found = check(str(path))
    assert levels(found) <= {Level.NOTE}, found


def test_checking_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="found nothing there"):
        check(str(tmp_path / "none"), repair=True)
    assert os.listdir(tmp_path) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreUnavailable, match="found an empty directory"):
        check(str(tmp_path / "empty"), repair=True)
    assert os.listdir(tmp_path / "empty") == []


def test_outbox_is_well_and_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spool with an inbox alone, also where a ledger may not lie."""
    monkeypatch.setattr(fs, "kind_of_fs", lambda path, table=None: "nfs4")
    drop(tmp_path / "s", [(Q, a_job())])
    before = sorted(os.listdir(tmp_path / "s"))
    found = check(str(tmp_path / "s"), repair=True)
    assert levels(found) == {Level.NOTE}, found
    assert any("1 files wait" in one.text for one in found)
    assert sorted(os.listdir(tmp_path / "s")) == before


BROKEN: dict[str, tuple[tuple[str, ...], str]] = {
    "count": (("UPDATE tally SET n_pending=7 WHERE queue='mail'",), "1 queues whose counts"),
    "law": (("UPDATE tally SET completed=completed+3",), "2 queues whose totals do not add up"),
    "row gone": (("DELETE FROM job WHERE id='p1'", "UPDATE batch SET cancelled=1"), "1 queues whose counts"),
    "tally gone": (("DELETE FROM tally WHERE queue='other'",), "1 queues that have jobs and no tally"),
    "state": (("UPDATE job SET state=9 WHERE id='p2'",), "1 jobs in a state that is none"),
    "no owner": (("UPDATE job SET owner=NULL WHERE state=2",), "1 active jobs that no worker holds"),
    "owner": (("UPDATE job SET owner='w' WHERE id='p1'",), "1 jobs that have an owner and are not active"),
    "no lease": (("DELETE FROM lease",), "1 active jobs of workers without a lease"),
    "stray note": (("INSERT INTO note(seq) VALUES(999)",), "1 notes that belong to no job"),
    "lost note": (("DELETE FROM note",), "jobs whose notes are missing"),
    "place": (("UPDATE tally SET tail=0",), "queues with places beyond the last"),
    "row": (("UPDATE job SET row=x'7b' WHERE id='p2'",), "1 jobs whose rows are no jobs"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_ledger_is_found_and_mended(path: Path, name: str) -> None:
    """Looking changes nothing; mended is mended: the next look finds nothing, and the books are exact."""
    statements, text = BROKEN[name]
    change(path, *statements)
    for _ in range(2):
        found = check(str(path))
        assert not is_well(found)
        assert any(one.level is Level.MENDABLE and text in one.text for one in found), found
    found = check(str(path), repair=True)
    assert any(one.level is Level.MENDED and text in one.text for one in found), found
    if name == "row":
        # Nothing is thrown away: a person decides.
        [kept] = [one for one in (path / "inbox" / "bad").iterdir() if one.suffix != ".why"]
        assert kept.read_bytes() == b"{"
        assert "job 'p2' of queue 'mail'" in Path(f"{kept}.why").read_text()
        kept.unlink()
        Path(f"{kept}.why").unlink()
    else:
        assert is_well(found), found
    assert levels(check(str(path))) <= {Level.NOTE}
    check_books(path)
    store = SpoolStore(path)
    assert store.claim("other", "w", 1, 0).word is not None
    store.close()


def test_job_without_a_lease_runs_again_after_repair(path: Path) -> None:
    """It is left to a master as one of a worker that was sealed."""
    change(path, "DELETE FROM lease")
    assert is_well(check(str(path), repair=True))
    store = SpoolStore(path)
    assert store.leases(Q).ends == {"w1": 0}
    assert [claim.id for claim in store.seal(Q, "w1").claims] == ["active"]
    store.close()


def test_batch_that_misses_a_job_needs_a_person(path: Path) -> None:
    change(path, "UPDATE job SET batch=NULL")
    found = check(str(path), repair=True)
    assert [one for one in found if one.level is Level.FAULT and "1 batches whose open jobs" in one.text]


def test_index_that_lost_an_entry_is_built_anew(path: Path) -> None:
    """The table is whole: nothing is lost."""
    db = sqlite3.connect(path / "queue.db", isolation_level=None)
    db.execute("PRAGMA writable_schema=1")
    [[text]] = db.execute("SELECT sql FROM sqlite_master WHERE name='job_pending'")
    db.execute("UPDATE sqlite_master SET sql=replace(sql,'state=0','state=77') WHERE name='job_pending'")
    db.close()
    db = sqlite3.connect(path / "queue.db", isolation_level=None)
    db.execute("REINDEX job_pending")
    db.execute("PRAGMA writable_schema=1")
    db.execute("UPDATE sqlite_master SET sql=? WHERE name='job_pending'", (text,))
    db.close()
    assert any("missing from index job_pending" in one.text for one in check(str(path)))
    found = check(str(path), repair=True)
    assert is_well(found), found
    assert levels(check(str(path))) <= {Level.NOTE}
    store = SpoolStore(path)
    store.register(Q, "w2", LEASE_MS)
    assert [claim.id for claim in store.claim(Q, "w2", 9, 0).claims] == ["p2", "p1"]
    store.close()


def _loose(path: Path) -> None:
    (path / "queue.db").chmod(0o644)
    (path / "inbox" / "new").chmod(0o777)


def _left(path: Path) -> None:
    (path / "FORMAT.123.abcd").touch()
    (path / "inbox" / "bad" / "a.why").write_text("gone\n")
    (path / "inbox" / "tmp" / "old").touch()
    for name in ("FORMAT.123.abcd", "inbox/tmp/old"):
        os.utime(path / name, (1, 1))


@pytest.mark.parametrize("spoil", [_loose, _left])
def test_files_are_put_in_order(path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(path)
    assert not is_well(check(str(path)))
    assert is_well(check(str(path), repair=True))
    assert levels(check(str(path))) <= {Level.NOTE}
    assert not (path / "FORMAT.123.abcd").exists()
    assert (path / "queue.db").stat().st_mode & 0o077 == 0


def test_unknown_file_is_left_alone(path: Path) -> None:
    (path / "notes.txt").write_text("mine")
    found = check(str(path), repair=True)
    assert [one for one in found if one.level is Level.NOTE and "notes.txt" in one.text]
    assert (path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("table", "statement"),
    [
        ("job", "UPDATE job SET attempts='many' WHERE id='p1'"),
        ("job", "UPDATE job SET queue=x'6162' WHERE id='elsewhere'"),
        ("note", "UPDATE note SET reason=x'ff'"),
        ("tally", "UPDATE tally SET tail=0.5"),
        ("lease", "UPDATE lease SET until='never'"),
        ("batch", "UPDATE batch SET name='{'"),
        ("gate", f"INSERT INTO gate VALUES('{Q}','g','{{')"),
    ],
)
def test_values_that_are_none_of_their_columns_need_a_person(path: Path, table: str, statement: str) -> None:
    """SQLite takes any value anywhere; those who read it do not. A dump shows it."""
    change(path, statement)
    found = [one for one in check(str(path)) if one.level is Level.FAULT]
    assert any(f"of the table {table} hold what it can't" in one.text for one in found), found
    assert dumped(path)


def test_value_that_is_none_is_damage_to_whoever_works(path: Path) -> None:
    """And not the end of a worker, which has run jobs that it could not settle then, over and over."""
    change(path, "UPDATE job SET attempts='many' WHERE id='p2'")
    store = SpoolStore(path)
    with pytest.raises(StoreCorrupt, match="a value in it is none"):
        claim_all(store, "w2")
    store.close()


def test_little_room_needs_a_person(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fs, "free_bytes", lambda path: 1 << 20)
    assert any(one.level is Level.FAULT and "1 MiB free" in one.text for one in check(str(path)))


def test_dump_and_salvage_know_every_table(path: Path) -> None:
    """One that a later schema adds must not stay behind."""
    db = sqlite3.connect(path / "queue.db")
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    db.close()
    assert set(dump.TABLES) | {"note", "master"} == tables
    assert set(_KEYS) | {"job", "note", "master"} == tables


# -- dump and load ---------------------------------------------------------------------------------------------------


def dumped(path: Path) -> list[bytes]:
    ledger = Ledger(str(path), clock=SYSTEM, durability="power")
    try:
        return list(dump.dump(ledger))
    finally:
        ledger.close()


def loaded(path: Path, lines: list[bytes]) -> int:
    ledger = Ledger(str(path), clock=SYSTEM, durability="power")
    try:
        return dump.load(ledger, lines)
    finally:
        ledger.close()


def test_loaded_dump_is_the_same_ledger(path: Path, tmp_path: Path) -> None:
    """All states, notes, marks, leases, totals: a worker that holds a claim settles it in the new one."""
    lines = dumped(path)
    assert loaded(tmp_path / "new", lines) == 7
    assert dumped(tmp_path / "new")[1:] == lines[1:]
    assert levels(check(str(tmp_path / "new"))) <= {Level.NOTE}
    store = SpoolStore(tmp_path / "new")
    [claim] = store.claim(Q, "w1", 0, 0).claims or store.seal(Q, "w1").claims
    assert claim.id == "active"
    dead = store.get(Q, "dead")
    assert dead is not None
    assert (dead.reason, dead.errors[0]["error"]) == ("bad", "boom")
    kept = store.get(Q, "kept")
    assert kept is not None
    assert kept.result == {"a": 1.5}
    store.close()


def test_dump_may_be_edited(path: Path, tmp_path: Path) -> None:
    """Lines left out or changed: the counts are made anew, and the law holds."""
    lines = [line for line in dumped(path) if b'"id":"p1"' not in line and b'"table":"batch"' not in line]
    lines = [line.replace(b'"state":"dead"', b'"state":"pending"') for line in lines]
    assert loaded(tmp_path / "new", lines) == 6
    store = SpoolStore(tmp_path / "new")
    assert store.stats(Q).counts == {"pending": 2, "delayed": 1, "active": 1, "completed": 1, "dead": 0}
    store.close()
    check_books(tmp_path / "new")


WRONG = {
    b"": "expected a line with batchq_dump",
    b'{"batchq_dump":9}': "line 1: expected batchq_dump 1, found 9",
    b'{"batchq_dump":1,"schema":999}': "line 1: expected schema",
    b'{"batchq_dump":1,"schema":1}\n{"table":"job","colour":1,"row":{"job":"x","t":1},"state":"pending"}': "knows no",
    b'{"batchq_dump":1,"schema":1}\n\n{"table":"x"}': "line 3: table: expected one of tally",
    b'{"batchq_dump":1,"schema":1}\n{"table":"job","row":5}': "line 2: row: expected an object with job and t, found 5",
    b'{"batchq_dump":1,"schema":1}\n{"table":"job","row":{"job":"x","t":1},"state":"no"}': "'no' is not a valid",
    b'{"batchq_dump":1,"schema":1}\n{': "line 2:",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_dump_is_refused_whole(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(ConfigError, match=WRONG[text]):
        loaded(tmp_path / "new", text.split(b"\n"))
    assert len(dumped(tmp_path / "new")) == 1


def test_load_needs_an_empty_spool(path: Path) -> None:
    with pytest.raises(StoreError, match="expected an empty spool to load into"):
        loaded(path, dumped(path))


# -- salvage ---------------------------------------------------------------------------------------------------------


def large(path: Path, jobs: int) -> set[str]:
    """A ledger of many pages, moved out of its log. Answers the ids."""
    store = SpoolStore(path)
    ids = {f"j{n:06d}" for n in range(jobs)}
    store.enqueue(Q, [a_job(id)._replace(row=pack_row("send", ["x" * 200])) for id in sorted(ids)])
    store.close()
    return ids


def test_damaged_pages_cost_what_stood_on_them_and_no_more(tmp_path: Path) -> None:
    """Pages are overwritten with rubbish: check says what to do, salvage saves the rest and names what is lost."""
    ids = large(tmp_path / "s", 8000)
    db = tmp_path / "s" / "queue.db"
    data = bytearray(db.read_bytes())
    pages = len(data) // 4096
    rng = random.Random(7)
    # Leaves of tables only: byte 0 is 13. What the index knows is then named.
    leaves = [n for n in range(2, pages) if data[n * 4096] == 13]
    for n in rng.sample(leaves, 5):
        data[n * 4096 : (n + 1) * 4096] = rng.randbytes(4096)
    db.write_bytes(data)
    found = check(str(tmp_path / "s"))
    assert any(one.level is Level.FAULT and "salvage" in one.text for one in found), found
    saved = salvage(str(tmp_path / "s"), str(tmp_path / "new"))
    assert db.read_bytes() == data
    store = SpoolStore(tmp_path / "new")
    stand: set[str] = set()
    cursor = ""
    while True:
        page = store.jobs(Q, State.PENDING, cursor=cursor, limit=1000)
        stand |= {job.id for job in page.jobs}
        cursor = page.cursor
        if not cursor:
            break
    assert len(stand) == saved.jobs > 7000
    assert stand | {id for _, id in saved.lost} == ids
    assert not stand & {id for _, id in saved.lost}
    store.close()
    assert levels(check(str(tmp_path / "new"))) <= {Level.NOTE}
    check_books(tmp_path / "new")


@pytest.mark.parametrize("part", [0.25, 0.9])
def test_a_ledger_that_lost_its_end_is_read_up_to_there(tmp_path: Path, part: float) -> None:
    """SQLite opens no such file by itself. What is lost is named or said, also where it is all of a table."""
    ids = large(tmp_path / "s", 8000)
    db = tmp_path / "s" / "queue.db"
    os.truncate(db, int(db.stat().st_size * part))
    saved = salvage(str(tmp_path / "s"), str(tmp_path / "new"))
    assert "job" in saved.torn
    store = SpoolStore(tmp_path / "new")
    stand: set[str] = set()
    cursor = ""
    while page := store.jobs(Q, State.PENDING, cursor=cursor, limit=1000):
        stand |= {job.id for job in page.jobs}
        if not (cursor := page.cursor):
            break
    store.close()
    assert len(stand) == saved.jobs
    known = stand | {id for _, id in saved.lost}
    assert known < ids
    assert len(known) > 8000 * part * 0.8
    assert stand or part < 0.5
    assert levels(check(str(tmp_path / "new"))) <= {Level.NOTE}
    check_books(tmp_path / "new")


@pytest.mark.parametrize("seed", range(6))
def test_any_damage_ends_in_an_error_or_a_well_spool(tmp_path: Path, seed: int) -> None:
    """Rubbish anywhere, the schema and inner pages too, a cut file: never a traceback of ours, never wrong books."""
    large(tmp_path / "s", 2000)
    rng = random.Random(seed)
    db = tmp_path / "s" / "queue.db"
    data = bytearray(db.read_bytes())
    for _ in range(rng.choice((1, 4, 30))):
        at = rng.randrange(100, len(data) - 300)
        data[at : at + 200] = rng.randbytes(200)
    db.write_bytes(data[: rng.choice((len(data), len(data) // 2))])
    assert check(str(tmp_path / "s"))
    try:
        salvage(str(tmp_path / "s"), str(tmp_path / "new"))
    except StoreCorrupt:
        return
    found = [one for one in check(str(tmp_path / "new")) if one.level is not Level.NOTE]
    assert all("files were moved aside" in one.text for one in found), found
    check_books(tmp_path / "new")


def test_text_that_is_none_is_damage(path: Path, tmp_path: Path) -> None:
    """A bit of an id, say, which SQLite does not check: nobody works on, and salvage loses that character alone."""
    change(path, "UPDATE job SET id=CAST(x'70ff' AS TEXT) WHERE id='p1'")
    store = SpoolStore(path)
    with pytest.raises(StoreCorrupt, match="damaged"):
        claim_all(store, "w2")
    with pytest.raises(StoreCorrupt, match="damaged"):
        store.jobs(Q, State.PENDING, cursor="", limit=10)
    store.close()
    assert any(one.level is Level.FAULT and "salvage" in one.text for one in check(str(path)))
    saved = salvage(str(path), str(tmp_path / "new"))
    assert (saved.jobs, saved.lost, saved.torn) == (7, [], [])
    store = SpoolStore(tmp_path / "new")
    assert sorted(claim.id for claim in claim_all(store, "w2")) == ["p2", "p\ufffd"]
    store.close()
    check_books(tmp_path / "new")


def test_salvage_takes_the_inbox_along(path: Path, tmp_path: Path) -> None:
    (path / "inbox" / "new" / "a.json").write_text('{"job":"send"}')
    (path / "inbox" / "bad" / "b").write_text("{")
    (path / "inbox" / "sent").mkdir()
    (path / "inbox" / "sent" / "c").write_text("sent")
    saved = salvage(str(path), str(tmp_path / "new"))
    assert (saved.jobs, saved.lost, saved.torn) == (7, [], [])
    store = SpoolStore(tmp_path / "new")
    assert store.sweep_inbox() == Ingested(1, 1, 0)
    store.close()
    assert (tmp_path / "new" / "inbox" / "bad" / "b").read_text() == "{"
    assert (tmp_path / "new" / "inbox" / "sent" / "c").read_text() == "sent"
    with pytest.raises(StoreError, match="expected a new directory"):
        salvage(str(path), str(tmp_path / "new"))


def test_salvage_of_an_older_schema_misses_nothing(path: Path, tmp_path: Path) -> None:
    """A table that it did not have is not torn."""
    change(path, "DROP TABLE turn", "DROP TABLE waiter", "PRAGMA user_version=2")
    saved = salvage(str(path), str(tmp_path / "new"))
    assert (saved.jobs, saved.lost, saved.torn) == (7, [], [])
    assert levels(check(str(tmp_path / "new"))) <= {Level.NOTE}


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_mended_file_is_accepted(path: Path) -> None:
    """Put back under its own name; one that still is wrong stays, with its fault."""
    store = SpoolStore(path)
    (path / "inbox" / "new" / "orders.json").write_text('{"job":5}')
    assert store.sweep_inbox() == Ingested(0, 0, 1)
    [name] = [one for one in os.listdir(path / "inbox" / "bad") if not one.endswith(".why")]
    layout = store._ledger.layout
    with pytest.raises(SpoolError, match="still is no parcel: line 1: job: expected the handler's name"):
        hands.accept(layout, name)
    (path / "inbox" / "bad" / name).write_text('{"job":"send","id":"mended"}')
    assert hands.accept(layout, f"bad/{name}") == 1
    assert os.listdir(path / "inbox" / "bad") == []
    assert os.listdir(path / "inbox" / "new") == ["orders.json"]
    assert store.sweep_inbox() == Ingested(1, 1, 0)
    store.close()


@pytest.mark.parametrize("name", ["../queue.db", "none", "x.why", "", "inbox/new/a", "/etc/passwd"])
def test_what_is_no_file_moved_aside_is_not_accepted(path: Path, name: str) -> None:
    with pytest.raises(SpoolError):
        hands.accept(SpoolStore(path)._ledger.layout, name)


def test_vacuum_gives_room_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have it open meanwhile, and go on."""
    large(tmp_path / "s", 6000)
    store = SpoolStore(tmp_path / "s")
    for claims in iter(lambda: claim_all(store, "w1"), []):
        store.complete(Q, "w1", [Completed(claim) for claim in claims])
    store.enqueue(Q, [a_job("left")])
    ledger = Ledger(str(tmp_path / "s"), clock=SYSTEM, durability="power")
    with monkeypatch.context() as patch:
        patch.setattr(fs, "free_bytes", lambda path: 0)
        with pytest.raises(StoreFull, match="vacuum needs"):
            hands.vacuum(ledger)
    before, after = hands.vacuum(ledger)
    assert before > 1_500_000
    assert after < before / 10
    assert after == (tmp_path / "s" / "queue.db").stat().st_size
    ledger.close()
    assert [claim.id for claim in claim_all(store, "w2")] == ["left"]
    store.close()
    check_books(tmp_path / "s")


def test_sql_reads_and_writes_only_when_told(path: Path) -> None:
    ledger = Ledger(str(path), clock=SYSTEM, durability="power")
    answer = hands.ask(ledger, "SELECT id FROM job WHERE state=0 ORDER BY id", write=False)
    assert (answer.columns, answer.rows) == (["id"], [("elsewhere",), ("p1",), ("p2",)])
    for statement in ("DELETE FROM job", "UPDATE tally SET paused=1", "DROP TABLE job"):
        with pytest.raises(ConfigError, match="to write say --write"):
            hands.ask(ledger, statement, write=False)
    with pytest.raises(ConfigError, match="syntax error"):
        hands.ask(ledger, "SELEC", write=True)
    assert hands.ask(ledger, "UPDATE tally SET paused=0 WHERE queue='other'", write=True).changed == 1
    ledger.close()
    assert orjson.loads(dumped(path)[2])["paused"] == 0
    check_books(path)
