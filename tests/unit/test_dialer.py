"""The address of a server, read from a url before anything is sent."""

from __future__ import annotations

import pytest

from batchq.dial import Dialer
from batchq.errors import ConfigError


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
