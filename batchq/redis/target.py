"""What a url says of a Redis server: where it is, who asks, which database, and how to know that it is the right one.
Connects to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from urllib.parse import parse_qsl, unquote, urlsplit

from batchq.errors import ConfigError

Address = tuple[str, int]

URL_FORM = (
    "expected redis://[user:password@]host:port/db, "
    "with any /, ?, # or @ of the user and password percent-encoded (%2F for /)"
)
#: What may stand behind the `?` of a url under TLS.
TLS_OPTIONS = (
    *("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data", "ssl_certfile", "ssl_keyfile", "ssl_password"),
    *("ssl_cert_reqs", "ssl_check_hostname", "ssl_min_version", "ssl_ciphers"),
)
#: What other clients read there, and what batchq has settings of its own for.
_PASSED_OVER = (
    *("socket_timeout", "socket_connect_timeout", "socket_read_size", "socket_keepalive", "timeout", "protocol"),
    *("health_check_interval", "max_connections", "retry_on_timeout", "retry_on_error", "decode_responses"),
)


@dataclass(frozen=True, slots=True)
class Target:
    """One server."""

    host: str = "localhost"
    port: int = 6379
    #: Of a Unix socket, instead of host and port.
    path: str = ""
    username: str = ""
    password: str = ""
    db: int = 0
    #: What CLIENT LIST shows.
    name: str = ""
    #: TLS_OPTIONS that the url has; None: no TLS.
    tls: Mapping[str, str] | None = None

    @property
    def where(self) -> str:
        """Its address, without the password."""
        return self.path or written((self.host, self.port))


@cache
def read_url(url: str) -> Target:
    """The server of a redis://, rediss:// or unix:// url. Raises ConfigError, without the text of the url: there may be
    a part of the password in it."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        host, port = parts.hostname, parts.port
        username = unquote(parts.username or "") or options.pop("username", "")
        password = unquote(parts.password or "") or options.pop("password", "")
        path = unquote(parts.path)
        is_unix = parts.scheme == "unix"
        db = int(options.pop("db", "" if is_unix else path.strip("/")) or 0)
    except ValueError:
        raise ConfigError(f"url: {URL_FORM}") from None
    if "@" in url.partition("?")[0] and not is_unix and not username and not password:
        # An unescaped / or ? ends the host part early: the connection would go to localhost without a word.
        raise ConfigError(f"url: {URL_FORM}")
    if is_unix and not path.strip("/"):
        raise ConfigError("url: expected unix:///path/of.sock, found no path")
    name = options.pop("client_name", "")
    if not all("!" <= letter <= "~" for letter in name):
        raise ConfigError(f"url: expected a client_name of letters without spaces, found {name!r:.40}")
    tls = {key: options.pop(key) for key in TLS_OPTIONS if key in options}
    if tls and parts.scheme != "rediss":
        raise ConfigError(f"url: {min(tls)} is for TLS: write rediss:// before the host, or take it away")
    for key in _PASSED_OVER:
        options.pop(key, None)
    if options:
        known = ", ".join(("db", "username", "password", "client_name", *TLS_OPTIONS))
        raise ConfigError(f"url: expected options behind the ? that are known ({known}), found {min(options):.40}")
    return Target(
        host=unquote(host or "localhost"),
        port=port or 6379,
        path=path if is_unix else "",
        username=username,
        password=password,
        db=db,
        name=name,
        tls=tls if parts.scheme == "rediss" else None,
    )


def written(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def taken_apart(url: str, port: int) -> tuple[str, list[Address], str, dict[str, str]]:
    """A url of several hosts: the same with the first host alone and nothing behind it, all hosts, path, query.

    Raises ConfigError.
    """
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    try:
        addresses = [_address(text, port) for text in hosts.split(",")]
    except ValueError:
        raise ConfigError(f"url: {URL_FORM}; several hosts stand behind each other with commas") from None
    first, _, _ = hosts.partition(",")
    scheme = parts.scheme.partition("+")[0]
    return f"{scheme}://{user}{at}{first}", addresses, parts.path, dict(parse_qsl(parts.query))


def _address(text: str, port: int) -> Address:
    one = urlsplit(f"//{text}")
    if not one.hostname:
        raise ValueError(text)
    return one.hostname, one.port or port
