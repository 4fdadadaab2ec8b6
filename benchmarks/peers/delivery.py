"""One delivery, as a job of every system makes it: a POST by httpx, its connection kept. Imported where there is httpx.

Each client has one connection: the pool of a client with a hundred of them costs more CPU than all else. ValueError is
what every adapter tries again.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import httpx

#: Calls at once in each process.
PLACES = 100
#: Without TLS, whose context takes 30 ms to make.
_SETTINGS: dict[str, Any] = {"timeout": 60, "trust_env": False, "verify": False}

#: Those that nobody uses, by url.
_free: defaultdict[str, list[httpx.AsyncClient]] = defaultdict(list)
_plain: defaultdict[str, list[httpx.Client]] = defaultdict(list)


async def apost(job: dict[str, Any]) -> None:
    free = _free[job["url"]]
    client = free.pop() if free else httpx.AsyncClient(**_SETTINGS)
    try:
        (await client.post(job["url"], json={"n": job["number"]})).raise_for_status()
    except httpx.HTTPError as error:
        raise ValueError(str(error)) from error
    finally:
        free.append(client)


def post(job: dict[str, Any]) -> None:
    free = _plain[job["url"]]
    try:
        client = free.pop()
    except IndexError:
        # Another thread may have taken the last one.
        client = httpx.Client(**_SETTINGS)
    try:
        client.post(job["url"], json={"n": job["number"]}).raise_for_status()
    except httpx.HTTPError as error:
        raise ValueError(str(error)) from error
    finally:
        free.append(client)
