"""How many jobs a worker claims at a time, which handlers count as short, and which queue is asked next. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

#: What a batch should take.
BATCH_MS = 50.0
#: The most jobs of one batch.
MOST = 128
#: A handler whose recent runs stayed under this is short.
SHORT_MS = 10.0
#: A run that passes this is a surprise: what stands behind it is given back.
SURPRISE_MS = 100.0


@dataclass(slots=True)
class Pace:
    """The batch size of one queue: what the last batches ran in BATCH_MS, 1 to MOST, halved at once by a surprise; 1
    where they are not short, for what stands behind one of those is given back."""

    want: int = 1
    _per_job_ms: float = BATCH_MS

    def ran(self, jobs: int, took_ms: float, *, surprise: bool = False) -> None:
        """Learns from a batch that ran whole or in part."""
        if jobs == 0:
            return
        self._per_job_ms = (self._per_job_ms + took_ms / jobs) / 2 if self.want > 1 else took_ms / jobs
        target = max(1, min(MOST, int(BATCH_MS / max(self._per_job_ms, 0.001)))) if self._per_job_ms < SHORT_MS else 1
        if surprise or took_ms > 2 * BATCH_MS:
            target = min(target, max(1, self.want // 2))
        self.want = target


@dataclass(slots=True)
class Runtimes:
    """The recent run times of each handler: the greatest, forgotten by a tenth with each run."""

    _worst_ms: dict[str, float] = field(default_factory=dict)

    def ran(self, handler: str, took_ms: float) -> None:
        self._worst_ms[handler] = max(took_ms, self._worst_ms.get(handler, 0.0) * 0.9)

    def is_short(self, handler: str) -> bool:
        """Known to be short. An unknown handler counts as long."""
        return self._worst_ms.get(handler, SHORT_MS) < SHORT_MS


class Order:
    """Which queues are asked, in which order: smooth weighted round robin (nginx's), or strict order as given.

    Each answer begins with the queue whose turn it is; the others follow, should it have too little.
    """

    def __init__(self, queues: Sequence[tuple[str, int]], *, strict: bool = False) -> None:
        self._queues = list(queues)
        self._strict = strict or len(queues) == 1
        self._credit = dict.fromkeys((name for name, _ in queues), 0)
        self._names = [name for name, _ in queues]
        self._total = sum(weight for _, weight in queues)

    def next(self) -> list[str]:
        if self._strict:
            return self._names
        for name, weight in self._queues:
            self._credit[name] += weight
        turn = max(self._names, key=self._credit.__getitem__)
        self._credit[turn] -= self._total
        return [turn, *sorted((n for n in self._names if n != turn), key=self._credit.__getitem__, reverse=True)]
