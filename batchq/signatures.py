"""Signatures of webhooks: Standard Webhooks (made and checked), GitHub and Stripe (checked). HMAC-SHA256, all of them.

    standard   webhook-id, webhook-timestamp, webhook-signature: v1,<base64 of "id.timestamp.body">
    github     x-hub-signature-256: sha256=<hex of the body>
    stripe     stripe-signature: t=<timestamp>,v1=<hex of "timestamp.body">

Several secrets may be valid at once, so that they can be changed without a gap. Knows no HTTP library and no clock.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence

from batchq.errors import BatchqError, ConfigError

#: A timestamp further away is refused: an old event that somebody sends again.
TOLERANCE_S = 300

#: What secrets of Standard Webhooks begin with; the rest is base64.
_PREFIX = "whsec_"


class BadSignature(BatchqError):
    """What came is not signed by whom it should be, or not now. The message says what is wrong, and no secret."""


def standard_key(secret: str) -> bytes:
    """The key in a secret of Standard Webhooks: base64 behind whsec_. Raises ConfigError."""
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(
            "secret: expected whsec_ and base64, as Standard Webhooks has it, found something else; "
            "make one: python -c 'import base64, os; print(\"whsec_\" + base64.b64encode(os.urandom(24)).decode())'"
        ) from None


def sign_standard(message_id: str, timestamp_s: int, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """The headers of Standard Webhooks, with a signature a secret. Raises ConfigError."""
    signed = _standard(message_id, str(timestamp_s), body)
    signatures = [base64.b64encode(_mac(standard_key(secret), signed)).decode() for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(f"v1,{one}" for one in signatures),
    }


def _standard(message_id: str, timestamp: str, body: bytes) -> bytes:
    return b"%b.%b.%b" % (message_id.encode(), timestamp.encode(), body)


def _mac(key: bytes, signed: bytes) -> bytes:
    return hmac.new(key, signed, hashlib.sha256).digest()


def _among(found: Sequence[bytes], wanted: Sequence[bytes]) -> bool:
    """In constant time for each pair."""
    matches = [hmac.compare_digest(one, other) for one in found for other in wanted]
    return any(matches)


def _timely(text: str, now_s: float) -> None:
    if not (text.isascii() and text.isdigit() and len(text) < 13) or abs(int(text) - now_s) > TOLERANCE_S:
        raise BadSignature(f"timestamp: expected one within {TOLERANCE_S} s of now, found {text!r:.40}; send it again")


def _header(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name)
    if not value:
        raise BadSignature(f"{name}: expected this header, found none; sign the request")
    return value


def verify_standard(headers: Mapping[str, str], body: bytes, secrets: Sequence[str], now_s: float) -> None:
    """Raises BadSignature. `headers` by lower-case names."""
    message_id, timestamp = _header(headers, "webhook-id"), _header(headers, "webhook-timestamp")
    _timely(timestamp, now_s)
    parts = (part.partition(",") for part in _header(headers, "webhook-signature").split(" "))
    found = [_from_base64(value) for version, _, value in parts if version == "v1"]
    signed = _standard(message_id, timestamp, body)
    if not _among(found, [_mac(standard_key(secret), signed) for secret in secrets]):
        raise BadSignature("webhook-signature: none of them is made with a secret known here")


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def verify_github(headers: Mapping[str, str], body: bytes, secrets: Sequence[str], now_s: float) -> None:
    """Raises BadSignature."""
    kind, _, value = _header(headers, "x-hub-signature-256").partition("=")
    if kind != "sha256" or not _among([_from_hex(value)], [_mac(secret.encode(), body) for secret in secrets]):
        raise BadSignature("x-hub-signature-256: not made with a secret known here")


def verify_stripe(headers: Mapping[str, str], body: bytes, secrets: Sequence[str], now_s: float) -> None:
    """Raises BadSignature."""
    pairs = [part.strip().partition("=") for part in _header(headers, "stripe-signature").split(",")]
    timestamp = next((value for name, _, value in pairs if name == "t"), "")
    _timely(timestamp, now_s)
    found = [_from_hex(value) for name, _, value in pairs if name == "v1"]
    signed = b"%b.%b" % (timestamp.encode(), body)
    if not _among(found, [_mac(secret.encode(), signed) for secret in secrets]):
        raise BadSignature("stripe-signature: none of them is made with a secret known here")


Verify = Callable[[Mapping[str, str], bytes, Sequence[str], float], None]

#: By the word that names the style.
STYLES: dict[str, Verify] = {"standard": verify_standard, "github": verify_github, "stripe": verify_stripe}
