"""What ps shows for master and workers, where setproctitle is installed (the extra `title`)."""

from __future__ import annotations

import contextlib


def set_title(text: str) -> None:
    """`batchq: text`; nothing where that can't be set."""
    with contextlib.suppress(ImportError):
        import setproctitle

        setproctitle.setproctitle(f"batchq: {text}")
