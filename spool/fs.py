"""The only module of the spool that makes system calls: the seam where tests put faults in.

It knows files, locks and flushes, but neither jobs nor SQL. Which error of a call is normal is the caller's to say, so
most functions raise plain OSError. Nothing here ever opens `queue.db` or `queue.db-shm` of a living ledger: closing
any descriptor of those drops SQLite's own locks on them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PRIVATE_FILE = 0o600
_PRIVATE_DIR = 0o700
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC

#: File systems where SQLite's WAL corrupts or locks: they are shared between hosts, or emulate locks and mmap.
REMOTE = frozenset(
    (
        *("nfs", "nfs3", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "afpfs", "webdav", "afs", "coda"),
        *("9p", "virtiofs", "vboxsf", "prl_fs", "drvfs", "macfuse", "osxfuse"),
        *("ceph", "lustre", "gpfs", "glusterfs", "ocfs2", "gfs2"),
    )
)

#: File systems that give what was allocated to nobody else.
_RESERVING = frozenset(("ext4", "xfs", "tmpfs"))

#: Errors of an open that are not the file's fault.
_OURS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOENT, errno.EINTR))


def passed(point: str) -> None:
    """A named point of a protocol (P1.., I1..) was passed. Does nothing; tests put an end to the process here."""


# -- directories and private files ---------------------------------------------------------------------------------


def make_dir(path: str) -> bool:
    """Makes a directory that only its owner may enter, and its missing parents alike. True where it is new."""
    try:
        os.mkdir(path, _PRIVATE_DIR)
    except FileExistsError:
        return False
    except FileNotFoundError:
        # Where the parent stands already, nothing can be made below it (/proc), and a second try fails the same way.
        if not make_dir(os.path.dirname(path)):
            raise
        return make_dir(path)
    # The umask takes bits away; a strange one would lock the owner out.
    os.chmod(path, _PRIVATE_DIR)
    return True


def open_private(path: str, flags: int) -> int:
    """Opens a file of ours, mode 0600 whatever the umask. Raises OSError (ELOOP for a symbolic link)."""
    fd = os.open(path, flags | _SAFE, _PRIVATE_FILE)
    try:
        if flags & os.O_CREAT and stat.S_IMODE(os.fstat(fd).st_mode) != _PRIVATE_FILE:
            os.fchmod(fd, _PRIVATE_FILE)
    except OSError:
        os.close(fd)
        raise
    return fd


def create_empty(path: str) -> bool:
    """Makes an empty private file; False where the name stands already (it is not touched then)."""
    try:
        os.close(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def read_start(path: str, limit: int) -> bytes:
    """The first bytes of a file of ours."""
    fd = open_private(path, os.O_RDONLY)
    try:
        return os.read(fd, limit)
    finally:
        os.close(fd)


def write_whole(temporary: str, path: str, data: bytes) -> None:
    """A file that is whole or not there, also after a power cut: write, fsync, rename, fsync the directory (P1-P6)."""
    fd = open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        try:
            passed("P1")
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            passed("P2")
            flush(fd)
            passed("P3")
        finally:
            os.close(fd)
        passed("P4")
        os.rename(temporary, path)
    except BaseException:
        # A full disk must not be made fuller.
        with suppress(OSError):
            os.unlink(temporary)
        raise
    passed("P5")
    flush_dir(os.path.dirname(path))
    passed("P6")


def names(path: str) -> list[str]:
    """What stands in a directory, sorted; nothing where there is no such directory."""
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []


def is_there(path: str) -> bool:
    """Whether something has that name, be it a link to nowhere."""
    return os.path.lexists(path)


def facts(path: str) -> os.stat_result:
    """lstat: a symbolic link is itself."""
    return os.lstat(path)


def changed_s(path: str, default: float) -> float:
    """When a file was written last, in seconds; the default where it has gone meanwhile."""
    try:
        return os.lstat(path).st_mtime
    except FileNotFoundError:
        return default


def copy(source: str, target: str) -> None:
    """A private copy, durable. Never of a ledger that this process has open: closing it would drop SQLite's locks."""
    read = os.open(source, os.O_RDONLY | _SAFE)
    try:
        write = open_private(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            while part := os.read(read, 1 << 20):
                rest = memoryview(part)
                while rest:
                    rest = rest[os.write(write, rest) :]
            flush(write)
        finally:
            os.close(write)
    finally:
        os.close(read)


def is_regular(path: str) -> bool:
    """A plain file, no link to one."""
    return stat.S_ISREG(os.lstat(path).st_mode)


def is_dir(path: str) -> bool:
    """A directory, no link to one."""
    return stat.S_ISDIR(os.lstat(path).st_mode)


def set_mode(path: str, mode: int) -> None:
    """chmod of a file of ours."""
    os.chmod(path, mode)


def give_to_group(path: str, group: int, mode: int) -> None:
    """The group first: it takes set-id bits away."""
    os.chown(path, -1, group)
    os.chmod(path, mode)


def size_of(path: str) -> int:
    """Bytes of a file, 0 where there is none. By path: nothing is opened."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def move(source: str, target: str) -> None:
    """rename. Raises FileNotFoundError where another took it first."""
    os.rename(source, target)


def remove(path: str) -> bool:
    """unlink; False where it is gone already."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def free_bytes(path: str) -> int:
    """What this user may still write on that file system."""
    vfs = os.statvfs(path)
    return vfs.f_bavail * vfs.f_frsize


def free_inodes(path: str) -> int | None:
    """How many files this user may still make on that file system; None where it has no such limit."""
    vfs = os.statvfs(path)
    return vfs.f_favail if vfs.f_files else None


def reserve(path: str, size: int) -> None:
    """A private file that takes up so much of the disk; one that stands already is kept as it is."""
    try:
        fd = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    try:
        if kind_of_fs(path) in _RESERVING and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            # Where files are compressed, or written anew on each change, only what can't be compressed takes room.
            for _ in range(0, size, 1 << 16):
                os.write(fd, os.urandom(min(1 << 16, size)))
            flush(fd)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


class Owners(NamedTuple):
    """Users, and a group where there is one."""

    users: frozenset[int]
    group: int | None = None


class Foreign(NamedTuple):
    """A file that others dropped: what may be known of it before it is read."""

    data: bytes
    #: Why it can't be taken; "" where it can.
    fault: str


def read_foreign(path: str, *, limit: int, owners: Owners) -> Foreign:
    """Reads a file that anybody may have put there: never follows, never blocks, never trusts its name or size.

    Raises OSError where the fault is this machine's (EMFILE, EIO, ...) and not the file's.
    """
    try:
        # O_NONBLOCK: a FIFO must not hang the sweeper.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | _SAFE)
    except OSError as error:
        if error.errno in _OURS:
            raise
        found = {errno.ELOOP: "a symbolic link", errno.ENXIO: "a socket or device", errno.ENODEV: "a device"}
        return Foreign(b"", f"expected a regular file, found {found.get(error.errno or 0, error.strerror)}")
    try:
        fact = os.fstat(fd)
        if not stat.S_ISREG(fact.st_mode):
            kind = "a directory" if stat.S_ISDIR(fact.st_mode) else "a FIFO or device"
            return Foreign(b"", f"expected a regular file, found {kind}")
        if fact.st_nlink != 1:
            return Foreign(b"", f"expected a file of one name, found {fact.st_nlink} hard links; copy it instead")
        if fact.st_uid not in owners.users and fact.st_gid != owners.group:
            return Foreign(
                b"",
                f"expected a file of uid {min(owners.users)} or another owner of the spool, found {fact.st_uid}; "
                "`batchq spool share` lets a group drop files",
            )
        parts: list[bytes] = []
        size = 0
        while part := os.read(fd, 1 << 20):
            parts.append(part)
            size += len(part)
            if size > limit:
                return Foreign(b"", f"expected at most {limit} bytes, found more; split it into several files")
        return Foreign(b"".join(parts), "")
    except OSError as error:
        return Foreign(b"", f"expected a file that can be read, found {error.strerror}")
    finally:
        os.close(fd)


# -- flushes -------------------------------------------------------------------------------------------------------


def flush(fd: int) -> None:
    """What was written to this file outlives a power cut. An error is final: a second fsync would lie."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)


def flush_dir(path: str) -> None:
    """The names in this directory outlive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _SAFE)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Log:
    """A descriptor of the ledger's write-ahead log, held to flush it. SQLite puts no locks on this file."""

    #: What SQLite writes before the first frame, and before the page of each.
    _HEADER, _FRAME = 32, 24

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._identity: Identity = (0, 0)

    def _find(self) -> bool:
        """Opens the log that stands there now. False where there is none: the last close of the ledger has moved it
        into the database, and flushed that."""
        if self._fd >= 0 and not stands_at(self._identity, self._path):
            self.close()
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDWR | _SAFE)
            except FileNotFoundError:
                return False
            self._identity = identity_of(self._fd)
        return True

    def flush(self) -> None:
        """Hardens every commit that any process made so far."""
        if self._find():
            flush(self._fd)

    def is_longer(self, size: int) -> bool:
        """Whether more than so many bytes of it are in use. The size of the file does not tell: when all was moved into
        the database, SQLite begins anew at its start. But each frame has the salts of the header that it came under."""
        if not self._find():
            return False
        head = os.pread(self._fd, self._HEADER, 0)
        frame = self._FRAME + int.from_bytes(head[8:12], "big")
        salts = os.pread(self._fd, 8, self._HEADER + size // frame * frame + 8)
        return len(salts) == 8 and salts == head[16:24]

    def claim(self) -> bool:
        """Whether the caller is to move it into the database: only one process at a time tries."""
        return self._find() and try_lock(self._fd)

    def release(self) -> None:
        """The end of a claim."""
        if self._fd >= 0:
            unlock(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


# -- locks ---------------------------------------------------------------------------------------------------------


def open_lock(path: str) -> int:
    """A descriptor to lock with. It must not be used on both sides of a fork: both would share the lock."""
    return open_private(path, os.O_RDWR | os.O_CREAT)


def lock(fd: int) -> None:
    """Waits in the kernel's queue until the lock is ours. It goes with the process, however that ends."""
    fcntl.flock(fd, fcntl.LOCK_EX)


def try_lock(fd: int) -> bool:
    """Takes the lock if it is free."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def try_lock_byte(fd: int, at: int, *, shared: bool = False) -> bool:
    """Locks one byte of a file if it is free, for this process: whoever has it else, its own handles on the file are no
    others, and closing any of them lets go."""
    try:
        fcntl.lockf(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB, 1, at)
    except OSError:
        # Most likely taken. The system may also have no more locks to give.
        return False
    return True


def unlock_byte(fd: int, at: int) -> None:
    fcntl.lockf(fd, fcntl.LOCK_UN, 1, at)


def lockers(path: str, kind: str) -> list[int]:
    """Who has a lock on a file (FLOCK, or POSIX as SQLite's are), by pid; nobody where the system has no such list."""
    try:
        fact = os.stat(path)
        with open("/proc/locks", encoding="ascii") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    # `1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF`; those who wait have an arrow behind the number. The device is
    # left out: a subvolume's differs from what stat says.
    fields = [line.split() for line in lines]
    return sorted(
        {int(f[4]) for f in fields if len(f) > 5 and f[1] == kind and f[5].rpartition(":")[2] == str(fact.st_ino)}
    )


#: What tells a file from all others that stand at the same time.
Identity = tuple[int, int]


def identity_of(fd: int) -> Identity:
    """Of an open file."""
    fact = os.fstat(fd)
    return fact.st_ino, fact.st_dev


def stands_at(identity: Identity, path: str) -> bool:
    """Whether a file that somebody has open still is the one under that name."""
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return False
    return identity == (there.st_ino, there.st_dev)


def unlock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)


def close(fd: int) -> None:
    os.close(fd)


# -- FIFOs ---------------------------------------------------------------------------------------------------------


def make_fifo(path: str) -> int:
    """A FIFO that only its owner may use, open for both ends: it never reads as closed, and never blocks."""
    os.mkfifo(path, _PRIVATE_FILE)
    os.chmod(path, _PRIVATE_FILE)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | _SAFE)


def link(source: str, target: str) -> None:
    """A second name. One that stands already is kept."""
    with suppress(FileExistsError):
        os.link(source, target)


def ring(path: str) -> bool:
    """Takes this name of a FIFO away and rouses whoever reads it. False: nobody does, or another was first."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | _SAFE)
    except OSError as error:
        # ENXIO: the reader died. Its name is rubbish.
        if error.errno == errno.ENXIO:
            with suppress(OSError):
                os.unlink(path)
        return False
    try:
        os.unlink(path)
        os.write(fd, b".")
    except OSError:
        # ENOENT: another rang first. EAGAIN: it is full of hints already.
        return False
    finally:
        os.close(fd)
    return True


def write_hint(fd: int) -> None:
    """A byte; one that finds no room is not missed."""
    with suppress(BlockingIOError):
        os.write(fd, b".")


def has_reader(path: str) -> bool:
    """Whether somebody holds this FIFO open for reading."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | _SAFE))
    except OSError as error:
        return error.errno != errno.ENXIO
    return True


def drain(fd: int) -> bool:
    """Reads what a FIFO holds; True where there was something."""
    try:
        return bool(os.read(fd, 4096))
    except BlockingIOError:
        return False


# -- where the spool may lie ---------------------------------------------------------------------------------------


def real_path(path: str) -> str:
    """The absolute path without symbolic links: a later chdir changes nothing."""
    return os.path.realpath(Path(path).expanduser())


def fault_of_dir(path: str) -> str:
    """Why a directory can't be trusted with jobs; "" where it can."""
    fact = os.lstat(path)
    if not stat.S_ISDIR(fact.st_mode):
        return "expected a directory, found a file; give another path"
    if fact.st_uid not in (os.geteuid(), 0):
        return f"expected a directory of uid {os.geteuid()} or root, found {fact.st_uid}; its owner owns the jobs"
    if fact.st_mode & stat.S_IWOTH:
        return f"expected a private directory, found mode {stat.S_IMODE(fact.st_mode):04o}; run chmod o-w on it"
    return ""


def owners_of(path: str) -> Owners:
    """Whose files may be taken from the inbox: ours, root's, the directory's owner's, and those of the group that may
    write there."""
    fact = os.lstat(path)
    group = fact.st_gid if fact.st_mode & stat.S_IWGRP else None
    return Owners(frozenset((os.geteuid(), 0, fact.st_uid)), group)


def kind_of_fs(path: str, table: str | None = None) -> str:
    """The type of the file system under a path, "" where the system does not tell. `table`: mountinfo's text."""
    found, kind = "", ""
    for mounted, one in _mounts(table):
        inside = path == mounted or path.startswith(mounted.rstrip("/") + "/")
        # A later mount on the same place hides the earlier one.
        if inside and len(mounted) >= len(found):
            found, kind = mounted, one
    return kind


def _mounts(table: str | None) -> Iterator[tuple[str, str]]:
    """(where, of which type), in the order in which they were mounted."""
    if table is None and sys.platform == "darwin":
        import psutil

        yield from ((one.mountpoint, one.fstype) for one in psutil.disk_partitions(all=True))
        return
    if table is None:
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
                table = file.read()
        except OSError:
            return
    for line in table.splitlines():
        left, dash, right = line.partition(" - ")
        fields = left.split(" ")
        if dash and len(fields) >= 5:
            yield _unescape(fields[4]), right.split(" ", 1)[0]


def _unescape(text: str) -> str:
    for octal, plain in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(octal, plain)
    return text


def is_remote(kind: str) -> bool:
    """Whether a ledger must not lie on a file system of this type."""
    return kind in REMOTE or kind.startswith("fuse")
