"""What handlers started does not outlive a master that was killed: a guardian beside it waits for its end.

    master ── socket ── guardian
                the word `end`        the pool has ended in order, and so does the guardian
                the end of the socket the master is gone: what its workers left is killed

Workers die with their master (see `parent`); their programs would live on. The guardian is a shell, which costs a
quarter of a MiB where an interpreter costs eight, and becomes this module, run as a program, when there is something to
do. It is adopted by init: no child of the master, so nobody takes it for a worker. It has a session of its own and
passes signals over, so that neither Ctrl-C nor a TERM to all of a service ends it before the master has stopped. It
holds the scoreboard and its end of the socket, and no file of the master's beside; of the environment, which may hold
secrets, what an interpreter needs.

    python -m batchq.master.guardian BOARD_FD MASTER_PID MASTER_BIRTH
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import socket
import subprocess
import sys
import time
from pathlib import Path

from batchq import log
from batchq.clock import monotonic
from batchq.master.leavings import GONE_S, end_left
from batchq.system.parent import birth_of
from batchq.system.scoreboard import Owner, Scoreboard

#: Shown by ps.
NAME = "batchq-guardian"
#: The shell that is started ends at once, and leaves the one that waits. What is put into the background reads from
#: /dev/null, hence the 3.
_SCRIPT = """exec 3<&0
trap '' HUP INT QUIT TERM TSTP TTIN TTOU USR1 USR2 PIPE
(read -r word <&3 || exec "$@") &"""
_END = b"end\n"
_ENVIRONMENT = ("PATH", "HOME", "PYTHON", "LD_", "DYLD_")
#: Waits for the next try, where one can't be started or does not live so long: from the first to the second.
AGAIN_S, AGAIN_MOST_S = 0.2, 60.0
#: One that was told to end has done so within this, or is stopped.
END_S = 1.0


class Guardian:
    """The master's side. `left`: the socket to the one of the image before this one."""

    def __init__(self, board_fd: int, owner: Owner, selector: selectors.BaseSelector, left: int | None = None) -> None:
        self._board_fd = board_fd
        self._owner = owner
        self._selector = selector
        self._socket: socket.socket | None = None
        #: It is to be replaced: the code that it would run may be gone.
        self._is_old = left is not None
        self._born = 0.0
        self._try_at = 0.0
        self._pause_s = AGAIN_S
        if left is not None:
            self._listen(socket.socket(fileno=left))

    @property
    def fd(self) -> int | None:
        """What the next image goes on with."""
        return self._socket.fileno() if self._socket is not None else None

    def keep(self) -> None:
        """Called in each round of the loop: there is one."""
        # With process 1 of a container all others end.
        if (self._socket is not None and not self._is_old) or self._owner.pid == 1 or monotonic() < self._try_at:
            return
        try:
            made = self._start()
        except OSError as error:
            if self._pause_s == AGAIN_S:
                log.event("warning", "no_guardian", pid=self._owner.pid, why=str(error))
            self._pause()
            return
        self.close()
        self._is_old = False
        self._born = monotonic()
        self._listen(made)

    def _start(self) -> socket.socket:
        """Raises OSError."""
        mine, other = socket.socketpair()
        try:
            with other:
                # A number above those that a script can name.
                board_fd = fcntl.fcntl(self._board_fd, fcntl.F_DUPFD_CLOEXEC, 10)
                try:
                    self._run(other.fileno(), board_fd)
                finally:
                    os.close(board_fd)
        except BaseException:
            mine.close()
            raise
        return mine

    def _run(self, socket_fd: int, board_fd: int) -> None:
        task = [sys.executable, "-m", __name__, str(board_fd), str(self._owner.pid), str(self._owner.birth)]
        environ = {name: value for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)}
        here = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), environ.get("PYTHONPATH"))))
        subprocess.run(
            ["/bin/sh", "-c", _SCRIPT, NAME, *task],
            stdin=socket_fd,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(board_fd,),
            start_new_session=True,
            cwd="/",
            env={**environ, "PYTHONPATH": here, "PYTHONSAFEPATH": "1"},
            check=False,
        )

    def _listen(self, one: socket.socket) -> None:
        one.setblocking(False)
        self._socket = one
        self._selector.register(one, selectors.EVENT_READ, self._ended)

    def _ended(self, mask: int) -> None:
        """It says nothing: its end of the socket is closed."""
        self._let_go()
        if monotonic() - self._born > AGAIN_MOST_S:
            self._pause_s = AGAIN_S
        if self._pause_s == AGAIN_S:
            log.event("warning", "guardian_ended", pid=self._owner.pid, why="another one is started")
        self._pause()

    def _pause(self) -> None:
        self._try_at = monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, AGAIN_MOST_S)

    def _let_go(self) -> None:
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None

    def let_go(self) -> None:
        """In a child: closes its copy of the socket. The selector is the parent's."""
        if self._socket is not None:
            self._socket.close()

    def close(self) -> None:
        """Nothing is left to guard: it ends. It has, when this comes back."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.settimeout(END_S)
                self._socket.sendall(_END)
                self._socket.recv(1)
            self._let_go()


def main(board_fd: int, pid: int, birth: int) -> None:
    """The master of this pid and birth is gone, or has closed its socket and goes on: then nothing is done."""
    until = monotonic() + GONE_S
    while birth_of(pid) == birth:
        if monotonic() > until:
            return
        time.sleep(0.005)
    end_left(Scoreboard(fd=board_fd), pid, birth)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
