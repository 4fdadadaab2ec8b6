"""Which directory becomes a spool, which is refused, and who may read it."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
from pathlib import Path

import psutil
import pytest

from batchq.errors import ConfigError, StoreCorrupt, StoreError, StoreFull, StoreUnavailable, StoreVersion
from batchq.lifecycle import State, Word
from batchq.spool import SpoolStore, drop, fs, ledger, opening
from batchq.spool.check import check
from batchq.spool.schema import APPLICATION_ID, MIGRATIONS, USER_VERSION
from batchq.tally import NewBatch
from tests.unit.spool.helpers import Q, a_job, check_books, claim_all, run


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_only_the_owner_may_look(tmp_path: Path, umask: int) -> None:
    """Directories are 0700 and files 0600, the ledger's too, whatever the umask."""
    code = f"""
    import os, sys
    os.umask({umask:#o})
    from batchq.spool import SpoolStore, drop
    from batchq.job import NewJob
    store = SpoolStore(sys.argv[1])
    waiter = store.wake_waiter(["mail"])
    waiter.arm()
    store.enqueue("mail", [NewJob("a", b'{{"job":"x"}}')])
    drop(sys.argv[1], [("mail", NewJob("b", b'{{"job":"x"}}'))])
    os._exit(0)  # leaves queue.db-wal and -shm behind
    """
    spool = tmp_path / "deep" / "s"
    done = run(code, str(spool))
    assert done.returncode == 0, done.stderr
    found = {path.relative_to(tmp_path): path.lstat() for path in tmp_path.rglob("*")}
    assert {Path("deep/s/queue.db-wal"), Path("deep/s/queue.db-shm"), Path("deep/s/gate")} <= set(found)
    for path, fact in found.items():
        wanted = 0o700 if stat.S_ISDIR(fact.st_mode) else 0o600
        assert stat.S_IMODE(fact.st_mode) == wanted, (str(path), oct(fact.st_mode))


def test_directory_that_all_may_write_is_refused(tmp_path: Path) -> None:
    """Whoever can write there can put jobs there."""
    (tmp_path / "s").mkdir()
    (tmp_path / "s").chmod(0o777)
    with pytest.raises(ConfigError, match=r"s: expected a private directory, found mode 0777; run chmod o-w"):
        SpoolStore(tmp_path / "s")
    with pytest.raises(ConfigError, match="0777"):
        drop(tmp_path / "s", [(Q, a_job())])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_directory_of_a_stranger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir(mode=0o700)
    os.chown(tmp_path / "s", 12345, -1)
    with pytest.raises(ConfigError, match=r"uid 0 or root, found 12345"):
        SpoolStore(tmp_path / "s")


def test_directory_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    """`spool:.` must not turn somebody's project into a spool."""
    (tmp_path / "setup.py").touch()
    with pytest.raises(ConfigError, match=r"expected an empty or new directory, found 'setup.py' and no FORMAT"):
        SpoolStore(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["setup.py"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_place_where_nothing_can_be_made_is_refused() -> None:
    """mkdir below /proc says that the parent is missing, although it stands."""
    with pytest.raises(StoreUnavailable, match="/proc/nope"):
        SpoolStore("/proc/nope/spool")


def test_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").touch()
    with pytest.raises(ConfigError, match="expected a directory, found a file"):
        SpoolStore(tmp_path / "s")


def test_half_made_spool_is_finished(tmp_path: Path) -> None:
    """A process that died while it made the directory leaves nothing that a person must mend."""
    (tmp_path / "s" / "inbox" / "tmp").mkdir(parents=True)
    (tmp_path / "s" / "FORMAT.123.abcd").touch()
    store = SpoolStore(tmp_path / "s")
    store.enqueue(Q, [a_job("a")])
    store.close()
    assert (tmp_path / "s" / "FORMAT").read_bytes() == b"batchq-spool 1\n"


def test_format_of_another_major_number_is_refused(tmp_path: Path) -> None:
    """By the ledger and by producers alike, and nothing is written."""
    SpoolStore(tmp_path / "s").close()
    (tmp_path / "s" / "FORMAT").write_bytes(b"batchq-spool 2\n")
    with pytest.raises(StoreVersion, match="has format 2, this batchq reads format 1"):
        SpoolStore(tmp_path / "s")
    with pytest.raises(StoreVersion):
        drop(tmp_path / "s", [(Q, a_job())])
    assert os.listdir(tmp_path / "s" / "inbox" / "new") == []


@pytest.mark.parametrize("text", [b"", b"batchq-spool one\n", b"batchq-spool 1", b"x" * 10_000])
def test_format_that_is_none_is_refused(tmp_path: Path, text: bytes) -> None:
    SpoolStore(tmp_path / "s").close()
    (tmp_path / "s" / "FORMAT").write_bytes(text)
    with pytest.raises(StoreCorrupt, match="expected the line 'batchq-spool 1'"):
        SpoolStore(tmp_path / "s")


def test_backup_by_hard_links_does_no_harm(tmp_path: Path) -> None:
    """`cp -al` gives every file a second name."""
    SpoolStore(tmp_path / "s").close()
    os.link(tmp_path / "s" / "FORMAT", tmp_path / "FORMAT")
    SpoolStore(tmp_path / "s").close()


def test_ledger_without_format_is_refused(tmp_path: Path) -> None:
    """Nobody knows what wrote it."""
    SpoolStore(tmp_path / "s").close()
    (tmp_path / "s" / "FORMAT").unlink()
    with pytest.raises(StoreCorrupt, match=r"has a queue\.db but no FORMAT"):
        SpoolStore(tmp_path / "s")


def _rewrite(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path / "queue.db")
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


def test_newer_schema_is_refused_untouched(tmp_path: Path) -> None:
    """Old code never writes into a new ledger."""
    SpoolStore(tmp_path / "s").close()
    _rewrite(tmp_path / "s", f"PRAGMA user_version={USER_VERSION + 1}")
    before = (tmp_path / "s" / "queue.db").read_bytes()
    with pytest.raises(StoreVersion, match=f"has schema {USER_VERSION + 1}, this batchq writes schema {USER_VERSION}"):
        SpoolStore(tmp_path / "s")
    assert (tmp_path / "s" / "queue.db").read_bytes() == before


def test_older_schema_is_brought_up_to_this_one(tmp_path: Path) -> None:
    """A ledger from before there were batches: its jobs stand as they did, and batches work in it."""
    before = SpoolStore(tmp_path / "s")
    before.enqueue(Q, [a_job("old")])
    before.close()
    _rewrite(
        tmp_path / "s",
        "DROP INDEX batch_ended",
        "DROP TABLE batch",
        "ALTER TABLE job DROP COLUMN batch",
        *(f"DROP TABLE {name}" for name in ("gate", "guest", "waiter", "passed", "visit", "turn")),
        "PRAGMA user_version=1",
    )
    store = SpoolStore(tmp_path / "s")
    store.begin(Q, NewBatch("b"))
    store.enqueue(Q, [a_job("new", batch="b")])
    assert [job.batch for job in store.jobs(Q, State.PENDING).jobs] == ["", "b"]
    assert [batch.total for batch in store.batches(Q)] == [1]
    store.close()
    fresh = SpoolStore(tmp_path / "fresh")
    fresh.close()
    assert _schema(tmp_path / "s") == _schema(tmp_path / "fresh")


def _schema(path: Path) -> tuple[int, set[tuple[str, ...]]]:
    """The number, and the columns and indexes of all tables."""
    db = sqlite3.connect(path / "queue.db")
    [[version]] = db.execute("PRAGMA user_version")
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    facts = {(table, *map(str, row[1:])) for table in tables for row in db.execute(f"PRAGMA table_info({table})")}
    facts |= {("index", name) for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='index'")}
    db.close()
    return version, facts


def _add_a_step(monkeypatch: pytest.MonkeyPatch, *statements: str) -> None:
    """What a later batchq would have: one more schema, and the way to it."""
    monkeypatch.setattr(opening, "USER_VERSION", USER_VERSION + 1)
    monkeypatch.setattr(ledger, "USER_VERSION", USER_VERSION + 1)
    monkeypatch.setattr(opening, "MIGRATIONS", {**MIGRATIONS, USER_VERSION: statements})


def test_older_schema_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place, when it is opened: its jobs stand as they stood. The process that had it open writes no more."""
    old = SpoolStore(tmp_path / "s")
    old.enqueue(Q, [a_job("a")])
    with monkeypatch.context() as patch:
        _add_a_step(patch, "ALTER TABLE job ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue'")
        new = SpoolStore(tmp_path / "s")
        assert new.enqueue(Q, [a_job("b")]) == [Word.OK]
        assert new._ledger.look("SELECT id, colour FROM job") == [("a", "blue"), ("b", "blue")]
        new.close()
    with pytest.raises(StoreVersion, match=f"has schema {USER_VERSION + 1}, this batchq writes schema {USER_VERSION}"):
        old.enqueue(Q, [a_job("c")])
    old.close()
    # The way back: the ledger as it was stands beside it, and is a whole one.
    kept = tmp_path / "s" / f"queue.db.v{USER_VERSION}"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert f"{kept.name}: the ledger before it was brought up to date" in str(check(str(tmp_path / "s")))
    kept.replace(tmp_path / "s" / "queue.db")
    before = SpoolStore(tmp_path / "s")
    assert [job.id for job in before.jobs(Q, State.PENDING).jobs] == ["a"]
    before.close()
    check_books(tmp_path / "s")


def test_ledger_is_not_brought_up_to_date_without_room_for_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is changed, and it says how much is needed. What a killed copier left is no obstacle."""
    SpoolStore(tmp_path / "s").close()
    before = (tmp_path / "s" / "queue.db").read_bytes()
    _add_a_step(monkeypatch, "ALTER TABLE job ADD COLUMN colour TEXT")
    with monkeypatch.context() as patch:
        patch.setattr(fs, "free_bytes", lambda path: 1 << 20)
        with pytest.raises(StoreFull, match=r"expected 16 MiB free for a copy of it, .* found 1; make room"):
            SpoolStore(tmp_path / "s")
    assert (tmp_path / "s" / "queue.db").read_bytes() == before
    (tmp_path / "s" / f"queue.db.v{USER_VERSION}.new").write_bytes(b"half")
    SpoolStore(tmp_path / "s").close()
    assert (tmp_path / "s" / f"queue.db.v{USER_VERSION}").read_bytes()[:15] == b"SQLite format 3"
    assert not (tmp_path / "s" / f"queue.db.v{USER_VERSION}.new").exists()


def test_step_that_fails_leaves_the_older_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it or nothing, so that the batchq before can still be used."""
    SpoolStore(tmp_path / "s").close()
    with monkeypatch.context() as patch:
        _add_a_step(patch, "ALTER TABLE job ADD COLUMN colour TEXT", "ALTER TABLE no_such ADD COLUMN colour TEXT")
        with pytest.raises(StoreError, match="no such table: no_such"):
            SpoolStore(tmp_path / "s")
    store = SpoolStore(tmp_path / "s")
    assert store.enqueue(Q, [a_job("a")]) == [Word.OK]
    store.close()


@pytest.mark.parametrize("make_folder", [False, True])
def test_looking_makes_nothing(tmp_path: Path, make_folder: bool) -> None:
    """Where there is no ledger it reads as an empty one; writing there is refused."""
    if make_folder:
        (tmp_path / "s").mkdir()
    store = SpoolStore(tmp_path / "s", make=False)
    assert (store.queues(), store.masters(), store.get(Q, "a")) == ([], [], None)
    assert store.stats(Q).counts["pending"] == 0
    with pytest.raises(StoreUnavailable, match="expected a spool, found none"):
        store.enqueue(Q, [a_job()])
    store.close()
    assert [path.name for path in tmp_path.rglob("*")] == ["s"] * make_folder


def test_looking_at_what_can_be_no_spool_says_so(tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    with pytest.raises(ConfigError, match=r"found 'setup.py' and no FORMAT"):
        SpoolStore(tmp_path, make=False)


def test_database_of_others_is_refused(tmp_path: Path) -> None:
    SpoolStore(tmp_path / "s").close()
    _rewrite(tmp_path / "s", "PRAGMA application_id=1")
    with pytest.raises(StoreCorrupt, match="is a database, but not batchq's"):
        SpoolStore(tmp_path / "s")


def test_ledger_that_is_no_database_is_refused(tmp_path: Path) -> None:
    SpoolStore(tmp_path / "s").close()
    (tmp_path / "s" / "queue.db").write_bytes(b"not a database at all" * 1000)
    with pytest.raises(StoreCorrupt, match=r"queue\.db"):
        SpoolStore(tmp_path / "s")


def test_ledger_carries_its_name(tmp_path: Path) -> None:
    """`file queue.db` tells whose it is."""
    SpoolStore(tmp_path / "s").close()
    header = (tmp_path / "s" / "queue.db").read_bytes()[:100]
    assert int.from_bytes(header[68:72], "big") == APPLICATION_ID
    assert int.from_bytes(header[60:64], "big") == USER_VERSION


def test_relative_path_survives_a_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = SpoolStore("s")
    store.before_fork()
    monkeypatch.chdir("/")
    store.enqueue(Q, [a_job("a")])
    assert store.path == str(tmp_path / "s")
    store.close()
    assert (tmp_path / "s" / "queue.db").stat().st_size > 0


def test_spool_that_is_removed_while_open_says_so(tmp_path: Path) -> None:
    """SQLite would go on writing into files that nobody can find any more."""
    store = SpoolStore(tmp_path / "s")
    store.enqueue(Q, [a_job("a")])
    (tmp_path / "s").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable, match="was removed or replaced while it was open"):
        store.enqueue(Q, [a_job("b")])
    (tmp_path / "elsewhere").rename(tmp_path / "s")
    assert [claim.id for claim in claim_all(store, "w1")] == ["a"]
    store.close()


MOUNTS = """\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
22 21 0:20 / /mnt/share rw - nfs4 server:/export rw
23 22 0:21 / /mnt/share/local\\040disk rw - xfs /dev/sdb rw
24 21 0:22 / /home/me rw - fuse.sshfs me@host: rw
25 21 0:23 / /data rw - tmpfs tmpfs rw
26 21 0:24 / /data rw - 9p host rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/spool", "ext4"),
        ("/mnt/share", "nfs4"),
        ("/mnt/share/a/b", "nfs4"),
        ("/mnt/shared", "ext4"),
        ("/mnt/share/local disk/s", "xfs"),
        ("/home/me/s", "fuse.sshfs"),
        ("/data/s", "9p"),
    ],
)
def test_kind_of_file_system_is_that_of_the_nearest_mount(path: str, kind: str) -> None:
    assert fs.kind_of_fs(path, MOUNTS) == kind


@pytest.mark.skipif(sys.platform != "linux", reason="compares two ways, of which only Linux has both")
@pytest.mark.parametrize("path", ["/", "/proc/self", "/dev/shm"])
def test_macos_names_its_file_systems_in_another_way(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it no remote or short-lived one would be noticed there."""
    kind, named = fs.kind_of_fs(path), psutil.disk_partitions(all=True)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert fs.kind_of_fs(path) == kind != ""
    share = named[0]._replace(mountpoint="/Volumes/share", fstype="smbfs")
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [*named, share])
    assert fs.is_remote(fs.kind_of_fs("/Volumes/share/spool"))


def test_ledger_on_a_remote_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's WAL corrupts there. Its inbox alone works."""
    monkeypatch.setattr(fs, "kind_of_fs", lambda path, table=None: "nfs4")
    with pytest.raises(StoreError, match=r"lies on nfs4, where SQLite's locks and shared memory do not hold"):
        SpoolStore(tmp_path / "s")
    assert drop(tmp_path / "s", [(Q, a_job())])


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "fuse.sshfs", "fuseblk", "virtiofs", "cifs", "smbfs", "9p", "ceph", "macfuse"]
)
def test_remote_file_systems(kind: str) -> None:
    assert fs.is_remote(kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "apfs", "f2fs", ""])
def test_local_file_systems(kind: str) -> None:
    assert not fs.is_remote(kind)
