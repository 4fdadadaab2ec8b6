"""Several real servers on the loopback that belong together: a cluster, and a primary with replica and sentinels."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import redis
from redis.crc import key_slot

from tests.process.rig import until
from tests.servers import Server, binary, free_port

NODES = 3
#: A node or primary that is silent so long is down, ms.
DOWN_MS = 500
#: A replica is served when it asks; else five seconds later, with others.
AT_ONCE = ("--repl-diskless-sync-delay", "0")


class Cluster:
    """Three primaries that share the slots, each with so many replicas."""

    def __init__(self, flavour: str, replicas: int = 0) -> None:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", *AT_ONCE)
        self.nodes = [
            Server(flavour, *options, "--cluster-port", str(free_port())) for _ in range(NODES * (1 + replicas))
        ]
        try:
            self._form()
        except BaseException:
            self.stop()
            raise

    def _form(self) -> None:
        share = 16384 // NODES + 1
        for place, node in enumerate(self.nodes):
            node.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", place + 1)
            if place < NODES:
                last = min(16383, (place + 1) * share - 1)
                node.client.execute_command("CLUSTER", "ADDSLOTSRANGE", place * share, last)
        # Each meets all: gossip alone takes seconds.
        for node in self.nodes:
            bus = node.client.config_get("cluster-port")["cluster-port"]
            for other in self.nodes:
                if other is not node:
                    other.client.execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        until(lambda: all(self._knows_all(node) for node in self.nodes), "all nodes know each other")
        for place, node in enumerate(self.nodes[NODES:]):
            primary = self.id_of(self.nodes[place % NODES])
            node.client.execute_command("CLUSTER", "REPLICATE", primary)
        until(lambda: all(self._is_ok(node) for node in self.nodes), "the cluster is up")
        replicas = self.nodes[NODES:]
        until(lambda: all(_in_sync(node) for node in replicas), "the replicas are in sync")

    def _knows_all(self, node: Server) -> bool:
        said = node.client.execute_command("CLUSTER", "NODES")
        return b"handshake" not in said and said.count(b"\n") == len(self.nodes)

    def _is_ok(self, node: Server) -> bool:
        return b"cluster_state:ok" in node.client.execute_command("CLUSTER", "INFO")

    @property
    def url(self) -> str:
        """Names two of the nodes."""
        return f"redis+cluster://127.0.0.1:{self.nodes[1].port},127.0.0.1:{self.nodes[2].port}"

    def id_of(self, node: Server) -> str:
        return str(node.client.execute_command("CLUSTER", "MYID").decode())

    def owner(self, key: str) -> Server:
        """The primary that has the key's slot."""
        slot = key_slot(key.encode())
        for first, last, primary, *_ in self._any().execute_command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == primary[1])
        raise AssertionError(f"no node has slot {slot}")

    def _any(self) -> redis.Redis:
        return next(node.client for node in self.nodes if node.process.poll() is None)

    def move(self, key: str, to: Server, between: object = lambda: None) -> None:
        """Moves the slot of a key, a key at a time; `between` is called while it stands on both nodes."""
        assert callable(between)
        slot, source = key_slot(key.encode()), self.owner(key)
        to.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(to))
        between()
        while keys := source.client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 2):
            source.client.execute_command("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
            between()
        for node in (to, source, *(node for node in self.nodes[:NODES] if node not in (to, source))):
            node.client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", self.id_of(to))

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


def _in_sync(replica: Server) -> bool:
    return bool(replica.client.info("replication").get("master_link_status") == "up")


class _Sentinel(Server):
    """Watches a primary. Its configuration is a file that it rewrites."""

    def __init__(self, flavour: str, primary: Server) -> None:
        self._primary = primary
        super().__init__(flavour)

    def command(self, *more: str) -> list[str]:
        conf = Path(self.folder) / "sentinel.conf"
        if not conf.exists():
            conf.write_text(
                f"bind 127.0.0.1\nport {self.port}\ndir {self.folder}\n"
                f"sentinel monitor main 127.0.0.1 {self._primary.port} 2\n"
                f"sentinel down-after-milliseconds main {DOWN_MS}\nsentinel failover-timeout main 4000\n"
            )
        return [binary(self.flavour), str(conf), "--sentinel", *more]


class Watched:
    """A primary, a replica and three sentinels."""

    def __init__(self, flavour: str) -> None:
        self.primary = Server(flavour, *AT_ONCE)
        self.replica = Server(flavour, "--masteruser", "copier", "--masterauth", "copy")
        self.sentinels: list[_Sentinel] = []
        try:
            self.primary.client.acl_setuser("copier", enabled=True, passwords="+copy", commands=["+@all"], keys=["*"])
            self.replica.client.replicaof("127.0.0.1", self.primary.port)
            until(lambda: _in_sync(self.replica), "the replica is in sync")
            self.sentinels += [_Sentinel(flavour, self.primary) for _ in range(3)]
            for sentinel in self.sentinels:
                # Else they look for each other every two seconds, and for replicas every ten.
                sentinel.client.execute_command("SENTINEL", "DEBUG", "info-period", 200, "publish-period", 200)
            until(lambda: all(map(self._sees_all, self.sentinels)), "the sentinels see each other and the replica")
        except BaseException:
            self.stop()
            raise

    @staticmethod
    def _sees_all(sentinel: Server) -> bool:
        seen = sentinel.client.sentinel_masters()["main"]
        return bool(seen["num-other-sentinels"] == 2 and seen["num-slaves"] == 1)

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/main/0"

    def cut_replica(self) -> None:
        """The replica gets no write from now on, and can't come back."""
        self.primary.client.acl_setuser("copier", enabled=False)
        self.primary.client.execute_command("CLIENT", "KILL", "TYPE", "replica")
        until(lambda: not _in_sync(self.replica), "the replica is cut off")

    def until_promoted(self, within: float = 15.0) -> None:

        def is_primary() -> bool:
            # Sentinels cut its clients off.
            with suppress(redis.ConnectionError):
                return bool(self.replica.client.info("replication")["role"] == "master")
            return False

        until(is_primary, "the replica is promoted", within)

    def stop(self) -> None:
        for server in (*self.sentinels, self.replica, self.primary):
            server.stop()
