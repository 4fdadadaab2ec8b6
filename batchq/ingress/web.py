"""The web application of an ingress: POST /q/{queue}/{job} makes a job of an event, and says 202 when it is durable.

The job gets the raw body and the chosen headers: `body` (text, or base64 where it is no UTF-8, then with `base64=True`)
and `headers`. It has an id that is made of the sender's key, so that an event that is sent again is the same job.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from batchq import log
from batchq.app import App
from batchq.clock import SYSTEM
from batchq.errors import BatchqError, ConfigError, QueueFull, StoreUnavailable
from batchq.ingress.sources import Source, retry_after
from batchq.job import ID, check_queue
from batchq.jsons import orjson
from batchq.registry import check_name
from batchq.signatures import STYLES, BadSignature

#: When nothing durable is left, a sender is told to come back in so many seconds.
COME_BACK_S = 5


class Refused(Exception):
    """The request ends here."""

    def __init__(self, status: int, why: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(why)
        self.status, self.headers = status, headers


def _answer(status: int, headers: Mapping[str, str] | None = None, **told: Any) -> Response:
    return Response(orjson.dumps(told), status, headers, media_type="application/json")


class Ingress:
    """`sources` in the order in which they are asked: the first that fits a path decides."""

    def __init__(self, app: App, sources: Sequence[Source]) -> None:
        self._app = app
        self._sources = list(sources)

    async def receive(self, request: Request) -> Response:
        """POST /q/{queue}/{job}."""
        try:
            return await self._receive(request)
        except Refused as refused:
            return _answer(refused.status, refused.headers, error=str(refused))
        except ClientDisconnect:
            # Nothing was acknowledged; nobody reads this.
            return _answer(400, error="the request was cut off")

    async def _receive(self, request: Request) -> Response:
        queue, job = request.path_params["queue"], request.path_params["job"]
        source = next((one for one in self._sources if one.fits(queue, job)), None)
        if source is None:
            raise Refused(404, f"no source may send to {queue}/{job}"[:300])
        try:
            check_queue(queue)
            check_name(job)
        except ConfigError as error:
            raise Refused(404, str(error)) from None
        headers = {name.lower(): value for name, value in request.headers.items()}
        if source.tokens and not source.knows(headers.get("authorization", "")):
            raise Refused(401, "authorization: expected a bearer token of this source", {"WWW-Authenticate": "Bearer"})
        body = await _read(request, source.max_body)
        if source.signature:
            try:
                STYLES[source.signature](headers, body, source.secrets, SYSTEM.now_us() / 1e6)
            except BadSignature as error:
                raise Refused(401, str(error)) from None
        # Last: what strangers send must not use up what the source may.
        wait_s = source.bucket.take() if source.bucket is not None else 0.0
        if wait_s:
            raise Refused(429, "too many events from this source", {"Retry-After": retry_after(wait_s)})
        return await self._enqueue(source, queue, job, headers, body)

    async def _enqueue(self, source: Source, queue: str, job: str, headers: Mapping[str, str], body: bytes) -> Response:
        kwargs: dict[str, Any] = {"headers": {name: value for name, value in headers.items() if source.keeps(name)}}
        try:
            kwargs["body"] = body.decode()
        except UnicodeDecodeError:
            kwargs |= {"body": base64.b64encode(body).decode(), "base64": True}
        call = self._app.call(job).options(queue=queue, job_id=event_id(source, job, headers, body))
        try:
            ref = await call.aenqueue(**kwargs)
        except (StoreUnavailable, QueueFull) as error:
            log.event("warning", "refused", queue=queue, handler=job, source=source.name, error=str(error))
            raise Refused(503, "nothing durable can take it now", {"Retry-After": str(COME_BACK_S)}) from None
        except ConfigError as error:
            raise Refused(413, str(error)) from None
        except (TypeError, ValueError) as error:
            # The handler is known here, and takes no event.
            raise Refused(422, str(error)) from None
        except BatchqError as error:
            log.event("error", "refused", queue=queue, handler=job, source=source.name, error=str(error))
            raise Refused(503, "it could not be stored", {"Retry-After": str(COME_BACK_S)}) from None
        return _answer(202, id=ref.id, created=ref.created, spooled=ref.spooled)


async def _read(request: Request, most: int) -> bytes:
    """The body, as far as it is allowed to be long: what is longer is not read to its end."""
    told = request.headers.get("content-length", "0")
    if told.isdigit() and int(told) > most:
        raise Refused(413, f"body: at most {most} bytes, found {told}")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise Refused(413, f"body: at most {most} bytes, found more")
        parts.append(part)
    return b"".join(parts)


def event_id(source: Source, job: str, headers: Mapping[str, str], body: bytes) -> str | None:
    """The id of an event's job; None where the sender gives no key: each request is an event of its own."""
    key = headers.get("idempotency-key") or (headers.get(source.id_header) if source.id_header else None)
    if not key and source.signature == "stripe":
        key = _stripe_id(body)
    if not key:
        return None
    named = f"{job}:{source.name}:{key}"
    return named if ID.fullmatch(named) else f"e-{hashlib.sha256(named.encode()).hexdigest()}"


def _stripe_id(body: bytes) -> str | None:
    try:
        event = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    found = event.get("id") if isinstance(event, dict) else None
    return found if isinstance(found, str) else None


def make_web(app: App, sources: Sequence[Source]) -> Starlette:
    """An ASGI application: for `batchq ingress`, or to be mounted in one of yours."""
    ingress = Ingress(app, sources)

    async def health(request: Request) -> Response:
        return Response(b"ok\n", media_type="text/plain")

    return Starlette(
        routes=[
            Route("/q/{queue}/{job:path}", ingress.receive, methods=["POST"]),
            Route("/health", health, methods=["GET"]),
        ]
    )
