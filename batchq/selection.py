"""Which jobs are meant: by handler, error, host, age, fire-time, or by the group that `batchq dead` names. Pure.

Groups put together what failed alike: the same handler and queue, the same kind of error, and the same words but for
numbers and ids. The id of a group is made of these, so that it stays the same from one look to the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from batchq.digest import sha256
from batchq.job import Job
from batchq.lifecycle import State

#: Characters of an error's first line that tell groups apart.
SHAPE_MAX = 160

# Ids before numbers: what holds digits and letters is one thing.
_VARIES = re.compile(
    r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|\b(?=\w*\d)\w{16,}\b|\d+(?:[.:,]\d+)*"
)


def host_of(worker: str) -> str:
    """The host in a worker's id: host.boot.pid.random."""
    return worker.rsplit(".", 3)[0] if worker.count(".") >= 3 else worker


def shape(text: str) -> str:
    """The first line of an error, with # for what differs from one job to the next: numbers, addresses, ids."""
    return _VARIES.sub("#", text.strip().partition("\n")[0])[:SHAPE_MAX]


class Failure(NamedTuple):
    """What a job failed of last."""

    kind: str
    text: str
    host: str
    at_ms: int

    @property
    def shown(self) -> str:
        return f"{self.kind}: {self.text}" if self.text and self.text != self.kind else self.kind


def failure_of(job: Job) -> Failure | None:
    """The newest error of a job; None where it has none."""
    if not job.errors:
        return None
    entry = job.errors[0]
    at = entry.get("at_ms")
    host = host_of(str(entry.get("worker", "")))
    text = str(entry.get("error", ""))
    return Failure(str(entry.get("kind", "Error")), text, host, at if isinstance(at, int) else 0)


def group_of(job: Job) -> str:
    """The id of the group that the job's last failure belongs to: eight characters."""
    found = failure_of(job)
    words = (job.queue, job.job, found.kind, shape(found.text)) if found else (job.queue, job.job, job.reason)
    return sha256("\0".join(words).encode("utf-8", "backslashreplace")).hexdigest()[:8]


def age_from(job: Job) -> int:
    """From when the age of a job counts: the dead from their death, others from their enqueue."""
    return job.since_ms if job.state is State.DEAD else job.enqueued_ms


@dataclass(frozen=True, slots=True)
class Selection:
    """What a job must be like to be meant; None and "" ask for nothing."""

    #: The handler's name.
    job: str | None = None
    #: Stands, in whatever case, in the last error or its kind.
    error: str | None = None
    #: Where it failed last, or runs.
    host: str | None = None
    #: Of `group_of`.
    group: str | None = None
    #: Died, failed or else was enqueued at most so long ago.
    since_ms: int | None = None
    #: Died, or else was enqueued, at least so long ago.
    older_than_ms: int | None = None
    #: Delayed, and due within so long.
    due_ms: int | None = None
    #: In that batch.
    batch: str | None = None

    def __bool__(self) -> bool:
        return self != Selection()

    @property
    def needs_clock(self) -> bool:
        return (self.since_ms, self.older_than_ms, self.due_ms) != (None, None, None)

    def wants(self, job: Job, now_ms: int) -> bool:
        """Whether that job is meant, at this time of the store's."""
        if self.job not in (None, job.job) or self.batch not in (None, job.batch):
            return False
        if self.older_than_ms is not None and age_from(job) > now_ms - self.older_than_ms:
            return False
        if self.due_ms is not None and not (job.state is State.DELAYED and job.since_ms <= now_ms + self.due_ms):
            return False
        if (self.error, self.host, self.group, self.since_ms) == (None, None, None, None):
            return True
        return self._wants_failure(job, failure_of(job), now_ms)

    def _wants_failure(self, job: Job, found: Failure | None, now_ms: int) -> bool:
        if self.since_ms is not None:
            last = age_from(job) if job.state is State.DEAD or found is None else found.at_ms
            if last < now_ms - self.since_ms:
                return False
        if self.error is not None and (found is None or self.error.lower() not in found.shown.lower()):
            return False
        if self.host is not None and self.host not in (found.host if found else "", host_of(job.worker)):
            return False
        return self.group is None or ((found is not None or job.reason != "") and group_of(job) == self.group)

    def is_past(self, job: Job, now_ms: int) -> bool:
        """No job behind this one in its list can be meant: the delayed stand by their fire-times."""
        return self.due_ms is not None and job.state is State.DELAYED and job.since_ms > now_ms + self.due_ms

    def __str__(self) -> str:
        """As it goes on behind `jobs`: " of deliver with error 'timeout'"."""
        from batchq.kinds import show_duration

        said = {
            "of": self.job,
            "of batch": self.batch,
            "of group": self.group,
            "with error": repr(self.error) if self.error is not None else None,
            "of host": self.host,
            "since": None if self.since_ms is None else f"{show_duration(self.since_ms)} ago",
            "older than": None if self.older_than_ms is None else show_duration(self.older_than_ms),
            "due within": None if self.due_ms is None else show_duration(self.due_ms),
        }
        return "".join(f" {words} {value}" for words, value in said.items() if value is not None)


#: What the failures can be put together by.
BY = ("error", "job", "queue", "host")


@dataclass(slots=True)
class Group:
    """Jobs that failed alike. `id` is of use with `--group` where they are grouped by error."""

    id: str
    job: str
    queue: str
    host: str
    #: The kind of the error, and the text that the newest of them has.
    kind: str
    error: str
    count: int = 0
    #: How many of them are dead; the others will be tried again.
    dead: int = 0
    first_ms: int = 0
    last_ms: int = 0
    hosts: set[str] = field(default_factory=set)

    @property
    def shown(self) -> str:
        """The newest error in a line."""
        return Failure(self.kind, self.error, "", 0).shown

    def add(self, job: Job, found: Failure) -> None:
        at = found.at_ms or job.since_ms
        self.count += 1
        self.dead += job.state is State.DEAD
        self.first_ms = min(self.first_ms or at, at)
        if at >= self.last_ms:
            self.last_ms, self.kind, self.error = at, found.kind, found.text
        if found.host:
            self.hosts.add(found.host)

    def as_dict(self) -> dict[str, Any]:
        """As one JSON object; keys are stable."""
        names = ("id", "job", "queue", "host", "kind", "error", "count", "dead", "first_ms", "last_ms")
        return {name: getattr(self, name) for name in names} | {"hosts": sorted(self.hosts)}


def group(jobs: Iterable[Job], by: str = "error") -> list[Group]:
    """The failures among these jobs, put together, the greatest group first. Reads each job once and keeps none."""
    found: dict[str, Group] = {}
    for job, failure in _failed(jobs):
        key = {"error": "", "job": job.job, "queue": job.queue, "host": failure.host}[by] or group_of(job)
        one = found.get(key)
        if one is None:
            # What a group has in common; the rest differs within it.
            known = (job.job, job.queue, failure.host)
            said = [value if by in (name, "error") else "" for name, value in zip(BY[1:], known, strict=True)]
            host = failure.host if by == "host" else ""
            one = found[key] = Group(key if by == "error" else "", said[0], said[1], host, failure.kind, failure.text)
        one.add(job, failure)
    return sorted(found.values(), key=lambda one: (-one.count, -one.last_ms))


def _failed(jobs: Iterable[Job]) -> Iterator[tuple[Job, Failure]]:
    for job in jobs:
        found = failure_of(job)
        if found is not None:
            yield job, found
        elif job.state is State.DEAD:
            yield job, Failure(job.reason or "unknown", "", "", job.since_ms)
