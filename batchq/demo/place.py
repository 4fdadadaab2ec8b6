"""Where the demo runs: a folder of its own, and in it a spool, or a prefix of its own in a Redis. Removed afterwards.

The folder holds a pyproject.toml, so that every `batchq` command that is called in it means the demo's app and store.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Self

from batchq.cli.endings import say
from batchq.config import masked
from batchq.errors import BatchqError, ConfigError
from batchq.job import random_name
from batchq.stores import KINDS

APP = "batchq.demo.work:app"


class Place:
    """A context. Raises ConfigError for a url that can't be used."""

    def __init__(self, url: str | None, *, keep: bool = False) -> None:
        self._keep = keep
        #: Something was written to the store.
        self.used = False
        self._own_spool: Path | None = None
        if url is not None and url.startswith("spool:") and len(url) > 6:
            self._own_spool = _unused(Path(url[6:]).absolute())
        elif url is not None and not url.startswith(("redis://", "rediss://", "unix://")):
            found = "a memory store is seen by one process only" if url == "memory:" else "names no store"
            raise ConfigError(f'url: "{masked(url):.200}" {found}; write {KINDS.removesuffix(" or memory:")}')
        self.folder = Path(tempfile.mkdtemp(prefix="batchq-demo-")).resolve()
        self.on_redis = url is not None and self._own_spool is None
        self.url = url if url is not None and self.on_redis else f"spool:{self._own_spool or self.folder / 'spool'}"
        self.prefix = f"demo-{random_name(12)}"

    @property
    def flags(self) -> dict[str, object]:
        """Settings above all others: whatever the environment says, the demo stays in its place."""
        return {"url": self.url, "prefix": self.prefix}

    @property
    def shown(self) -> str:
        """The store for people, without a password."""
        return f"{masked(self.url)}, prefix {self.prefix}" if self.on_redis else self.url

    @property
    def kept(self) -> str | None:
        """The folder, where it is kept."""
        return str(self.folder) if self._keep else None

    def __enter__(self) -> Self:
        settings = {"app": APP, **self.flags}
        # JSON's strings, numbers and booleans are TOML's as well.
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        pyproject = self.folder / "pyproject.toml"
        pyproject.touch(0o600)
        pyproject.write_text("[tool.batchq]\n" + "\n".join(lines) + "\n", encoding="utf-8")
        return self

    def __exit__(self, *exc: object) -> None:
        if self._keep:
            return
        if self.on_redis and self.used:
            _remove_keys(self.url, self.prefix)
        if self._own_spool is not None:
            shutil.rmtree(self._own_spool, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def _unused(path: Path) -> Path:
    """The path, if nothing is there. Raises ConfigError."""
    if path.exists():
        raise ConfigError(
            f"url: {path} exists, and the demo removes its spool when it ends; give a path that does not exist yet"
        )
    return path


def _remove_keys(url: str, prefix: str) -> None:
    """Removes every key that begins with the prefix, which is nobody else's. Says so where it can't."""
    from batchq.redis.dial import dialer_for
    from batchq.redis.replies import Unreached

    link = dialer_for(url, socket_timeout_s=5.0).link()
    cursor = b"0"
    try:
        while True:
            [[cursor, keys]] = link.ask([("SCAN", cursor, "MATCH", f"{prefix}:*", "COUNT", 500)])
            if keys:
                link.ask([("UNLINK", *keys)])
            if cursor == b"0":
                break
    except (Unreached, BatchqError) as error:
        say(f"batchq demo: the keys {prefix}:* are still in {masked(url)}: {error}")
    finally:
        link.close()
