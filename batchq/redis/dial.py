"""Reads the url of a Redis server and opens connections to it. Decides nothing about when that is tried again.

redis://, rediss:// (TLS) and unix:// name one server; redis+sentinel:// asks sentinels which one is the primary, each
time that a connection is opened; redis+cluster:// is in `cluster`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool, SSLConnection
from redis.retry import Retry

from batchq import __version__
from batchq.clock import monotonic
from batchq.errors import ConfigError
from batchq.redis.link import Link
from batchq.redis.sockets import Tcp, Tls

_URL_FORM = (
    "expected redis://[user:password@]host:port/db, "
    "with any /, ?, # or @ of the user and password percent-encoded (%2F for /)"
)
_SENTINEL_FORM = "expected redis+sentinel://[user:password@]host:port,host:port/NAME[/db]"
#: The longest that one of several sentinels or nodes may be silent before the next is asked.
ASK_S = 0.5
#: Names of one place.
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

Address = tuple[str, int]


def _named() -> dict[str, Any]:
    """How CLIENT LIST of the server names our connections. Without it redis-py reads the metadata of its own package
    from disk, for each connection: 10 ms of CPU, and 2 MB that a worker shares with nobody."""
    try:
        from redis.driver_info import DriverInfo
    except ImportError:  # older than 7.1
        return {"lib_name": "batchq", "lib_version": __version__}
    return {"driver_info": DriverInfo(name="batchq", lib_version=__version__)}


_NAMED = _named()


class Dialer:
    """Makes connections to one server. `where` is its address without the password."""

    scheme = "redis"
    #: Keys are in slots, and slots on nodes.
    is_cluster = False

    def __init__(self, url: str, *, socket_timeout_s: float) -> None:
        try:
            pool = ConnectionPool.from_url(
                url,
                socket_timeout=socket_timeout_s,
                socket_connect_timeout=socket_timeout_s,
                retry=Retry(NoBackoff(), 0),
                health_check_interval=0,
                protocol=2,
                **_NAMED,
            )
        except ValueError:
            # Without the text of the error: it may hold a part of the password.
            raise ConfigError(f"url: {_URL_FORM}") from None
        # The class alone: the pool counts what it has made, and stops at a number.
        self._class = _BOUNDED.get(pool.connection_class, pool.connection_class)
        self._kwargs: dict[str, Any] = pool.connection_kwargs
        if "@" in url and not self._kwargs.keys() & {"username", "password"}:
            # An unescaped / or ? ends the host part early, and redis-py would connect to localhost without a word.
            raise ConfigError(f"url: {_URL_FORM}")
        self.socket_timeout_s = socket_timeout_s
        self.where: str = self._kwargs.get("path") or written(
            (self._kwargs.get("host", "localhost"), self._kwargs.get("port", 6379))
        )
        self.db = int(self._kwargs.get("db") or 0)

    @property
    def place(self) -> str:
        """What tells this server from others, by whatever name of the loopback it is called."""
        host, colon, port = self.where.rpartition(":")
        return f"localhost{colon}{port}" if host in _LOOPBACK else self.where

    def link(self) -> Link:
        return Link(self)

    def dial(self, at: Address | None = None) -> Any:
        """A connection of redis-py, not yet open. Its methods are untyped; only Link touches it."""
        there = {} if at is None else {"host": at[0], "port": at[1]}
        return self._class(**(self._kwargs | there))

    def open(self, connection: Any) -> None:
        """Opens what `dial` made, within its time limit. Raises errors of redis-py."""
        connection.connect()


class SentinelDialer(Dialer):
    """Makes connections to whatever server the sentinels call the primary."""

    scheme = "redis+sentinel"

    def __init__(self, url: str, *, socket_timeout_s: float) -> None:
        plain, hosts, path, query = taken_apart(url, 26379)
        name, _, db = path.strip("/").partition("/")
        if not name or not (db or "0").isdigit():
            raise ConfigError(f"url: {_SENTINEL_FORM}; the name is that of `sentinel monitor`")
        mine = {key: query.pop(f"sentinel_{key}") for key in ("username", "password") if f"sentinel_{key}" in query}
        super().__init__(
            f"{plain}/{db or 0}{'?' if query else ''}{urlencode(query)}", socket_timeout_s=socket_timeout_s
        )
        self._name = name
        #: The one that answered last stands first.
        self._sentinels = list(hosts)
        self._to_sentinel = {**self._kwargs, "db": 0, "username": None, "password": None} | mine
        self.where = f"{','.join(map(written, sorted(hosts)))}/{name}"

    @property
    def place(self) -> str:
        return self.where

    def open(self, connection: Any) -> None:
        limit_s = connection.socket_connect_timeout
        until = monotonic() + limit_s
        connection.host, connection.port = self._primary(until)
        left = max(0.01, until - monotonic())
        connection.socket_timeout = connection.socket_connect_timeout = left
        connection.connect()
        connection.socket_timeout = limit_s
        connection._sock.settimeout(limit_s)
        # The sentinels may not know yet that it is none any more.
        try:
            connection.send_command("ROLE", check_health=False)
            role = connection.read_response()[0]
        except redis.exceptions.NoPermissionError:
            return
        if role != b"master":
            where = written((connection.host, connection.port))
            connection.disconnect()
            raise redis.ConnectionError(f"{where} is no primary ({role.decode()}); the sentinels will know soon")

    def _primary(self, until: float) -> Address:
        why = ""
        for sentinel in list(self._sentinels):
            left = until - monotonic()
            if left <= 0:
                break
            limit_s = min(ASK_S, left)
            there = {"host": sentinel[0], "port": sentinel[1]}
            limits = {"socket_timeout": limit_s, "socket_connect_timeout": limit_s}
            asked = self._class(**(self._to_sentinel | there | limits))
            try:
                asked.connect()
                asked.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name, check_health=False)
                answer = asked.read_response()
            except (redis.RedisError, OSError) as error:
                why = f"{written(sentinel)}: {error}"
                continue
            finally:
                asked.disconnect()
            if answer:
                self._sentinels.remove(sentinel)
                self._sentinels.insert(0, sentinel)
                return answer[0].decode(), int(answer[1])
            why = f"{written(sentinel)} knows no {self._name}"
        raise redis.ConnectionError(f"no sentinel names a primary ({why or 'no time left'})")


_BOUNDED: dict[type, type] = {Connection: Tcp, SSLConnection: Tls}


def written(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


def taken_apart(url: str, port: int) -> tuple[str, list[Address], str, dict[str, str]]:
    """A url of several hosts: the same with the first host alone and nothing behind it, all hosts, path, query.

    Raises ConfigError.
    """
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    try:
        addresses = [_address(text, port) for text in hosts.split(",")]
    except ValueError:
        raise ConfigError(f"url: {_URL_FORM}; several hosts stand behind each other with commas") from None
    first, _, _ = hosts.partition(",")
    scheme = parts.scheme.partition("+")[0]
    return f"{scheme}://{user}{at}{first}", addresses, parts.path, dict(parse_qsl(parts.query))


def _address(text: str, port: int) -> Address:
    one = urlsplit(f"//{text}")
    if not one.hostname:
        raise ValueError(text)
    return one.hostname, one.port or port


def dialer_for(url: str, *, socket_timeout_s: float) -> Dialer:
    """The one for that kind of url. Raises ConfigError."""
    kind = url.partition("://")[0].partition("+")[2]
    if kind == "sentinel":
        return SentinelDialer(url, socket_timeout_s=socket_timeout_s)
    if kind == "cluster":
        from batchq.redis.cluster import ClusterDialer

        return ClusterDialer(url, socket_timeout_s=socket_timeout_s)
    return Dialer(url, socket_timeout_s=socket_timeout_s)
