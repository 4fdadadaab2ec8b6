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
#: The same in a rush, where every batch came whole: nobody is idle then, for whom what stands behind would be.
RUSH_SHORT_MS = 25.0
#: So many whole batches in a row are a rush.
RUSH = 16
#: A run that passes this is a surprise: what stands behind it is given back.
SURPRISE_MS = 100.0


@dataclass(slots=True)
class Pace:
    """The batch size of one queue: what the last batches ran in BATCH_MS, 1 to MOST, halved at once by a surprise; 1
    where they are not short, for what stands behind one of those is given back."""

    want: int = 1
    _per_job_ms: float = BATCH_MS
    #: Whole batches since it last had less than was wanted.
    _whole: int = 0

    @property
    def short_ms(self) -> float:
        """What is short now."""
        return RUSH_SHORT_MS if self._whole >= RUSH else SHORT_MS

    def ran(self, jobs: int, took_ms: float, *, surprise: bool = False) -> None:
        """Learns from a batch that ran whole or in part."""
        if jobs == 0:
            return
        self._per_job_ms = (self._per_job_ms + took_ms / jobs) / 2 if self.want > 1 else took_ms / jobs
        self._whole = self._whole + 1 if jobs >= self.want else 0
        target = max(1, min(MOST, int(BATCH_MS / max(self._per_job_ms, 0.001))))
        if surprise or took_ms > 2 * BATCH_MS:
            target = min(target, max(1, self.want // 2))
        self.want = target if self._per_job_ms < self.short_ms else 1

    def waited(self) -> None:
        """There was nothing to do: others may be idle as well."""
        self._whole = 0
        if self._per_job_ms >= SHORT_MS:
            self.want = 1


@dataclass(slots=True)
class Runtimes:
    """The recent run times of each handler: the greatest, forgotten by a tenth with each run."""

    _worst_ms: dict[str, float] = field(default_factory=dict)

    def ran(self, handler: str, took_ms: float) -> None:
        self._worst_ms[handler] = max(took_ms, self._worst_ms.get(handler, 0.0) * 0.9)

    def is_short(self, handler: str, limit_ms: float = SHORT_MS) -> bool:
        """Known to stay under that. An unknown handler counts as long."""
        return self._worst_ms.get(handler, limit_ms) < limit_ms


class Order:
    """Which queues are asked, in which order: by weight (stride scheduling, counted in jobs), or strictly as given.

    Each queue has a place on a line, and moves on by 1/weight with each job that comes from it; who is behind is asked
    first. So the jobs are shared by weight whatever the batches are. Whoever has nothing saves up nothing either.
    """

    def __init__(self, queues: Sequence[tuple[str, int]], *, strict: bool = False) -> None:
        self._names = [name for name, _ in queues]
        self._strict = strict or len(queues) == 1
        self._weights = dict(queues)
        self._places = dict.fromkeys(self._names, 0.0)
        #: Where the last one stood that had jobs.
        self._front = 0.0
        self._last = ""
        #: Had nothing since then.
        self._empty: set[str] = set()

    def next(self) -> list[str]:
        """The one whose turn it is; the others follow, should it have too little. At the same place the last one comes
        first: a change of queues is a call more."""
        if self._strict:
            return self._names
        return sorted(self._names, key=lambda name: (self._places[name], name != self._last))

    def drew(self, queue: str, jobs: int) -> None:
        """So many came from that queue when it was asked; fewer than none: they are given back."""
        if jobs == 0:
            self._empty.add(queue)
            return
        if jobs > 0:
            self._front = max(self._front, self._places[queue])
            self._last = queue
            for name in self._empty - {queue}:
                # It is asked again when as many would have been its own, not in each round: that is a call each time.
                self._places[name] = max(self._places[name], self._front + jobs / self._weights[name])
            self._empty.clear()
        self._places[queue] += jobs / self._weights[queue]
