"""What a script touches is what it declares, and all of it is in one slot: for Cluster, Dragonfly and ACLs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from redis.crc import key_slot

from batchq.fallback.emptying import empty
from batchq.job import NewJob, pack_row
from batchq.redis.dial import Dialer
from batchq.redis.scripts import _GATED, load
from batchq.redis.store import RedisStore
from batchq.spool import SpoolStore
from tests.faults.drive import Q, drive
from tests.servers import Server

LUA = Path(str(files("batchq") / "lua"))
NAMES = sorted(
    str(path.relative_to(LUA).with_suffix("")) for path in LUA.rglob("*.lua") if path.parent.name != "include"
)


_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')


@contextmanager
def monitored(server: Server) -> Iterator[list[tuple[bool, list[str]]]]:
    """Every command that the server executes meanwhile, and whether a script made it."""
    seen: list[tuple[bool, list[str]]] = []
    listener = Dialer(server.url, socket_timeout_s=10).open(10)
    assert listener.ask("MONITOR") == b"OK"
    yield seen
    server.client.echo("monitored-to-here")
    while "monitored-to-here" not in (line := listener.read().decode()):
        head, words = line.split("] ", 1)
        seen.append((head.endswith(" lua"), _WORD.findall(words)))
    listener.close()


def test_every_key_that_a_script_touches_is_declared_and_in_its_queues_slot(
    redis_server: Server, prefix: str, tmp_path: Path
) -> None:
    """All scripts, as a server sees them: each command inside is compared with the keys of its EVALSHA."""
    store = RedisStore(redis_server.url, prefix=prefix)
    spool = SpoolStore(tmp_path / "spool")
    spool.enqueue("other", [NewJob("adopted", pack_row("send"))])
    with monitored(redis_server) as seen:
        drive(store)
        list(empty(spool, store))
        store.stats(Q)
    spool.close()
    # Each way out of active is shipped twice: as it is, and for jobs that hold places at gates.
    shas = {load(f"{kind}{name}").sha: name for kind, names in (("", NAMES), ("gated/", _GATED)) for name in names}
    script, declared, met, wrong = "", set[str](), set[str](), []
    for is_inside, words in seen:
        if words[0].upper() == "EVALSHA":
            script = shas.get(words[1], "")
            declared = set(words[3 : 3 + int(words[2])])
            if any(prefix in key for key in declared):
                met.add(script)
                assert len({key_slot(key.encode()) for key in declared}) == 1, (script, declared)
        elif is_inside:
            # Whatever looks like a key of ours is one.
            touched = {word for word in words if word.startswith(f"{prefix}:")}
            wrong += [(script, words, key) for key in touched - declared]
            assert words[0].upper() == "TIME" or words[1] in declared, (script, words)
    assert not wrong, wrong
    assert met == set(NAMES), set(NAMES) - met
    store.close()
