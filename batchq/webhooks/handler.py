"""The handler `deliver`: one POST, signed as Standard Webhooks has it; what each answer means for the job.

    2xx                      delivered
    408, 425, 429, 5xx       a failed attempt, retried by the backoff, or after the time that Retry-After names
    any other 4xx, any 3xx   dead: no retry can mend it
    no answer                a failed attempt
    a private address        dead

The job's id is the message's id and the idempotency key: every attempt of a job carries the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypedDict

import httpcore
import httpx

from batchq import __version__
from batchq.app import App
from batchq.backoff import BackoffLike
from batchq.clock import SYSTEM
from batchq.context import current_job
from batchq.errors import BatchqError, Dead, Retry
from batchq.flow import Breaker
from batchq.handler import AsyncHandler
from batchq.jsons import orjson
from batchq.registry import Duration, check_duration
from batchq.signatures import sign_standard, standard_key
from batchq.webhooks.client import Clients, GuardedTransport
from batchq.webhooks.guard import Blocked, GuardedBackend, check_url, host_of, networks

#: Answers among the 4xx that a later try may mend.
AGAIN = frozenset((408, 425, 429))
#: Of an answer so much is read, and so much of it is kept.
READ_MOST, KEEP_MOST = 1 << 16, 500
#: Deliveries to one host at once, over all workers.
PER_HOST = 20
#: A connection has to stand within this.
CONNECT_S = 5.0

#: Headers that are the delivery's own.
_OWN = frozenset(("host", "content-length", "transfer-encoding", "connection", "webhook-id", "webhook-timestamp"))


_NO_ANSWER = (httpx.TransportError, httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError)


class DeliveryFailed(BatchqError):
    """The other side did not take it, or did not answer. The attempt failed; a retry follows."""


class Delivered(TypedDict):
    """What the handler answers: kept with the job where results are."""

    status: int
    #: The beginning of the answer.
    excerpt: str


Deliver = AsyncHandler[..., Delivered]


def register(
    app: App,
    *,
    secrets: Sequence[str] | Callable[[str], Sequence[str]] = (),
    name: str = "deliver",
    queue: str = "webhooks",
    max_attempts: int = 8,
    backoff: BackoffLike | None = None,
    timeout: Duration = 15,
    result: bool | Duration = False,
    private: bool = False,
    allow: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    limit: int | None = PER_HOST,
    rate: str | None = None,
    breaker: Breaker | None = Breaker(),  # noqa: B008 - a frozen value
    **options: Any,
) -> Deliver:
    """Registers the handler, and answers it: `deliver.enqueue(url, body, headers=...)`.

    `secrets`: of Standard Webhooks (whsec_...), or a function from the url to them; the first is the current one, all
    of them sign. `timeout` is for the whole delivery; the handler's own time limit is 5 s above it. `private` lets
    deliveries reach any address, `allow` those of some networks. `headers` go with each. `limit`, `rate` and `breaker`
    are for each host: a slow one takes no more than its places, a dead one burns nobody's attempts. Further options
    are those of `app.job`. `body` is sent as JSON, or as it is where it is a str. Raises ConfigError.
    """
    timeout_s = check_duration(timeout, "timeout") / 1000
    if not callable(secrets):
        for secret in secrets:
            standard_key(secret)
    clients = Clients(GuardedBackend(private=private, allow=networks(allow)))
    common = dict(headers or {})

    async def deliver(url: str, body: Any, *, headers: Mapping[str, str] | None = None) -> Delivered:
        """Posts the body to the url."""
        try:
            check_url(url)
            content, kind = (body.encode(), "text/plain") if isinstance(body, str) else (orjson.dumps(body), "json")
            mine = _headers(content, kind, secrets(url) if callable(secrets) else secrets)
            given = {key.lower(): value for key, value in {**common, **(headers or {})}.items()}
            sent = {**{key: value for key, value in given.items() if key not in _OWN}, **mine}
            sent["content-type"] = given.get("content-type", mine["content-type"])
            async with asyncio.timeout(timeout_s):
                return await _post(clients.get(), url, content, sent, timeout_s)
        except Blocked as error:
            raise Dead(str(error)) from None
        except TimeoutError:
            raise DeliveryFailed(f"no answer within {timeout_s:g} s") from None
        except _NO_ANSWER as error:
            raise DeliveryFailed(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from None
        except httpx.InvalidURL as error:
            raise Dead(f"url: {error}") from None

    registered: Deliver = app.job(
        name=name,
        queue=queue,
        max_attempts=max_attempts,
        backoff=backoff,
        timeout=timeout_s + 5,
        result=result,
        limit=limit,
        rate=rate,
        key=host_of if limit is not None or rate is not None or breaker is not None else None,
        breaker=breaker,
        **options,
    )(deliver)
    return registered


def _headers(content: bytes, kind: str, secrets: Sequence[str]) -> dict[str, str]:
    job = current_job()
    now_s = SYSTEM.now_us() // 1_000_000
    signed = sign_standard(job.id, now_s, content, secrets) if secrets else {"webhook-id": job.id}
    content_type = "application/json" if kind == "json" else f"{kind}; charset=utf-8"
    return {
        "content-type": content_type,
        "accept-encoding": "identity",
        "user-agent": f"batchq/{__version__}",
        "idempotency-key": job.id,
        **signed,
    }


async def _post(
    transport: GuardedTransport, url: str, content: bytes, headers: Mapping[str, str], timeout_s: float
) -> Delivered:
    timeout = httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s))
    request = httpx.Request("POST", url, content=content, headers=headers, extensions={"timeout": timeout.as_dict()})
    answer = await transport.handle_async_request(request)
    try:
        excerpt = await _excerpt(answer)
        status = answer.status_code
        if 200 <= status < 300:
            return Delivered(status=status, excerpt=excerpt)
        text = f"{status} {answer.reason_phrase}: {excerpt}" if excerpt else f"{status} {answer.reason_phrase}"
        if 300 <= status < 400:
            raise Dead(f"redirects are not followed: {text} (to {answer.headers.get('location', 'nowhere')[:200]})")
        if 400 <= status < 500 and status not in AGAIN:
            raise Dead(text)
        after = retry_after_s(answer.headers.get("retry-after"), datetime.now(UTC))
        if after is not None:
            raise Retry(text, after=after)
        raise DeliveryFailed(text)
    finally:
        await answer.aclose()


async def _excerpt(answer: httpx.Response) -> str:
    """The beginning of the answer. A short one is read to its end, so that its connection can be used again.

    As it came: what is packed although that was not asked for may be broken, or unpack to far more than is wanted."""
    read = b""
    async for part in answer.aiter_raw():
        read += part
        if len(read) > READ_MOST:
            break
    return read[: 4 * KEEP_MOST].decode(errors="replace")[:KEEP_MOST]


def retry_after_s(text: str | None, now: datetime) -> float | None:
    """What a Retry-After header says, in seconds from now: a number, or a date. None where it says nothing."""
    if not text:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, ((at if at.tzinfo else at.replace(tzinfo=UTC)) - now).total_seconds())
