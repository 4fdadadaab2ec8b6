"""Who beside its owner may drop jobs into a spool: the members of one group, and nobody else anything.

They may pass through the spool and its inbox without listing them, and make files in tmp/ and new/. These two folders
give their group to what is made there, which tells the sweeper whose files to take.
"""

from __future__ import annotations

import grp
import os

from batchq.errors import ConfigError
from batchq.spool import fs
from batchq.spool.layout import Layout

#: Passed through; and where files are made (setgid).
_PASSED, _OPEN = 0o710, 0o2770
_PRIVATE = 0o700


def is_shared(layout: Layout) -> bool:
    try:
        return fs.owners_of(layout.new).group is not None
    except FileNotFoundError:
        # It is only being made.
        return False


def mode_of(layout: Layout, path: str) -> int:
    """The mode that a folder of a shared spool has."""
    if path in (layout.tmp, layout.new):
        return _OPEN
    return _PASSED if path in (layout.root, layout.at("inbox")) else _PRIVATE


def share(layout: Layout, group: str) -> None:
    """Lets the members of a group drop files. Raises ConfigError where there is none, or the right to it is missing."""
    try:
        number = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(f"group: {group!r:.100} is no group of this host; see `getent group`") from None
    try:
        # From the inside: nobody enters before all is as it should be.
        for path in _folders(layout):
            fs.give_to_group(path, number, mode_of(layout, path))
    except PermissionError as error:
        raise ConfigError(
            f"group: {layout.root} can't be given to {group} ({error.strerror}); only root, and the spool's owner as a "
            "member of that group, may do so"
        ) from error


def unshare(layout: Layout) -> None:
    """Nobody but the owner may do anything with the spool again. What was dropped by others and not taken stays."""
    for path in reversed(_folders(layout)):
        fs.set_mode(path, _PRIVATE)


def _folders(layout: Layout) -> list[str]:
    return [layout.tmp, layout.new, os.path.dirname(layout.new), layout.root]
