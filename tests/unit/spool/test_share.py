"""A spool that is shared with a group: who may drop, and what they may not. Real users by number; it takes root."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.clock import SYSTEM
from batchq.errors import ConfigError
from batchq.spool import SpoolStore
from batchq.spool.check import check
from batchq.spool.inbox import Box
from batchq.spool.layout import Layout, prepare
from batchq.spool.share import share, unshare
from batchq.store import Ingested, Limits

MEMBER, STRANGER, GROUP = 12345, 12346, 12347

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@pytest.fixture
def layout() -> Iterator[Layout]:
    """Where others can reach it: not below pytest's own folder."""
    folder = Path(tempfile.mkdtemp(prefix="batchq-share-"))
    folder.chmod(0o711)
    (folder / "job.json").write_text('{"job":"send","queue":"mail"}')
    yield prepare(str(folder / "spool"), ledger=True)
    shutil.rmtree(folder)


def modes(layout: Layout) -> dict[str, int]:
    """Of the folders that others may do anything with."""
    root = Path(layout.root)
    found = {str(path.relative_to(root)): path.lstat().st_mode for path in (root, *root.rglob("*"))}
    return {name: stat.S_IMODE(mode) for name, mode in found.items() if stat.S_ISDIR(mode) and mode & 0o077}


def does(layout: Layout, user: int, line: str, group: int = GROUP) -> bool:
    """Whether that user can do this, in the folder above the spool."""
    done = subprocess.run(
        ["sh", "-euc", f"umask 027; {line}"],
        cwd=os.path.dirname(layout.root),
        user=user,
        group=group,
        extra_groups=[],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


DROP = "cp job.json spool/inbox/tmp/x && mv spool/inbox/tmp/x spool/inbox/new/x"


@needs_root
def test_members_may_drop_and_nothing_else(layout: Layout) -> None:
    """What they drop is taken; they can't look at, read or change what is there."""
    store = SpoolStore(layout.root)
    assert not does(layout, MEMBER, DROP)
    share(layout, str(GROUP))
    assert modes(layout) == {".": 0o710, "inbox": 0o710, "inbox/tmp": 0o3770, "inbox/new": 0o3770}
    assert does(layout, MEMBER, DROP)
    assert store.sweep_inbox() == Ingested(1, 1, 0)
    for line in (
        "ls spool",
        "ls spool/inbox",
        "cat spool/FORMAT",
        "touch spool/x",
        "ls spool/inbox/bad",
        "cat spool/queue.db",
    ):
        assert not does(layout, MEMBER, line), line
    assert not does(layout, STRANGER, DROP, group=STRANGER)
    # Its modes are no fault, and are not mended.
    assert [finding for finding in check(layout.root, repair=True) if "lets others in" in finding.text] == []
    assert does(layout, MEMBER, DROP)
    unshare(layout)
    assert modes(layout) == {}
    assert not does(layout, MEMBER, DROP)
    # Nobody's by now but a stranger's.
    assert store.sweep_inbox() == Ingested(0, 0, 1)
    store.close()


@needs_root
def test_what_a_member_has_dropped_no_other_takes_away(layout: Layout) -> None:
    """Nor what its owner has, nor by another file of that name."""
    share(layout, str(GROUP))
    Path(layout.new, "own").write_text('{"job":"own"}')
    assert does(layout, MEMBER, DROP)
    other = MEMBER + 10
    assert does(layout, other, "cp job.json spool/inbox/tmp/y")
    for line in (
        "rm -f spool/inbox/new/x",
        "mv -f spool/inbox/tmp/y spool/inbox/new/x",
        "mv -f spool/inbox/new/own spool/inbox/tmp/z",
        "rm -f spool/inbox/new/own",
    ):
        assert not does(layout, other, line), line
    assert does(layout, MEMBER, "rm spool/inbox/new/x")
    assert sorted(os.listdir(layout.new)) == ["own"]


@needs_root
def test_directory_that_only_a_member_may_move_waits_for_nothing(layout: Layout) -> None:
    """The spool's owner is no root: what it can't move aside must not look like jobs that wait, for ever."""
    owner = MEMBER + 20
    for path in (Path(layout.root), *Path(layout.root).rglob("*")):
        os.chown(path, owner, owner)
    share(layout, str(GROUP))
    assert does(layout, MEMBER, f"{DROP}; mkdir -m 700 spool/inbox/new/folder; touch spool/inbox/new/folder/y")
    box = Box(layout, SYSTEM, Limits())
    os.seteuid(owner)
    try:
        [taken] = box.take(10)
        box.done(taken)
        waits, found = box.has_any(), check(layout.root)
    finally:
        os.seteuid(0)
    assert taken.endswith("-x")
    [left] = os.listdir(layout.new)
    assert left.startswith(".")
    assert left.endswith("-folder")
    assert not waits
    assert any("begin with a dot" in one.text for one in found), found


@needs_root
def test_file_of_another_group_is_refused_all_the_same(layout: Layout) -> None:
    """It was put there by one who may do anything, and is not from a member."""
    store = SpoolStore(layout.root)
    share(layout, str(GROUP))
    file = Path(layout.new, "a.json")
    shutil.copy(Path(layout.root).parent / "job.json", file)
    os.chown(file, STRANGER, STRANGER)
    assert store.sweep_inbox() == Ingested(0, 0, 1)
    store.close()


@pytest.mark.parametrize("group", ["no-such-group", str(2**32 - 1), str(2**40), "²", "-1"])
def test_group_that_is_none_is_named(layout: Layout, group: str) -> None:
    """Numbers that can be no group's, too: the first would leave all as it is."""
    with pytest.raises(ConfigError, match=f"'{group}' is no group of this host"):
        share(layout, group)
    assert modes(layout) == {}
