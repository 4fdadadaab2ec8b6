"""What runs in the environment of the system measured: `python -m peers.child SYSTEM fleet|enqueue|work|versions ...`.

Prints one line of JSON. Standard library and the system's adapter only.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import importlib
import importlib.metadata
import inspect
import json
import random
import re
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from peers.job import payload

#: Jobs handed over at a time in bulk.
STEP = 1000


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """A job for each row of a CSV file with a header."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            yield {"kind": "noop", **row}


async def enqueue(producer: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Sends jobs for `--seconds`, at most `--jobs`; answers how many, and how long it took."""
    is_async = inspect.iscoroutinefunction(producer.one)
    rng = random.Random(1)
    rows = rows_of(args.file) if args.mode == "csv" else iter(())
    sent = 0

    async def one(delay_s: float | None = None, at_ns: int = 0) -> None:
        answer = producer.one(payload(sent, args.kind, at_ns), delay_s)
        if is_async:
            await answer

    began = time.perf_counter()
    until = began + args.seconds
    while sent < args.jobs and time.perf_counter() < until:
        match args.mode:
            case "many":
                step = [payload(number, args.kind) for number in range(sent, min(sent + STEP, args.jobs))]
                answer = producer.many(step)
                if is_async:
                    await answer
                sent += len(step)
            case "csv":
                step = list(islice(rows, STEP))
                answer = producer.many(step)
                if is_async:
                    await answer
                sent += len(step)
                if len(step) < STEP:
                    break
            case "paced":
                pause = rng.uniform(0.005, 0.02)
                await asyncio.sleep(pause) if is_async else time.sleep(pause)
                await one(at_ns=time.time_ns())
                sent += 1
            case "delayed":
                delay_s = rng.randint(200, 1200) / 1000
                await one(delay_s, time.time_ns() + int(delay_s * 1e9))
                sent += 1
            case _:
                await one()
                sent += 1
    return {"jobs": sent, "seconds": time.perf_counter() - began}


async def produce(adapter: Any, args: argparse.Namespace) -> dict[str, Any]:
    producer = adapter.Producer()
    for step in (producer.open, enqueue, producer.close):
        answer = step(producer, args) if step is enqueue else step()
        answer = await answer if inspect.isawaitable(answer) else answer
        if step is enqueue:
            told: dict[str, Any] = answer
    return told


def versions(adapter: Any) -> dict[str, str]:
    """Of the packages that the adapter asks for."""
    names = [re.split(r"[^A-Za-z0-9_-]", requirement)[0] for requirement in adapter.PACKAGES]
    return {name: importlib.metadata.version(name) for name in [*names, *getattr(adapter, "ALSO", ())]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("system")
    parser.add_argument("what", choices=("fleet", "enqueue", "work", "versions"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--mode", choices=("one", "many", "paced", "delayed", "csv"), default="one")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--kind", choices=("noop", "fail", "heavy", "deliver"), default="noop")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    adapter = importlib.import_module(f"peers.adapters.{args.system}")
    match args.what:
        case "fleet":
            print(json.dumps(adapter.fleet(args.workers)))
        case "work":
            adapter.work_for_ever()
        case "versions":
            print(json.dumps(versions(adapter)))
        case "enqueue":
            print(json.dumps(asyncio.run(produce(adapter, args))))


if __name__ == "__main__":
    main()
