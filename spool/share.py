"""Who beside its owner may drop jobs into a spool: the members of one group, and nobody else anything.

They may pass through the spool and its inbox without listing them, and make files in tmp/ and new/. These two folders
give their group to what is made there, which tells the sweeper whose files to take; and what one has put there no other
may take away or write over (the sticky bit).
"""

from __future__ import annotations

import grp

from batchq.errors import ConfigError
from batchq.spool import fs
from batchq.spool.layout import Layout

_PRIVATE = 0o700
#: Of no group: to `chown` it says that all is to stay.
_NO_GROUP = 2**32 - 1


def _modes(layout: Layout) -> dict[str, int]:
    """The folders that are open, from the inside out: files are made there (setgid, sticky), or passed through."""
    return {layout.tmp: 0o3770, layout.new: 0o3770, layout.at("inbox"): 0o710, layout.root: 0o710}


def open_modes(layout: Layout) -> dict[str, int]:
    """The folders that others may enter on purpose, and their modes; none where the spool is not shared."""
    try:
        is_shared = fs.owners_of(layout.new).group is not None
    except FileNotFoundError:
        # It is only being made.
        is_shared = False
    return _modes(layout) if is_shared else {}


def share(layout: Layout, group: str) -> None:
    """Lets the members of a group drop files. Raises ConfigError where there is none, or the right to it is missing."""
    try:
        is_number = group.isdecimal() and int(group) < _NO_GROUP
        number = int(group) if is_number else grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(f"group: {group!r:.100} is no group of this host; see `getent group`") from None
    try:
        # Nobody enters before all is as it should be.
        for path, mode in _modes(layout).items():
            fs.give_to_group(path, number, mode)
    except PermissionError as error:
        raise ConfigError(
            f"group: {layout.root} can't be given to {group} ({error.strerror}); only root, and the spool's owner as a "
            "member of that group, may do so"
        ) from error


def unshare(layout: Layout) -> None:
    """Nobody but the owner may do anything with the spool again. What was dropped by others and not taken stays."""
    for path in reversed(_modes(layout)):
        fs.set_mode(path, _PRIVATE)
