"""Reads the url of a Redis server and opens connections to it. Decides nothing about when that is tried again.

redis://, rediss:// (TLS) and unix:// name one server; redis+sentinel:// asks sentinels which one is the primary, each
time that a connection is opened; redis+cluster:// is in `cluster`.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlencode

from batchq.clock import monotonic
from batchq.errors import ConfigError
from batchq.redis.link import Link
from batchq.redis.replies import text_of
from batchq.redis.target import Address, Target, read_url, taken_apart, written
from batchq.redis.wire import Broken, ErrorReply, TimedOut, Wire, opened

_SENTINEL_FORM = "expected redis+sentinel://[user:password@]host:port,host:port/NAME[/db]"
#: The longest that one of several sentinels or nodes may be silent before the next is asked.
ASK_S = 0.5
#: Names of one place.
_LOOPBACK = ("127.0.0.1", "[::1]", "localhost")


class Dialer:
    """Makes connections to one server. `where` is its address without the password."""

    scheme = "redis"
    #: Keys are in slots, and slots on nodes.
    is_cluster = False

    def __init__(self, url: str, *, socket_timeout_s: float) -> None:
        self.target: Target = read_url(url)
        self.socket_timeout_s = socket_timeout_s
        self.where = self.target.where

    @property
    def db(self) -> int:
        return self.target.db

    @property
    def place(self) -> str:
        """What tells this server from others, by whatever name of the loopback it is called."""
        host, colon, port = self.where.rpartition(":")
        return f"localhost{colon}{port}" if host in _LOOPBACK else self.where

    def link(self) -> Link:
        return Link(self)

    def open(self, limit_s: float) -> Wire:
        """A connection, opened within that time. Raises Broken, OSError, ErrorReply."""
        return opened(self.target, limit_s)


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
        self._to_sentinel = replace(
            self.target, db=0, username=mine.get("username", ""), password=mine.get("password", "")
        )
        self.where = f"{','.join(map(written, sorted(hosts)))}/{name}"

    @property
    def place(self) -> str:
        return self.where

    def open(self, limit_s: float) -> Wire:
        until = monotonic() + limit_s
        host, port = self._primary(until)
        wire = opened(replace(self.target, host=host, port=port), max(0.01, until - monotonic()))
        try:
            # The sentinels may not know yet that it is none any more.
            role = wire.ask("ROLE")
            if not isinstance(role, ErrorReply) and role[0] != b"master":
                raise Broken(
                    f"{written((host, port))} is no primary ({role[0].decode()}); the sentinels will know soon"
                )
            if isinstance(role, ErrorReply) and role.code != "NOPERM":
                raise role
            wire.limit(limit_s)
        except BaseException:
            wire.close()
            raise
        return wire

    def _primary(self, until: float) -> Address:
        why = ""
        for sentinel in list(self._sentinels):
            left = until - monotonic()
            if left <= 0:
                break
            try:
                answer = self._ask_sentinel(sentinel, min(ASK_S, left))
            except (Broken, ErrorReply, OSError) as error:
                why = f"{written(sentinel)}: {text_of(error)}"
                continue
            if answer is not None:
                self._sentinels.remove(sentinel)
                self._sentinels.insert(0, sentinel)
                return answer
            why = f"{written(sentinel)} knows no {self._name}"
        fault = TimedOut if monotonic() >= until else Broken
        raise fault(f"no sentinel names a primary ({why or 'no time left'})")

    def _ask_sentinel(self, sentinel: Address, limit_s: float) -> Address | None:
        """Where it says that the primary is; None: it knows none of that name."""
        wire = opened(replace(self._to_sentinel, host=sentinel[0], port=sentinel[1]), limit_s)
        try:
            answer = wire.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)
        finally:
            wire.close()
        if isinstance(answer, ErrorReply):
            raise answer
        return (answer[0].decode(), int(answer[1])) if answer else None


def dialer_for(url: str, *, socket_timeout_s: float) -> Dialer:
    """The one for that kind of url. Raises ConfigError."""
    kind = url.partition("://")[0].partition("+")[2]
    if kind == "sentinel":
        return SentinelDialer(url, socket_timeout_s=socket_timeout_s)
    if kind == "cluster":
        from batchq.redis.cluster import ClusterDialer

        return ClusterDialer(url, socket_timeout_s=socket_timeout_s)
    return Dialer(url, socket_timeout_s=socket_timeout_s)
