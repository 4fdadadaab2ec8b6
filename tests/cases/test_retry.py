"""Failed attempts: how often, how far apart, by whose wish, and what an explicit zero means."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from batchq.backoff import exponential, full_jitter
from batchq.config import load
from batchq.errors import ConfigError
from batchq.lifecycle import State
from tests.cases.helpers import all_jobs, app_on, call, gaps_s, key, server_of, stays
from tests.process.rig import Rig
from tests.servers import Server

APP = """
import ctypes

LIMIT = dict(max_attempts=3, backoff=fixed(0.05))


def failing(kind):
    if kind == "raises":
        raise ValueError("no")
    if kind == "times out":
        time.sleep(30)
    if kind == "exits":
        os._exit(1)
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "base":
        raise KeyboardInterrupt
    if kind == "unstorable":
        return {1, 2}
    if kind == "leaves":
        sys.exit("bye")


@app.job(result=True, timeout=1, batch_claim=False, **LIMIT)
def mixed(kinds):
    note("S")
    return failing(kinds[min(current_job().attempt, len(kinds)) - 1])


@app.job(max_attempts=2, backoff=exponential(0.5, jitter=0.2))
def spread():
    note("S")
    if current_job().attempt == 1:
        raise ValueError("first")
    note("E")


@app.job(max_attempts=2, backoff=exponential(100, cap=20, jitter=0.5))
def capped():
    raise ValueError("no")


@app.job(max_attempts=3, backoff=fixed(0.05))
def asks(after, times):
    note("S")
    if len(open(os.environ["LEDGER"]).read().split(current_job().id)) - 1 <= times:
        raise Snooze(float(after))
    note("E")


@app.job(max_attempts=3, backoff=fixed(0.05))
def stands(gate):
    note("S")
    while not os.path.exists(gate):
        time.sleep(0.01)
    note("E")


@app.job(backoff=exponential(1.0, cap=20))
def often():
    raise ValueError("no")


@app.job
def work():
    note("S")
    note("E")
"""

KINDS = ("raises", "times out", "exits", "killed", "base", "unstorable", "leaves")


def test_every_way_to_fail_spends_one_attempt(rig: Rig) -> None:
    """Seven jobs, each with another mix of failures: started three times each, and dead with the last reason."""
    rig.app(APP)
    mixes = [[KINDS[(first + step) % len(KINDS)] for step in range(3)] for first in range(len(KINDS))]
    jobs = {rig.enqueue("mixed", kinds): kinds for kinds in mixes}
    pool = rig.start("--grace", "500ms", n=3, ready=False)
    rig.until_counts(dead=len(jobs), within=60)
    for job, kinds in jobs.items():
        assert [entry.attempt for entry in rig.ledger.starts(job)] == [1, 2, 3], kinds
        dead = rig.job(job)
        reason = {"times out": "timed_out", "exits": "crashed", "killed": "crashed"}.get(kinds[-1], "max_attempts")
        assert (dead.reason, dead.attempt) == (reason, 3), kinds
    assert pool.stop() == 0


def test_planned_stops_spend_no_attempt(rig: Rig) -> None:
    """Two stops in the middle of a job, and a worker that is told to go: the attempt stays the first."""
    rig.app(APP)
    job = rig.enqueue("stands", "gate")
    for turn in range(2):
        pool = rig.start("--shutdown-timeout", "100ms", "--grace", "100ms")
        rig.until_started(job, turn + 1)
        assert pool.stop() == 0
    pool = rig.start()
    worker = rig.until_started(job, 3)
    os.kill(worker, signal.SIGTERM)
    (rig.folder / "gate").touch()
    rig.until_counts(done=1)
    rig.until(lambda: pool.workers() not in ([], [worker]), "another has taken its place")
    assert pool.stop() == 0
    assert {entry.attempt for entry in rig.ledger.entries(job=job)} == {1}
    stats = rig.stats()
    assert (stats.totals["completed"], stats.totals["retried"], stats.totals["crashed"]) == (1, 0, 0)


def test_first_retry_is_never_before_its_interval(rig: Rig) -> None:
    """Half a second with a fifth of jitter: no gap below 0.4 s, and not all the same."""
    rig.app(APP)
    ids = rig.enqueue_many("spread", [()] * 150)
    rig.start(n=2)
    rig.until_counts(done=len(ids), within=20)
    waited = [gaps_s(rig.ledger.starts(job))[0] for job in ids]
    assert min(waited) >= 0.4
    assert statistics.stdev(waited) > 0.02
    for attempt in (1, 2, 5, 30):
        policy = exponential(1.0, cap=60, jitter=0.2)
        low, high = policy.range_ms(attempt)
        drawn = [policy.delay_ms(attempt) for _ in range(10_000)]
        assert low <= min(drawn) <= max(drawn) <= high
        assert abs(statistics.mean(drawn) - (low + high) / 2) < 0.01 * high


def test_capped_delays_are_spread(rig: Rig) -> None:
    """A herd that fails at the cap comes back over the whole width of the jitter."""
    rig.app(APP)
    ids = rig.enqueue_many("capped", [()] * 400)
    rig.start(n=2)
    rig.until_counts(delayed=len(ids), within=20)
    due = [job.since_ms for job in all_jobs(rig, State.DELAYED)]
    assert statistics.stdev(due) >= 0.1 * 20_000
    assert max(Counter(at // 500 for at in due).values()) <= 0.1 * len(due)


@pytest.mark.parametrize("base", [0, 0.1, 1, 10, 1e6])
def test_no_attempt_number_breaks_a_policy(base: float) -> None:
    """Up to five thousand tries, whatever the base: finite, within the cap and its jitter; nothing times 2^n is 0."""
    for policy in (
        exponential(base, cap=300, jitter=0.2),
        exponential(base, cap=300),
        full_jitter(exponential(base, cap=300)),
    ):
        for attempt in range(1, 5001):
            delay = policy.delay_ms(attempt)
            assert 0 <= delay <= 300_000 * 1.2
            assert base or delay == 0


def test_jobs_that_failed_a_thousand_times_wait_their_cap(redis_rig: Rig) -> None:
    """The power is not computed before it is cut: the next attempt is due within cap and jitter, and none is lost."""
    rig = redis_rig
    rig.app(APP)
    jobs = {rig.enqueue("often", max_attempts=10**7): failed for failed in (1022, 1023, 1024, 1025, 3999, 10**6)}
    server_of(rig).hset(key(rig, "attempts"), mapping=jobs)
    rig.start()
    rig.until_counts(delayed=len(jobs), retried=len(jobs))
    now = rig.store.now_ms()
    for job, failed in jobs.items():
        assert rig.job(job).attempts == failed + 1
        assert now + 20_000 * 0.8 - 10_000 < rig.job(job).since_ms <= now + 20_000 * 1.2


PATIENT = """
import sys
from batchq.redis.connect import Links
from batchq.redis.store import RedisStore

waits = []


def sleep(self, seconds):
    waits.append(seconds)
    if len(waits) == 3000:
        print("tried", max(waits), min(waits), flush=True)
    if len(waits) > 3000:
        time.sleep(0.01)


import time
Links._sleep = sleep
print("back", RedisStore(sys.argv[1], prefix="x", patience_s=None).now_ms())
"""


def test_no_number_of_tries_breaks_the_reconnecting(serve: Callable[..., Server], tmp_path: Path) -> None:
    """Three thousand tries at a server that is away: each wait is finite and short, and it is there when it is back."""
    server = serve()
    server.kill()
    command = [sys.executable, "-c", PATIENT, server.url]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    tried, most, least = process.stdout.readline().split()
    assert (tried, 0 <= float(least) <= float(most) <= 2.0) == ("tried", True)
    server.start()
    assert process.communicate(timeout=30)[0].startswith("back ")
    assert process.returncode == 0


@pytest.mark.parametrize("after", [0.0, -1.0, 0.2])
def test_a_handler_that_asks_for_time_spends_no_budget_and_does_not_spin(rig: Rig, after: float) -> None:
    """Ten wishes in a row, more than it has attempts, at least 0.1 s apart; then it is done as the first attempt."""
    rig.app(APP)
    job = rig.enqueue("asks", str(after), 10)
    rig.start()
    rig.until_counts(done=1)
    starts = rig.ledger.starts(job)
    assert [entry.attempt for entry in starts] == [1] * 11
    assert min(gaps_s(starts)) >= max(0.1, after)


@pytest.mark.parametrize("after", ["nan", "inf", "-inf", "1e300", "315360000"])
def test_a_wish_that_is_no_time_is_a_failure_or_the_end_of_time(rig: Rig, after: str) -> None:
    """What is no finite number fails that attempt; ten years and more are cut to the last time that can be stored."""
    rig.app(APP)
    job = rig.enqueue("asks", after, 1)
    rig.start()
    if after in ("nan", "inf", "-inf"):
        rig.until_counts(done=1)
        assert [entry.attempt for entry in rig.ledger.starts(job)] == [1, 2]
    else:
        rig.until_counts(delayed=1)
        assert rig.job(job).since_ms <= 2**41 - 1
        stays(lambda: len(rig.ledger.starts(job)) == 1, "it waits", 0.3)


#: Setting -> what zero does: None is refused, anything else is what the settings then hold.
ZEROS: dict[str, object] = {
    "lease": None,
    "grace": 0,
    "timeout": None,
    "max_attempts": None,
    "max_crashes": None,
    "max_lost": None,
    "result_keep": None,
    "result_max": None,
    "dead_keep": None,
    "dead_limit": 0,
    "max_payload": None,
    "enqueue_timeout": None,
    "socket_timeout": None,
    "mark_ttl": None,
    "remember": 0,
    "shutdown_timeout": 0,
    "unknown_grace": 0,
    "sweep": None,
    "processes": None,
    "max_jobs": None,
    "max_rss": None,
    "max_rss_hard": None,
    "watchdog": 0,
}


@pytest.mark.parametrize("source", ["flag", "code", "environment"])
@pytest.mark.parametrize("setting", ZEROS)
def test_a_zero_is_a_zero_or_refused(setting: str, source: str) -> None:
    """No setting takes an explicit zero for `not given`, wherever it is written."""

    def read() -> object:
        given: dict[str, object] = {setting: 0 if source == "code" else "0"}
        if source == "environment":
            return load(environ={f"BATCHQ_{setting.upper()}": "0"})
        return load(code=given, environ={}) if source == "code" else load(given, environ={})

    expected = ZEROS[setting]
    if expected is None:
        with pytest.raises(ConfigError, match=setting):
            read()
        return
    settings = read()
    values = [
        getattr(settings, name) for name in (setting, f"{setting}_ms", f"{setting}_bytes") if hasattr(settings, name)
    ]
    assert values == [expected]


@pytest.mark.parametrize("source", ["environment", "file"])
def test_zeros_are_shown_as_zeros(redis_rig: Rig, source: str) -> None:
    """`batchq config` says what is used: each zero that means something is there as one, with its source."""
    kept = [setting for setting, held in ZEROS.items() if held is not None]
    env = {f"BATCHQ_{setting.upper()}": "0" for setting in kept} if source == "environment" else {}
    if source == "file":
        lines = "".join(f"{setting} = 0\n" for setting in kept)
        (redis_rig.folder / "pyproject.toml").write_text(f"[tool.batchq]\n{lines}")
    shown = call(redis_rig, "config", "--json", **env).ended(0).json
    assert {shown[setting]["value"] for setting in kept} <= {"0", "0s", "0ms"}, [shown[one] for one in kept]
    assert all(shown[setting]["source"] != "default" for setting in kept)


def test_zeros_of_one_call_are_kept(rig: Rig) -> None:
    """delay, priority and backoff of zero hold for their job; a budget, a limit or a retention of zero is refused."""
    rig.app(APP.replace("max_attempts=3, backoff=fixed(0.05)", "max_attempts=5, backoff=fixed(0)"))
    with app_on(rig) as app:
        later = app.call("work").options(delay=60, priority=7)
        job = later.options(delay=0, priority=0).enqueue()
        assert (rig.job(job.id).state, rig.job(job.id).priority) == (State.PENDING, 0)
        for wrong in ({"max_attempts": 0}, {"timeout": 0}, {"result": 0}):
            with pytest.raises(ConfigError, match=next(iter(wrong))):
                app.call("work").options(**wrong)  # type: ignore[arg-type]
    failing = rig.enqueue("mixed", ["raises"])
    rig.start()
    rig.until_counts(done=1, dead=1)
    # By the default, a second that doubles, it would be fifteen.
    assert len(rig.ledger.starts(failing)) == 5
    assert sum(gaps_s(rig.ledger.starts(failing))) < 8
    for option, value in (("--max-attempts", "0"), ("--priority", "-0"), ("--in", "0")):
        ran = call(rig, "enqueue", "work", option, value)
        assert ran.code == (2 if option == "--max-attempts" else 0), (option, ran)
