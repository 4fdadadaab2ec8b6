"""Signatures: the published examples, and what must be refused."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from batchq.errors import ConfigError
from batchq.signatures import STYLES, BadSignature, sign_standard, standard_key, verify_standard

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NOW = 1_614_265_330.0


def headers_of(style: str, body: bytes, secret: str, now: int = int(NOW)) -> dict[str, str]:
    if style == "standard":
        return sign_standard("msg_1", now, body, [secret])
    if style == "github":
        return {"x-hub-signature-256": "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}
    mac = hmac.new(secret.encode(), b"%d.%b" % (now, body), hashlib.sha256).hexdigest()
    return {"stripe-signature": f"t={now},v1={'0' * 64},v1={mac},v0=zz"}


def test_published_example_of_standard_webhooks() -> None:
    """The specification's own secret, message and signature."""
    headers = sign_standard("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', [SECRET])
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_published_example_of_github() -> None:
    """GitHub's documentation: Hello, World! under It's a Secret to Everybody."""
    signature = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    headers = {"x-hub-signature-256": f"sha256={signature}"}
    STYLES["github"](headers, b"Hello, World!", ["It's a Secret to Everybody"], NOW)


@pytest.mark.parametrize("style", list(STYLES))
def test_right_ones_pass_and_wrong_ones_do_not(style: str) -> None:
    """Any of several secrets; no other body, secret, or missing header."""
    other = "whsec_" + "A" * 32
    headers = headers_of(style, b"body", SECRET)
    check = STYLES[style]
    check(headers, b"body", [other, SECRET], NOW)
    none: dict[str, str] = {}
    for bad_body, bad_secret, bad in ((b"Body", SECRET, headers), (b"body", other, headers), (b"body", SECRET, none)):
        with pytest.raises(BadSignature) as caught:
            check(bad, bad_body, [bad_secret], NOW)
        assert SECRET not in str(caught.value)
    for name in headers:
        for junk in ("", "v1", "sha256=", "t=1,v1=", "\N{SNOWMAN}", "v1,%%%"):
            with pytest.raises(BadSignature):
                check({**headers, name: junk}, b"body", [SECRET], NOW)


@pytest.mark.parametrize("style", ["standard", "stripe"])
@pytest.mark.parametrize("off", [-301, 301])
def test_old_event_is_refused(style: str, off: int) -> None:
    """Five minutes each way."""
    with pytest.raises(BadSignature, match="timestamp"):
        STYLES[style](headers_of(style, b"b", SECRET, int(NOW) + off), b"b", [SECRET], NOW)


def test_every_secret_signs() -> None:
    """A receiver that knows one of two takes it."""
    new = "whsec_" + "B" * 32
    for known in (SECRET, new):
        verify_standard(sign_standard("m", int(NOW), b"b", [new, SECRET]), b"b", [known], NOW)
    with pytest.raises(ConfigError, match="whsec_"):
        standard_key("no base64!")
