"""The address of a server, read from a url before anything is sent."""

from __future__ import annotations

import pytest

from batchq.errors import ConfigError
from batchq.redis.dial import Dialer, dialer_for
from batchq.redis.target import read_url


@pytest.mark.parametrize(
    "url", ["redis://u:se/cret@db:1/0", "redis://u:se?cret@db/0", "redis://u:se#cret@db", "redis://db:port"]
)
def test_a_url_that_would_be_misread_is_refused_without_its_password(url: str) -> None:
    """An unescaped character ends the host part early: the connection would go to localhost without a word."""
    with pytest.raises(ConfigError, match="percent-encoded") as refused:
        Dialer(url, socket_timeout_s=1)
    assert "cret" not in str(refused.value)


def test_a_password_that_is_encoded_is_taken_as_it_is_meant() -> None:
    """Every character can be written."""
    dialer = Dialer("redis://us%40r:a%2Fb%23%25@db:1/0", socket_timeout_s=1)
    assert dialer.where == "db:1"
    assert (dialer.target.username, dialer.target.password) == ("us@r", "a/b#%")


def test_option_that_nobody_reads_is_named() -> None:
    """A slip in the name of a file with certificates must not pass for no certificates."""
    with pytest.raises(ConfigError, match=r"known \(.*ssl_ca_certs.*found ssl_ca_cert$"):
        read_url("rediss://db/0?ssl_ca_cert=/x")


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("unix://", "no path"),
        ("unix:///?db=1", "no path"),
        ("redis://db?client_name=a%20b", "client_name of .*'a b'"),
        ("redis://db?ssl_ca_certs=ca.pem", "ssl_ca_certs is for TLS: write rediss://"),
    ],
)
def test_url_that_names_nothing_to_use_is_refused(url: str, found: str) -> None:
    """A Unix socket without its path would be the server of this host; the other one fails each greeting."""
    with pytest.raises(ConfigError, match=found):
        read_url(url)


@pytest.mark.parametrize("kind", ["redis://[fe80::5]:7/0", "redis+sentinel://[fe80::5]:7/m"])
def test_address_of_ipv6_is_written_as_in_a_url(kind: str) -> None:
    """Host and port can be told apart; the loopback is one place, whatever it is called."""
    assert dialer_for(kind, socket_timeout_s=1).where.startswith("[fe80::5]:7")
    assert (
        Dialer("redis://[::1]:7", socket_timeout_s=1).place == Dialer("redis://127.0.0.1:7", socket_timeout_s=1).place
    )


def test_url_of_other_clients_is_read_the_same() -> None:
    """Options for which batchq has settings of its own are passed over; a database may stand in either place."""
    assert read_url("redis://db:1?db=3&socket_timeout=2&client_name=me&username=u&password=p").db == 3
    assert read_url("unix:///run/redis@host.sock").path == "/run/redis@host.sock"
    there = read_url("unix:///run/redis.sock?db=2")
    assert (there.where, there.db, there.tls) == ("/run/redis.sock", 2, None)
    assert read_url("rediss://db/4?ssl_cert_reqs=none").tls == {"ssl_cert_reqs": "none"}
