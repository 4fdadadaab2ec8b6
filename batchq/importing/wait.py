"""The second stage: the jobs of the import's queues run, until none of them stands there any more.

What is counted are the queues, by their totals against what these were when the import began: jobs that others
enqueue there count as well, and are waited for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from batchq.errors import StoreDenied, StoreUnavailable
from batchq.importing.progress import Watch
from batchq.store import Store

#: Between two looks.
LOOK_S = 0.2
#: What can happen to a job for good.
ENDS = ("completed", "dead", "cancelled", "purged", "dropped")
STANDING = ("pending", "active", "delayed")


def wait(store: Store, baseline: Mapping[str, dict[str, int]], watch: Watch) -> dict[str, dict[str, int]]:
    """Watches the queues until nothing stands there; answers what has ended in each since the baseline. A store that
    is away is waited for."""
    told_away = told_idle = False
    while True:
        try:
            facts = {queue: _facts(store, queue, totals) for queue, totals in baseline.items()}
            if not told_idle and not store.masters():
                told_idle = True
                watch.say("batchq: no master is at work on this store; the jobs wait for one (batchq start)")
            told_away = False
        except StoreDenied:
            raise
        except StoreUnavailable as error:
            if not told_away:
                watch.say(f"batchq: {error}; waiting for it")
                told_away = True
            time.sleep(LOOK_S)
            continue
        watch.stage(facts)
        if not any(one["waiting"] for one in facts.values()):
            return facts
        time.sleep(LOOK_S)


def _facts(store: Store, queue: str, before: dict[str, int]) -> dict[str, int]:
    stats = store.stats(queue)
    facts = {name: stats.totals[name] - before.get(name, 0) for name in ENDS}
    facts["retried"] = stats.totals["retried"] - before.get("retried", 0)
    facts["settled"] = sum(facts[name] for name in ENDS)
    facts |= {name: stats.counts[name] for name in STANDING}
    facts["waiting"] = sum(facts[name] for name in STANDING)
    return facts
