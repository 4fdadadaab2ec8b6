"""Room that is kept so that work can be finished on a full disk: some files that can be given up.

Enqueue is refused early; claims and settling go on. When even they find no room (bytes, or an inode for the log),
the ballast goes, and they are tried again. It is made anew when there is plenty.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from batchq.spool import fs
from batchq.spool.layout import Layout

#: Enqueue is refused when less is free: finishing jobs needs room too.
RESERVE_BYTES: Final = 16 << 20
#: Several files: each gives an inode back as well.
FILES: Final = 16
BYTES: Final = 512 << 10
#: It is made where so many times its size is free.
_PLENTY: Final = 4


def missing(layout: Layout) -> int:
    """How many of the files are not there."""
    return FILES - len(fs.names(layout.ballast))


def keep(layout: Layout) -> bool:
    """Makes what is missing where there is plenty of room; True where all of it is there now."""
    if not missing(layout):
        return True
    if fs.free_bytes(layout.root) < _PLENTY * FILES * BYTES:
        return False
    try:
        fs.make_dir(layout.ballast)
        for number in range(FILES):
            fs.reserve(os.path.join(layout.ballast, str(number)), BYTES)
    except OSError:
        # Room that is not there can't be kept.
        return False
    return True


def drop(layout: Layout) -> bool:
    """Gives it up; True where there was some."""
    dropped = False
    for name in fs.names(layout.ballast):
        with suppress(OSError):
            dropped |= fs.remove(os.path.join(layout.ballast, name))
    return dropped
