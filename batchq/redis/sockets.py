"""Sockets that are opened within the time they have, the look-up of their host's name included: the resolver knows no
limit, and a name may have many addresses. Knows no commands.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from batchq.clock import monotonic
from batchq.errors import ConfigError
from batchq.redis.target import Target

#: What getaddrinfo answers.
_Found = Sequence[tuple[int, int, int, str, Any]]


#: Where nobody gave a limit.
_MOST_S = 60.0


class _LookUp:
    """One question to the resolver, asked in a thread: it can't be told to stop."""

    def __init__(self, host: str, port: int) -> None:
        self.answered = threading.Event()
        self.found: _Found = ()
        self.error: OSError | None = None
        self._where = host, port
        threading.Thread(target=self._ask, name="batchq-resolver", daemon=True).start()

    def _ask(self) -> None:
        try:
            self.found = socket.getaddrinfo(*self._where, type=socket.SOCK_STREAM)
        except OSError as error:
            self.error = error
        except UnicodeError as error:
            self.error = OSError(f"no host is called {self._where[0]!r:.100} ({error})")
        finally:
            self.answered.set()
            _under_way.pop((os.getpid(), *self._where), None)


#: Who asks for the same name waits for the same answer: a resolver that hangs costs one thread a name, not one a try.
#: The threads of a parent are none of its child's.
_under_way: dict[tuple[int, str, int], _LookUp] = {}


def addresses(host: str, port: int, within_s: float) -> _Found:
    """What a host's name stands for. Raises OSError, also where the resolver does not answer in time."""
    # As bytes where that is the same: text is looked at by a codec that imports all of Unicode's data.
    name: str | bytes = host.encode() if host.isascii() else host
    with suppress(socket.gaierror, UnicodeError):
        return socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    key = os.getpid(), host, port
    look_up = _under_way.get(key)
    if look_up is None:
        look_up = _under_way[key] = _LookUp(host, port)
        if look_up.answered.is_set():
            # Race: it was quicker than the line above.
            _under_way.pop(key, None)
    if not look_up.answered.wait(within_s):
        raise OSError(f"the resolver gave no address of {host} within {within_s:.2g} s")
    if look_up.error is not None:
        raise look_up.error
    return look_up.found


def connected(target: Target, limit_s: float) -> socket.socket:
    """A socket to that server; all of it takes no longer than the limit. Raises OSError."""
    until = monotonic() + (limit_s or _MOST_S)
    if target.path:
        found: _Found = ((socket.AF_UNIX, socket.SOCK_STREAM, 0, "", target.path),)
    else:
        found = addresses(target.host, target.port, limit_s or _MOST_S)
    error = OSError(f"{target.host} has no address")
    for place, (family, kind, proto, _, address) in enumerate(found):
        left = until - monotonic()
        if left <= 0:
            break
        sock = socket.socket(family, kind, proto)
        try:
            # An address that swallows all leaves its share to those behind it.
            sock.settimeout(left / (len(found) - place))
            if family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.connect(address)
            return sock if target.tls is None else _under_tls(sock, target.host, target.tls)
        except OSError as failed:
            sock.close()
            error = failed
        except BaseException:
            # A signal's exception.
            sock.close()
            raise
    raise error


def _under_tls(sock: socket.socket, host: str, options: Mapping[str, str]) -> socket.socket:
    """Files are read anew for each connection: certificates are renewed. Raises OSError, ConfigError."""
    import ssl

    context = ssl.create_default_context()
    try:
        wanted = ssl.VerifyMode[f"CERT_{options.get('ssl_cert_reqs', 'required').upper()}"]
        checked = options.get("ssl_check_hostname", "true").lower() not in ("0", "f", "false", "n", "no")
        context.check_hostname = checked and wanted != ssl.CERT_NONE
        context.verify_mode = wanted
        if "ssl_min_version" in options:
            context.minimum_version = ssl.TLSVersion(int(options["ssl_min_version"]))
    except (KeyError, ValueError):
        raise ConfigError(
            "url: expected ssl_cert_reqs=none, optional or required, and a number of TLS for ssl_min_version"
        ) from None
    if "ssl_ciphers" in options:
        try:
            context.set_ciphers(options["ssl_ciphers"])
        except ssl.SSLError:
            raise ConfigError("url: expected names of ciphers as OpenSSL has them for ssl_ciphers") from None
    cert, key = options.get("ssl_certfile"), options.get("ssl_keyfile")
    if cert:
        with _named(f"ssl_certfile {cert}" + (f" with ssl_keyfile {key}" if key else "")):
            context.load_cert_chain(cert, key, options.get("ssl_password"))
    file, folder, data = (options.get(f"ssl_ca_{name}") for name in ("certs", "path", "data"))
    if file or folder or data:
        with _named(f"ssl_ca_certs {file}" if file else "ssl_ca_path or ssl_ca_data"):
            context.load_verify_locations(file, folder, data)
    return context.wrap_socket(sock, server_hostname=host)


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Says what could not be used. It may be there the next time: that is no wrong url."""
    try:
        yield
    except OSError as error:
        raise OSError(f"the url's {what} can't be used ({error.strerror or error})") from error
