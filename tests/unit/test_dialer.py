"""The address of a server, read from a url before anything is sent."""

from __future__ import annotations

import importlib.metadata
from typing import NoReturn

import pytest

from batchq import __version__
from batchq.errors import ConfigError
from batchq.redis.dial import Dialer


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
    connection = dialer.dial()
    assert (connection.username, connection.password) == ("us@r", "a/b#%")


def test_connection_is_named_without_a_look_at_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """redis-py would read its own package's metadata for each connection: a worker's start would wait for that."""

    def read_from_disk(*args: object) -> NoReturn:
        raise AssertionError("the metadata of a package is read")

    dialer = Dialer("redis://127.0.0.1:1/0", socket_timeout_s=1.0)
    monkeypatch.setattr(importlib.metadata, "version", read_from_disk)
    made = dialer.dial()
    assert getattr(made, "driver_info", made).lib_version == __version__
