"""What producers hand over: times, values, names and sizes, the same verdict at every entrance."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import math
import subprocess
import sys
import time
import unicodedata
import uuid
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from batchq import App
from batchq.errors import ConfigError
from batchq.lifecycle import State
from tests.cases.helpers import all_jobs, app_on, call, commands, cpu_s, key, server_of, stays
from tests.faults.proxy import Proxy
from tests.faults.wallclock import WallClock
from tests.process.rig import Rig
from tests.servers import Server

APP = """
@app.job
def work(*args, **kwargs):
    note("S")
    note("E")


@app.job
def echo(value):
    note("S")
    with open("echo.tmp" + current_job().id, "w") as out:
        out.write(repr(value))
    os.rename("echo.tmp" + current_job().id, "echo-" + current_job().id)
    note("E")


@app.job(result=True, max_attempts=1)
def large(size):
    return "x" * size


@app.job(max_attempts=2, backoff=fixed(0.05))
def ends(how):
    note("S")
    if how == "dead":
        raise ValueError("no")
    if how == "crash":
        os._exit(1)
    if how in ("timeout", "cancelled while it runs", "everything killed") and not os.path.exists("second"):
        time.sleep(60)
    note("E")
"""

DAY_S = 86_400


def test_far_delays_begin_nothing_and_let_the_master_sleep(rig: Rig) -> None:
    """Beyond 31 and 32 bits of milliseconds and a year: nothing starts, and the waits of the master stay finite."""
    rig.app(APP)
    delays = (2147483.647, 2147483.648, 4294967.296, 25 * DAY_S, 400 * DAY_S)
    with app_on(rig) as app:
        jobs = [app.call("work").options(delay=delay).enqueue() for delay in delays]
    pool = rig.start(n=2)
    spent = cpu_s(pool)
    stays(lambda: rig.stats().counts["delayed"] == 5 and not rig.ledger.starts(), "all wait", 0.8)
    assert call(rig, "cancel", *(job.id for job in jobs[:4])).ended(0)
    stays(lambda: rig.stats().counts["delayed"] == 1, "the last one waits", 0.4)
    assert cpu_s(pool) - spent < 0.5
    assert pool.process.poll() is None
    assert pool.stop() == 0


@pytest.mark.parametrize("entrance", ["api", "command line"])
def test_no_delay_in_any_form_is_at_once(rig: Rig, entrance: str) -> None:
    """Zero, minus zero, none, the past and before 1970, whatever the sweep: nothing stands among the delayed."""
    rig.app(APP)
    now = time.time()
    past = [dt.datetime.fromtimestamp(at, dt.UTC) for at in (now - 0.001, 1e-6, 0, -1)]

    def send() -> dict[str, int]:
        """Every form once: its id, and when it was asked for."""
        asked: dict[str, int] = {}
        if entrance == "command line":
            for args in (["--in", "0"], ["--in=-0"], ["--in=-60s"], ["--at", "1969-12-31T23:59:59Z"], []):
                job = call(rig, "enqueue", "work", *args).ended(0).out.strip()
                asked[job] = time.monotonic_ns()
            return asked
        with app_on(rig) as app:
            handler = app.call("work")
            for delay in (0, 0.0, -0.0, -1, -60, -now, -(now + 1), -1e18, dt.timedelta(seconds=-1)):
                asked[handler.enqueue_in(delay).id] = time.monotonic_ns()
            for at in past:
                asked[handler.enqueue_at(at).id] = time.monotonic_ns()
            asked[app.enqueue("work", delay=None).id] = time.monotonic_ns()
        return asked

    # Nobody is there to move what would be delayed.
    standing = send() if entrance == "api" else {}
    assert (rig.stats().counts["delayed"], rig.stats().counts["pending"]) == (0, len(standing))
    pool = rig.start("--sweep", "60m", "--lease", "6h", n=2)
    rig.until_counts(done=len(standing))
    asked = send()
    rig.until_counts(done=len(standing) + len(asked), delayed=0)
    assert all((rig.ledger.starts(job)[0].at_ns - at_ns) / 1e9 < 5 for job, at_ns in asked.items())
    if rig.kind != "spool":
        # A worker has taken the hints that were left over.
        rig.until(lambda: server_of(rig).llen(key(rig, "wake")) == 0, "no hint is left")
        before = commands(rig)
        stays(lambda: True, "idle", 1.0)
        assert commands(rig) - before < 50
    assert pool.stop() == 0


#: As text of the command line -> as a value of the API; those that are times at all.
NO_DELAYS: dict[str, object] = {
    "9223372036854775807": 2**63 - 1,
    "9223372036854775808": 2**63,
    "1e308": 1e308,
    "1e400": float("1e400"),
    "-inf": -math.inf,
    "nan": math.nan,
    "true": True,
    "1_000": "1_000",
    "0x10": "0x10",
    "\uff11\uff10": "\uff11\uff10",
    "": "",
}
#: Those that are tried on the command line as well.
TYPED_DELAYS = ("9223372036854775808", "1e400", "nan", "true", "\uff11\uff10", "")


def test_what_is_no_delay_reaches_no_store(redis_rig: Rig) -> None:
    """Too large, not finite, or no number: refused with one line at either entrance; smallest and largest are exact."""
    rig = redis_rig
    with app_on(rig) as app:
        for text, value in NO_DELAYS.items():
            with pytest.raises((ConfigError, ValueError, TypeError)):
                app.call("work").enqueue_in(value)  # type: ignore[arg-type]
            if text in TYPED_DELAYS:
                call(rig, "enqueue", "work", f"--in={text}").refused(2, "--in")
        assert server_of(rig).keys(f"{rig.prefix}:*") == []
        longest_s = 2199023255551 // 1000 - rig.store.now_ms() // 1000 - 60
        ids = [app.call("work").enqueue_in(seconds).id for seconds in (1e-320, longest_s)]
    ids += [call(rig, "enqueue", "work", f"--in={text}").ended(0).out.strip() for text in ("10", f"{longest_s}s")]
    assert [rig.job(job).state for job in ids] == [State.PENDING, *[State.DELAYED] * 3]
    fires = [score / 4096 for _, score in server_of(rig).zrange(key(rig, "delayed"), 0, -1, withscores=True)]
    assert all(rig.store.now_ms() < fire < 2**41 for fire in fires)
    assert abs(fires[0] - rig.store.now_ms() - 10_000) < 9000


PRODUCER = """
import sys
from app import app
for _ in range(3):
    print(app.call("work").options(delay=2.5).enqueue().id)
"""


@pytest.mark.parametrize("offset_s", [-300, 300])
def test_delays_are_the_stores_whatever_clock_the_producer_has(redis_rig: Rig, offset_s: int) -> None:
    """Producer five minutes off, pool two minutes off: delays are by the server's clock, no age is negative."""
    rig = redis_rig
    rig.app(APP)
    (rig.folder / "producer.py").write_text(PRODUCER)
    theirs, ours = WallClock(rig.folder, offset_s), WallClock(rig.folder, 120)
    rig.start(n=2, **ours.env())
    before = rig.store.now_ms()
    ran = subprocess.run(
        [sys.executable, "producer.py"], cwd=rig.folder, env=rig.env(**theirs.env()), capture_output=True, text=True
    )
    after = rig.store.now_ms()
    assert ran.returncode == 0, ran
    ids = ran.stdout.split()
    assert all(before + 2500 <= rig.job(job).since_ms <= after + 2501 for job in ids)
    shown = json.dumps(call(rig, "status", "--json").ended(0).json)
    assert '": -' not in shown
    offset_ns = rig.store.now_ms() * 1_000_000 - time.monotonic_ns()
    rig.until_counts(done=3)
    for job in ids:
        started_ms = (rig.ledger.starts(job)[0].at_ns + offset_ns) / 1e6
        assert before + 2500 - 2 <= started_ms <= after + 2500 + 30_000


NUMBERS = [
    2**53 - 1,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    10**40,
    -(2**63),
    -(2**63) - 1,
    0.1 + 0.2,
    -0.0,
    1e308,
    0,
]
TEXTS = ['"nan"', '"\\u2028\\u0000"', "[[], {}, [[]], null, true, false]", '{"a": {"": 1}, "é": "\\ud83d\\ude00"}']
BAD = ["NaN", "[Infinity]", "[[-Infinity]]", "1e999", '"\\ud800"', '{"a": 1, "a": 2}']


def refusal(act: Callable[[], object], *errors: type[Exception]) -> str | None:
    """What it was refused with; None where it went well."""
    try:
        act()
    except errors as error:
        return str(error) or type(error).__name__
    return None


def send(rig: Rig, entrance: str, texts: list[str]) -> list[str | None]:
    """Enqueues `echo` with each JSON value; the ids, None for what is refused."""
    if entrance == "import":
        (rig.folder / "values.ndjson").write_text("".join(f'{{"value": {text}}}\n' for text in texts))
        ran = call(rig, "import", "values.ndjson", "--job", "echo", "--json")
        lines = (rig.folder / "values.ndjson.rejects.ndjson").read_text().splitlines()
        rejected = {json.loads(line)["line"] for line in lines}
        assert (ran.code, ran.lines[-1]["rejected"]) == (1, len(rejected)), ran
        ids = iter(job.id for job in all_jobs(rig, State.PENDING))
        return [None if n in rejected else next(ids) for n in range(1, len(texts) + 1)]
    sent: list[str | None] = []
    with app_on(rig) as app:
        for text in texts:
            if entrance == "api":
                made: list[str] = []
                said = refusal(
                    lambda text=text, made=made: made.append(app.enqueue("echo", [json.loads(text)]).id),  # type: ignore[misc]
                    *(ValueError, TypeError),
                )
                assert made or (said and "args[0]" in said), said
                sent += made or [None]
            else:
                ran = call(rig, "enqueue", "echo", "--args", "-", stdin=f"[{text}]")
                assert ran.code in (0, 2), ran
                assert (ran.out == "") == (ran.code == 2), ran
                sent.append(ran.out.strip() or None)
    return sent


@pytest.mark.parametrize("entrance", ["api", "command line", "import"])
def test_values_reach_the_handler_as_they_were_or_are_refused(rig: Rig, entrance: str) -> None:
    """Integers around 64 bits keep every digit, floats every bit, what JSON has not is refused; nothing is changed."""
    if rig.kind == "spool" and entrance == "command line":
        pytest.skip("what the command line reads does not depend on where it goes")
    rig.app(APP)
    numbers = NUMBERS if entrance != "command line" else NUMBERS[1:6]
    bad = BAD if entrance != "command line" else BAD[1::2]
    texts = [json.dumps(number) for number in numbers] + TEXTS[:: 1 if entrance != "command line" else 3] + bad
    sent = list(zip(send(rig, entrance, texts), texts, strict=True))
    refused = {text for job, text in sent if job is None}
    expected = {json.dumps(number) for number in numbers if isinstance(number, int) and not -(2**63) <= number < 2**64}
    # A key that stands twice is seen in text only: Python's own values can't hold it.
    assert refused == expected | set(bad if entrance != "api" else bad[:-1])
    rig.run_burst(n=2)
    for job, text in sent:
        assert job is None or (rig.folder / f"echo-{job}").read_text() == repr(json.loads(text)), text


class Colour(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Int(int):
    pass


class Str(str):
    pass


class Dict(dict):  # type: ignore[type-arg]
    pass


@dataclass
class Point:
    x: int = 1


Pair = namedtuple("Pair", "a b")

TYPES: dict[str, object] = {
    "int key": {1: "a"},
    "None key": {None: "a"},
    "tuple key": {(1, 2): "a"},
    "two keys that would merge": {"1": "a", 1: "b"},
    "tuple": (1, 2),
    "named tuple": Pair(1, 2),
    "set": {1},
    "frozenset": frozenset({1}),
    "naive datetime": dt.datetime(2026, 1, 1),
    "aware datetime": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "date": dt.date(2026, 1, 1),
    "time": dt.time(1, 2),
    "timedelta": dt.timedelta(1),
    "Decimal": decimal.Decimal("1.10"),
    "bytes": b"x",
    "bytearray": bytearray(b"x"),
    "memoryview": memoryview(b"x"),
    "UUID": uuid.UUID(int=1),
    "Enum": Colour.RED,
    "int subclass": Int(1),
    "str subclass": Str("a"),
    "dict subclass": Dict(a=1),
    "dataclass": Point(),
    "generator": (n for n in range(3)),
    "object": object(),
    "function": len,
    "complex": 1j,
    "path": Path("/tmp"),
    "lone surrogate": "\udcff",
    "range": range(3),
}


@pytest.mark.parametrize("where", ["argument", "inside", "keyword"])
def test_types_that_json_has_not_are_refused_and_leave_no_trace(rig: Rig, where: str) -> None:
    """By one call and in bulk alike, with the path; the members of an int enum are what they equal."""
    rig.app(APP)
    with app_on(rig) as app:
        handler = app.call("work")
        before = rig.stats().totals["enqueued"]
        size = server_of(rig).dbsize() if rig.kind != "spool" else 0
        for name, value in TYPES.items():
            inside = {"list": [0, {"deep": value}]} if where == "inside" else value
            args, kwargs = ((), {"key": inside}) if where == "keyword" else ((inside,), {})
            with pytest.raises((TypeError, ValueError), match=r"args\[0\]|key") as one:
                handler.enqueue(*args, **kwargs)
            with pytest.raises(type(one.value)) as many:
                handler.enqueue_many([args or kwargs])
            assert str(one.value) == str(many.value), name
        assert rig.stats().totals["enqueued"] == before
        if rig.kind != "spool":
            assert server_of(rig).dbsize() == size
        app.enqueue("echo", [[Number.ONE]])
    rig.run_burst()
    [echoed] = rig.folder.glob("echo-*")
    assert echoed.read_text() == "[1]"


@pytest.mark.parametrize("opening", ["[", pytest.param('{"a":', marks=pytest.mark.slow)])
def test_one_depth_for_every_entrance_and_no_crash_beyond(redis_rig: Rig, opening: str) -> None:
    """From shallow to a million levels: the same are accepted by API, command line, import and a dropped file."""
    rig = redis_rig
    closing = {"[": "]", '{"a":': "}"}[opening]
    rig.app(APP)
    verdicts: dict[str, list[int]] = {"api": [], "command line": [], "import": []}
    # The last that is taken, the first that is not, and what would be the end of any stack.
    depths = (252, 253, 100_000)
    for depth in depths:
        text = opening * depth + "1" + closing * depth
        value: object = 1
        for _ in range(depth):
            value = [value] if opening == "[" else {"a": value}
        with app_on(rig) as app:
            said = refusal(lambda value=value: app.enqueue("echo", [value]), ValueError)  # type: ignore[misc]
            assert said is None or "levels" in said
            verdicts["api"] += [depth] if said is None else []
        while isinstance(value, list | dict) and value:  # Taken apart from outside: the interpreter would recurse.
            value = value.pop() if isinstance(value, list) else value.pop("a")
        ran = call(rig, "enqueue", "echo", "--args", "-", stdin=f"[{text}]")
        assert ran.code in (0, 2), (depth, ran)
        verdicts["command line"] += [depth] if ran.code == 0 else []
        (rig.folder / "deep.ndjson").write_text(f'{{"value": {text}}}\n')
        ran = call(rig, "import", "deep.ndjson", "--job", "echo", "--restart")
        assert ran.code in (0, 1), (depth, ran)
        verdicts["import"] += [depth] if ran.code == 0 else []
    assert verdicts["api"] == verdicts["command line"] == verdicts["import"] == [252]
    rig.run_burst(n=2)
    assert rig.stats().totals["completed"] == 3


IDS = [
    "",
    "a",
    "x" * 200,
    "x" * 201,
    "x" * 10_000,
    "a b",
    "a\nb",
    "a\tb",
    "a:b",
    "a*",
    "a?",
    "a[b]",
    "a{b}",
    "a%sb",
    "../x",
    "a/../b",
    "smile-\U0001f600",
    unicodedata.normalize("NFC", "e\u0301"),
    unicodedata.normalize("NFD", "\xe9"),
    "a\u202eb",
    "-leading",
    "a'b",
    'a"b',
    "a;b",
    "a,b",
    "a@b.c/d+e=f",
    "1e5",
    "NULL",
]
#: Those that are tried on the command line as well.
TYPED_IDS = ("", "a b", "-leading", "../x", "a\u202eb", "a/../b", "a@b.c/d+e=f", "1e5")


def test_ids_are_refused_or_good_for_every_command(rig: Rig) -> None:
    """No pattern, path or escape in an id means anything: what is taken is shown, cancelled and touched alone."""
    rig.enqueue_many("work", [()] * 3)
    bystanders = rig.stats().counts["pending"]
    accepted = []
    with app_on(rig) as app:
        for job_id in IDS:
            said = refusal(lambda job_id=job_id: app.enqueue("work", job_id=job_id), ConfigError)  # type: ignore[misc]
            assert said is None or "job_id" in said
            accepted += [job_id] if said is None else []
            if job_id not in TYPED_IDS:
                continue  # The same check; some are enough to see that it is asked.
            ran = call(rig, "enqueue", "work", f"--id={job_id}")
            assert ran.code == (0 if job_id in accepted else 2), (job_id, ran)
            if job_id in accepted:
                assert "known" in ran.err, ran
        assert accepted == ["a", "x" * 200, "a:b", "a/../b", "a@b.c/d+e=f", "1e5", "NULL"]
        assert rig.stats().counts["pending"] == bystanders + len(accepted)
        for n, job_id in enumerate(accepted):
            if job_id in TYPED_IDS:
                assert call(rig, "show", "--json", "--", job_id).ended(0).json["id"] == job_id
                call(rig, "cancel", "--", job_id).ended(0)
            else:
                assert rig.job(job_id).id == job_id
                app.cancel([job_id])
            assert rig.stats().counts["pending"] == bystanders + len(accepted) - n - 1
    refused = [job_id for job_id in IDS if job_id and job_id not in accepted]
    assert call(rig, "cancel", "--", *refused).code == 1
    assert rig.stats().counts["pending"] == bystanders
    with pytest.raises(ValueError, match="null byte"):
        call(rig, "show", "a\0b")


QUEUES = {
    "a": True,
    "a" * 64: True,
    "A.b-c_9": True,
    "a" * 65: False,
    "a" * 255: False,
    "a" * 100_000: False,
    "": False,
    "with space": False,
    "trailing ": False,
    "a:b": False,
    "a{b}": False,
    "\u00e9": False,
    ".dot": False,
    "../x": False,
    "a/b": False,
    "*": False,
    "new\nline": False,
}


#: Those that are tried on the command line as well.
TYPED = ("a" * 64, "A.b-c_9", "a" * 65, "", "../x")


@pytest.mark.parametrize("up", [True, False], ids=["store up", "store away"])
def test_one_rule_for_names_of_queues_at_every_entrance(rig: Rig, up: bool) -> None:
    """API, command line, import and the start of a pool say the same of each, also while the store is away."""
    if rig.kind == "spool" and not up:
        pytest.skip("a spool is not away")
    rig.app(APP)
    away = {} if up else {"BATCHQ_URL": "redis://127.0.0.1:1/0", "BATCHQ_FALLBACK_EPHEMERAL": "1"}
    url = rig.url if up else away["BATCHQ_URL"]
    (rig.folder / "one.ndjson").write_text('{"n": 1}\n')
    with App(url, prefix=rig.prefix, spool=str(rig.folder / "fallback"), fallback_ephemeral=True) as app:
        for name, good in QUEUES.items():
            said = refusal(lambda name=name: app.enqueue("work", queue=name), ConfigError)  # type: ignore[misc]
            assert (said is None) == good, name
            assert good or (said and "queue" in said)
            if len(name) > 10_000 or name not in TYPED:
                continue  # More than a command line carries, or the same once more.
            ran = call(rig, "enqueue", "work", f"--queue={name}", **away)
            assert ran.code == (0 if good else 2), (name, ran)
            if up:
                ran = call(rig, "import", "one.ndjson", "--job", "work", f"--queue={name}", "--restart")
                assert ran.code == (0 if good else 2), (name, ran)
            if not good and up:
                ran = call(rig, "start", "app:app", f"--queues={name}", "-n", "1", "--burst")
                assert ran.code == 2, (name, ran)
    good = [name for name, fine in QUEUES.items() if fine]
    if up:
        shown = call(rig, "status", "--json").ended(0).json["queues"]
        assert {name: one["counts"]["pending"] for name, one in shown.items()} == {
            name: 3 if name in TYPED else 1 for name in good
        }
        rig.run_burst(*(arg for name in good for arg in ("-q", name)))
    else:
        call(rig, "spool", "forward", "--all", BATCHQ_FALLBACK_EPHEMERAL="1").ended(0)
        rig.run_burst(*(arg for name in good for arg in ("-q", name)))
    assert len(rig.ledger.ends()) == sum((3 if up else 2) if name in TYPED else 1 for name in good)


def test_what_is_too_large_is_refused_early_and_hurts_nobody(rig: Rig) -> None:
    """64 MB by API, command line and as a result, beside small jobs that go on; the master does not grow."""
    rig.app(APP)
    pool = rig.start(n=3)
    rss = psutil.Process(pool.pid).memory_info().rss
    text = "x" * (64 << 20)
    with app_on(rig) as app:
        began = time.process_time()
        with pytest.raises(ConfigError, match="max_payload"):
            app.enqueue("work", [text])
        assert time.process_time() - began < 5
        results = [app.enqueue("large", [size], result=True) for size in (1000, 60_000, 70_000, 64 << 20)]
        fits = app.enqueue("work", ["x" * ((1 << 20) - 200)])
        asked = time.monotonic_ns()
        small = rig.enqueue("work")
        rig.until_started(small)
        assert (rig.ledger.starts(small)[0].at_ns - asked) / 1e9 < 10
        ran = call(rig, "enqueue", "work", "--args", "-", stdin='["' + text + '"]')
        assert (ran.code, ran.err.count("\n"), "max_payload" in ran.err) == (2, 1, True)
        rig.until_counts(dead=2, done=4)
        assert [rig.job(ref.id).state for ref in results] == [State.COMPLETED] * 2 + [State.DEAD] * 2
        assert "result_max" in rig.job(results[3].id).errors[0]["error"]
        assert rig.ledger.ends(fits.id)
    assert psutil.Process(pool.pid).memory_info().rss - rss < 20 << 20
    assert pool.stop() == 0


@pytest.mark.parametrize(
    "how",
    [
        "done",
        "dead",
        "timeout",
        "crash",
        "cancelled while pending",
        "cancelled while delayed",
        "cancelled while it runs",
        "purged",
        "everything killed",
        "row deleted",
    ],
)
def test_an_id_is_free_again_after_every_end(rig: Rig, how: str) -> None:
    """Known while its job lives, with the existing job named; afterwards it runs again, without a key left behind."""
    if rig.kind == "spool" and how not in ("done", "dead", "cancelled while it runs", "everything killed"):
        pytest.skip("a job of the spool is its row; the others end as elsewhere")
    rig.app(APP)
    terms = {"job_id": "order-7", "timeout": 0.3 if how == "timeout" else None}
    start = ("--remember", "0", "--grace", "200ms", "--lease", "400ms", "--max-attempts", "2")
    with app_on(rig, remember=0) as app:
        delay = 60 if "delayed" in how else 0.001
        if how in ("cancelled while pending", "purged", "row deleted"):
            delay = 0
        ref = app.enqueue("ends", [how], delay=delay, **terms)  # type: ignore[arg-type]
        again = app.enqueue("ends", [how], **terms)  # type: ignore[arg-type]
        assert (again.created, again.id) == (False, ref.id)
        ran = call(rig, "enqueue", "ends", "--id", "order-7", "--json").ended(0)
        assert (ran.json["created"], ran.json["id"]) == (False, "order-7")
        if "pending" in how or "delayed" in how:
            call(rig, "cancel", ref.id, BATCHQ_REMEMBER="0").ended(0)
        elif how == "purged":
            call(rig, "purge", "--state", "pending", "--yes", BATCHQ_REMEMBER="0").ended(0)
        elif how == "row deleted":
            assert server_of(rig).hdel(f"{rig.prefix}:{{default}}:rows", ref.id) == 1
            rig.run_burst(*start)
        else:
            pool = rig.start(*start)
            rig.until_started(ref.id)
            if how == "cancelled while it runs":
                call(rig, "cancel", ref.id, BATCHQ_REMEMBER="0").ended(0)
            elif how == "everything killed":
                pool.process.kill()
                pool.wait()
                (rig.folder / "second").touch()
                pool = rig.start(*start)
            rig.until(
                lambda: (job := rig.store.get("default", ref.id)) is None or job.state is State.DEAD, "it has ended"
            )
            assert pool.stop() == 0
            if rig.store.get("default", ref.id) is not None:
                assert not app.enqueue("ends", ["done"], job_id="order-7").created
                call(rig, "purge", "--state", "dead", "--yes", BATCHQ_REMEMBER="0").ended(0)
        (rig.folder / "second").touch()
        rig.until(lambda: app.store.promote("default") is not None and _is_free(app), "the id is free")
        before = len(rig.ledger.ends(ref.id))
        rig.run_burst(*start)
        assert len(rig.ledger.ends(ref.id)) == before + 1
    if rig.kind != "spool":
        left = [name.decode() for name in server_of(rig).keys(f"{rig.prefix}:{{default}}:given")]
        assert not left or server_of(rig).zcard(left[0]) <= 1


def _is_free(app: App) -> bool:
    """Whether the id can be enqueued again; it then is."""
    return app.enqueue("ends", ["done"], job_id="order-7").created


EVENTS = """
import sys
from app import app
refs = [app.enqueue("work", [n], job_id=f"event-{n}") for n in range(int(sys.argv[1]))]
# Of a spooled one nobody knows yet whether it is new.
print(sum(ref.created and not ref.spooled for ref in refs))
"""


def test_events_that_several_producers_send_run_once_through_an_outage(
    serve: Callable[..., Server], rig_on: Callable[..., Rig]
) -> None:
    """Five processes send the same sixty events at once while the server stops: one run each, spooled copies too."""
    server = serve("--appendonly", "yes", "--appendfsync", "always")
    rig = rig_on(server)
    rig.app(APP)
    (rig.folder / "events.py").write_text(EVENTS)
    more = {"BATCHQ_FALLBACK_EPHEMERAL": "1", "BATCHQ_ENQUEUE_TIMEOUT": "100ms"}
    rig.start(n=2, **more)

    def send_all() -> list[subprocess.Popen[str]]:
        command = [sys.executable, "events.py", "60"]
        return [
            subprocess.Popen(command, cwd=rig.folder, env=rig.env(**more), stdout=subprocess.PIPE, text=True)
            for _ in range(5)
        ]

    producers = send_all()
    rig.until(lambda: rig.ledger.starts(), "the first ones run", within=20)
    server.kill()
    said = [producer.communicate(timeout=60)[0] for producer in producers]
    assert all(producer.returncode == 0 for producer in producers), said
    server.start()
    rig.until(lambda: len({entry.job for entry in rig.ledger.ends()}) == 60, "all have run", within=20)
    # A call that was sent again after its time was up hears of itself: it can't say whether its job was known.
    assert "0" in {late.communicate(timeout=60)[0].split()[0] for late in send_all()}
    rig.until_counts(active=0, pending=0, within=20)
    rig.until(lambda: not list((rig.folder / "fallback" / "inbox" / "new").glob("*")), "all is forwarded", within=20)
    rig.until_counts(active=0, pending=0, delayed=0)
    assert len(rig.ledger.starts()) == 60


DERIVED = """
import json, sys
from app import app

app.call("work").enqueue_many(
    [{"event": event, "at": sys.argv[1]} for event in json.loads(sys.argv[2])],
    job_id=lambda item: "event-" + "-".join(sorted(f"{key}.{value}" for key, value in item["event"].items())),
)
"""


def test_ids_derived_from_a_payload_are_the_same_in_every_process(rig: Rig) -> None:
    """Other hash seeds, another order of keys, another creation time inside: what the caller derives is what counts."""
    rig.app(APP)
    (rig.folder / "derived.py").write_text(DERIVED)
    events = [{"kind": "paid", "order": n} for n in range(20)]
    turned = [dict(reversed(event.items())) for event in events]
    for seed, sent in (("1", events), ("2", turned), ("random", events[::-1])):
        command = [sys.executable, "derived.py", f"made at {seed}", json.dumps(sent)]
        subprocess.run(command, cwd=rig.folder, env=rig.env(PYTHONHASHSEED=seed), check=True)
    assert {job.kwargs["at"] for job in all_jobs(rig, State.PENDING)} == {"made at 1"}
    assert rig.stats().counts["pending"] == rig.stats().totals["enqueued"] == len(events)


def test_a_bulk_says_of_each_item_what_became_of_it(rig: Rig) -> None:
    """Bad ones by their number, known ones by their id, the others in order; where a generator raised, how many."""
    bad: dict[int, object] = {3: (math.nan,), 500: 7, 998: ({1, 2},)}
    with app_on(rig) as app:
        handler = app.call("work")
        seen: list[int] = []
        items = [bad.get(n, (n,)) for n in range(1000)]
        sent = handler.enqueue_many(items, on_invalid=lambda n, error: seen.append(n), ids=True)  # type: ignore[arg-type]
        assert seen == sorted(bad)
        assert sent.ids is not None
        assert [rig.job(job).args for job in sent.ids[:5]] == [[0], [1], [2], [4], [5]]
        assert len(set(sent.ids)) == len(sent.ids) == sent.created == rig.stats().counts["pending"] == 997
        assert rig.job(sent.ids[-1]).args == [999]
        named = handler.enqueue_many([(0,), (1,), (0,)], job_id=lambda item: f"id-{item[0]}", ids=True)
        assert (named.ids, named.created, named.known) == (("id-0", "id-1", "id-0"), 2, 1)
        assert handler.enqueue_many([], ids=True).ids == ()

        def breaks() -> Iterator[tuple[int]]:
            for n in range(1000):
                if n == 700:
                    raise OSError("the disk is away")
                yield (n,)

        with pytest.raises(OSError, match="the disk is away") as caught:
            handler.enqueue_many(breaks())
        assert "the first 700 jobs are enqueued surely" in "".join(caught.value.__notes__)
        assert rig.stats().counts["pending"] == 997 + 2 + 700


def test_a_bulk_whose_connection_ends_in_the_middle_is_in_once(redis_rig: Rig) -> None:
    """Answers are lost again and again: a step is sent again under its mark, and each item has one job."""
    rig = redis_rig
    with Proxy(int(rig.url.rsplit(":", 1)[1].split("/")[0])) as proxy:
        answers = lost = 0

        def cut(frame: bytes) -> bool:
            """Of one to five answers each, those of the new connections among them."""
            nonlocal answers, lost
            answers += 1
            strikes = lost < 6 and answers % (lost + 1) == 0
            lost += strikes
            return strikes

        with App(proxy.url, prefix=rig.prefix, fallback=None, enqueue_timeout=20) as app:
            app.call("work").enqueue_in(0)
            proxy.cut = cut
            sent = app.call("work").enqueue_many(((n,) for n in range(2000)), ids=True)
    assert lost == 6
    assert sent.ids is not None
    assert len(set(sent.ids)) == 2000
    assert rig.stats().counts["pending"] == 2001
    assert [job.args for job in all_jobs(rig, State.PENDING)[1:]] == [[n] for n in range(2000)]
