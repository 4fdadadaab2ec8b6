"""A systemd to run a unit under: process 1 of namespaces made for the test, which can do nothing to this host.

What it starts sees the host's files read-only, but for one folder. It has an empty /run, a /dev of five nodes, no
network, no sysctl, and none of the host's units: those at boot would empty /tmp and write to /var. It takes Linux,
root, systemd's program (which need not run), and a cgroup2 hierarchy. It ends with its first process, and all of it
with that.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.process.rig import die_with_pytest, until

_PROGRAMS = ("/usr/lib/systemd/systemd", "/lib/systemd/systemd")
_TOOLS = ("systemctl", "unshare", "nsenter", "setpriv", "mount", "umount", "awk")

#: $1 the control group, $2 what comes next, $3 the folder, $4 systemd. The group is entered before the namespaces are
#: made: it is their root.
_ENTER = """
echo $$ > "$1/cgroup.procs"
exec unshare --pid --fork --kill-child --mount --cgroup --uts --ipc --net --mount-proc sh -euc "$2" sh "$3" "$4"
"""
#: $1 the folder, $2 systemd.
_BOOT = """
mount --make-rprivate /
mount --bind "$1" "$1"
umount -R /sys/fs/cgroup
for place in $(awk '{ print $5 }' /proc/self/mountinfo); do
  case $place in "$1" | /proc) ;; *) mount -o remount,bind,ro "$place" ;; esac
done
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for path in /proc/sys /proc/sysrq-trigger; do
  if [ -e $path ]; then mount --bind $path $path; mount -o remount,bind,ro $path; fi
done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/systemd/system /run/none /run/dev/shm /run/dev/pts
for node in null zero full random urandom; do
  : > /run/dev/$node
  mount --bind /dev/$node /run/dev/$node
done
ln -s /proc/self/fd /run/dev/fd
mount --rbind /run/dev /dev
mount -o remount,bind,ro /dev
for lib in /lib /usr/lib /usr/local/lib /etc; do
  for path in $lib/systemd/system $lib/systemd/system-generators; do
    if [ -d $path ]; then mount --bind /run/none $path; fi
  done
done
for path in / /tmp /var/tmp /var/log /etc /root /dev /proc/sys; do
  if [ -w $path ]; then echo "$path can be written to: no systemd is started" >&2; exit 1; fi
done
for name in empty sysinit basic shutdown; do
  printf '[Unit]\\nDefaultDependencies=no\\n' > /run/systemd/system/$name.target
done
exec env -i container=batchq-test PATH="$PATH" \
  setpriv --bounding-set -sys_boot,-sys_module,-sys_rawio,-sys_time,-syslog,-mknod \
  "$2" --system --unit=empty.target --log-target=null --show-status=no
"""


class Systemd:
    """`first`: its process 1, as it is numbered out here."""

    def __init__(self, first: int) -> None:
        self._inside = ("nsenter", "-t", str(first), "-m", "-p", "-C", "-u", "-i", "-n")
        self.units = Path(f"/proc/{first}/root/run/systemd/system")

    def ctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """systemctl, however it ends."""
        command = [*self._inside, "systemctl", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)

    def is_up(self) -> bool:
        return self.ctl("is-system-running").stdout.strip() == "running"


def why_not() -> str:
    """Why there can be none; "": there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "not Linux, or not root"
    if not _program() or not all(map(shutil.which, _TOOLS)):
        return f"systemd, or one of {', '.join(_TOOLS)} is not there"
    return "" if _cgroups() else "no cgroup2 hierarchy that can be written to"


@contextlib.contextmanager
def systemd(folder: Path, name: str) -> Iterator[Systemd]:
    """One for the time of the with block, which may write to that folder. `name`: no other's."""
    group = (_cgroups() or Path()) / f"batchq-test-{name}"
    group.mkdir()
    command = ["sh", "-euc", _ENTER, "sh", str(group), _BOOT, str(folder), _program()]
    outer = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_pytest)
    try:
        first = until(lambda: _first_of(outer), "systemd is process 1", within=20)
        made = Systemd(first)
        until(made.is_up, "systemd is up", within=20)
        yield made
    finally:
        outer.kill()
        outer.wait()
        _remove(group)


def _first_of(outer: subprocess.Popen[bytes]) -> int:
    """0: it is no systemd yet."""
    assert outer.poll() is None, f"systemd can't be started: exit code {outer.returncode}"
    found = [child.pid for child in psutil.Process(outer.pid).children() if child.name() == "systemd"]
    return found[0] if found else 0


def _program() -> str:
    return next((path for path in _PROGRAMS if os.access(path, os.X_OK)), "")


def _cgroups() -> Path | None:
    """The root of the hierarchy."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2" and "rw" in options.split(","):
            return Path(place)
    return None


def _remove(group: Path) -> None:
    """Once the last process in it is gone."""
    latest = time.monotonic() + 10
    while group.is_dir():
        for path, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)
        assert time.monotonic() < latest, f"{group} is not empty"
        time.sleep(0.01)
