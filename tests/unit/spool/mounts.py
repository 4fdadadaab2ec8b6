"""File systems of a test's own: small, full, without inodes, on an image that can be copied. They need root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)


@contextmanager
def mounted(place: Path, *command: str) -> Iterator[Path]:
    """Mounts it at a new folder; skips the test where this machine does not allow that."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("MOUNTS NOTHING: needs root and mount(8); this behaviour is not tested here")
    place.mkdir()
    try:
        _run("mount", *command, str(place))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"MOUNTS NOTHING: this machine refuses it ({error.stderr.strip()}); not tested here")
    try:
        # A fresh ext4 has lost+found; tmpfs is open to all.
        place.chmod(0o700)
        yield place
    finally:
        # Lazily: a process that a failed test left must not keep it for ever.
        _run("umount", "-l", str(place))


def small(place: Path, *, size_mib: int = 64, inodes: int = 0) -> AbstractContextManager[Path]:
    """A tmpfs with so much room, and so many inodes."""
    options = f"size={size_mib}m" + (f",nr_inodes={inodes}" if inodes else "")
    return mounted(place, "-t", "tmpfs", "-o", options, "tmpfs")


def remount(place: Path, option: str) -> None:
    """As `mount -o remount,<option>`."""
    _run("mount", "-o", f"remount,{option}", str(place))


def fill(place: Path) -> Path:
    """Takes up all the room there is; answers the file that does."""
    path = place / "fill"
    with path.open("wb", buffering=0) as file:
        size = 1 << 20
        while size >= 512:
            try:
                if file.write(b"x" * size) < size:
                    size //= 2
            except OSError:
                size //= 2
    return path


def use_up_inodes(place: Path) -> None:
    """Makes files until none can be made."""
    (place / "inodes").mkdir(exist_ok=True)
    n = 0
    while True:
        try:
            (place / "inodes" / str(n)).touch()
        except OSError:
            return
        n += 1
