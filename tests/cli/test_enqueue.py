"""`batchq enqueue`: what is accepted arrives as it was sent, what is refused changes nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from batchq.lifecycle import State

from .conftest import Run, Scene


def test_prints_the_id_alone(run: Run) -> None:
    """stdout is the id, and the job stands there as it was given."""
    job_id = run("enqueue", "deliver", "--args", '["a", 1]', "--kwargs", '{"b": null}').ended(0).out.strip()
    shown = run("show", job_id, "--json").ended(0).json
    assert (shown["job"], shown["args"], shown["kwargs"]) == ("deliver", ["a", 1], {"b": None})
    assert (shown["id"], shown["queue"], shown["state"], shown["priority"]) == (job_id, "default", "pending", 0)


def test_options_arrive(run: Run, scene: Scene) -> None:
    """Queue, id, priority, attempts and delay are those of the call."""
    call = "enqueue deliver -q mail --id order-7 --priority -5 --max-attempts 1 --in 1h --json"
    assert run(*call.split()).ended(0).json == {"id": "order-7", "created": True, "queue": "mail", "spooled": False}
    job = scene.store.get("mail", "order-7")
    assert job is not None
    assert (job.priority, job.max_attempts, job.state) == (-5, 1, State.DELAYED)
    assert job.since_ms - job.enqueued_ms == pytest.approx(3_600_000, abs=1)


@pytest.mark.parametrize("levels", [250, 252, 253, 254, 255, 256, 1000])
def test_nesting_is_taken_or_refused_as_usage(run: Run, levels: int) -> None:
    """Around the deepest that JSON is written: enqueued, or exit 2 and one line."""
    done = run("enqueue", "deliver", "--kwargs", '{"body": ' + "[" * levels + "]" * levels + "}")
    assert done.code in (0, 2), done
    assert (done.code == 2) == ("nested deeper" in done.err)
    assert "Traceback" not in done.err


def test_a_known_id_is_said_and_printed(run: Run) -> None:
    """A second job of an id is no error: nothing is enqueued, and a program can tell."""
    run("enqueue", "deliver", "--id", "once").ended(0)
    again = run("enqueue", "deliver", "--id", "once").ended(0, "job once is known")
    assert again.out == "once\n"
    assert run("enqueue", "deliver", "--id", "once", "--json").ended(0).json["created"] is False
    assert run("status", "--json").json["queues"]["default"]["totals"]["enqueued"] == 1


@pytest.mark.parametrize("flag", ["--args", "--kwargs"])
def test_arguments_from_stdin(run: Run, flag: str) -> None:
    """`-` reads one of the two from stdin, also where it is more than an argument can be."""
    value: object = ["é" * 200_000] if flag == "--args" else {"k": "é" * 200_000}
    job_id = run("enqueue", "deliver", flag, "-", stdin=json.dumps(value)).ended(0).out.strip()
    assert run("show", job_id, "--json").json[flag[2:]] == value


@pytest.mark.parametrize("number", [2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.1 + 0.2])
def test_numbers_arrive_exactly(run: Run, number: float) -> None:
    """What JSON can hold arrives with every digit."""
    job_id = run("enqueue", "deliver", "--args", json.dumps([number])).ended(0).out.strip()
    [found] = run("show", job_id, "--json").json["args"]
    assert (found, type(found)) == (number, type(number))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--args", "["), "--args: Expecting value: line 1"),
        (("--args", ""), "--args: Expecting value"),
        (("--args", "hello"), "--args: Expecting value"),
        (("--args", '{"a": 1}'), "--args: expected a list"),
        (("--args", "7"), "found a number"),
        (("--args", "null"), "found null"),
        (("--kwargs", "[1]"), "--kwargs: expected an object"),
        (("--kwargs", '{"a": 1, "a": 2}'), "stands twice"),
        (("--kwargs", '{"a": {"b": NaN}}'), "NaN is no JSON"),
        (("--args", "[Infinity]"), "Infinity is no JSON"),
        (("--args", "[1e999]"), "--args[0]: inf has no form"),
        (("--args", f"[{2**64}]"), "--args[0]: an integer beyond 64 bits"),
        (("--args", '["\\ud800"]'), "lone surrogate"),
        (("--args", "[" * 100_000), "nested deeper than 250"),
        (("--args", "[" * 300 + "]" * 300), "nested deeper than 250"),
        (("--args", "-", "--kwargs", "-"), "both"),
    ],
)
def test_wrong_json_is_refused(run: Run, args: tuple[str, ...], said: str) -> None:
    """Exit 2, one line that names the option and the place; nothing is enqueued."""
    run("enqueue", "deliver", *args).refused(2, said)
    assert run("status", "--json").json["queues"] == {}


def test_stdin_that_is_no_json(run: Run) -> None:
    """The same from stdin, where bytes may be no text at all."""
    run("enqueue", "deliver", "--args", "-", stdin=b"\xff\xfe").refused(2, "--args: no valid UTF-8 at byte 0")
    run("enqueue", "deliver", "--args", "-", stdin="").refused(2, "--args: Expecting value")
    too_much = '["' + "x" * (1 << 20) + '"]'
    run("enqueue", "deliver", "--args", "-", stdin=too_much).refused(2, "max_payload")
    run("enqueue", "deliver", "--args", "-", stdin=too_much * 5).refused(2, "on stdin, max_payload is 1048576")


BAD_DELAYS = [
    "inf",
    "-inf",
    "nan",
    "1e400",
    "1e308",
    "1_000",
    "0x10",
    "\uff11\uff10",
    "",
    "true",
    "True",
    "10 parsecs",
    "1e-320",
    "--",
]
TOO_LONG = [
    "9223372036854775807",
    "9223372036854775808",
    "99999999999999999999999999999999d",
    "5000d",
    "2199023255551s",
]


@pytest.mark.parametrize("delay", BAD_DELAYS)
def test_what_is_no_delay_is_refused(run: Run, delay: str) -> None:
    """One line that names the option; nothing reaches the store."""
    run("enqueue", "deliver", f"--in={delay}").refused(2, "--in", "is no duration")
    assert run("status", "--json").json["queues"] == {}


@pytest.mark.parametrize("delay", TOO_LONG)
def test_a_delay_past_what_can_be_stored_is_refused(run: Run, delay: str) -> None:
    """A double is exact to 7 September 2039, and the message says so."""
    run("enqueue", "deliver", "--in", delay).refused(2, "--in", "7 September 2039")


@pytest.mark.parametrize("delay", ["0", "0.0", "-1", "-60s", "-99999999999999999999"])
def test_no_delay_is_now(run: Run, delay: str) -> None:
    """Zero and the past mean at once."""
    job_id = run("enqueue", "deliver", "--in", delay).ended(0).out.strip()
    assert run("show", job_id, "--json").json["state"] == "pending"


@pytest.mark.parametrize(
    ("delay", "ms"),
    [("10", 10_000), ("1.5", 1500), ("10s", 10_000), ("5m", 300_000), ("2h", 7_200_000), ("400d", 34_560_000_000)],
)
def test_delays_are_exact(run: Run, delay: str, ms: int) -> None:
    """Each way to write one means what it says."""
    job_id = run("enqueue", "deliver", "--in", delay).ended(0).out.strip()
    shown = run("show", job_id, "--json").json
    assert shown["fire_ms"] - shown["enqueued_ms"] == pytest.approx(ms, abs=1)


@pytest.mark.parametrize("at", ["2030-01-31T09:00:00+01:00", "2030-01-31T08:00:00Z", "20300131T080000Z"])
def test_at_an_instant(run: Run, at: str) -> None:
    """An aware time is kept to the millisecond, in whatever zone it is written."""
    job_id = run("enqueue", "deliver", "--at", at).ended(0).out.strip()
    assert run("show", job_id, "--json").json["fire_ms"] == 1_896_076_800_000


def test_an_instant_in_the_past_is_now(run: Run) -> None:
    """What was due already is pending."""
    past = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    job_id = run("enqueue", "deliver", "--at", past).ended(0).out.strip()
    assert run("show", job_id, "--json").json["state"] == "pending"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--at", "2030-01-31T09:00:00"), "no time zone"),
        (("--at", "tomorrow"), "'tomorrow' is no time"),
        (("--at", ""), "is no time"),
        (("--at", "\uff12\uff10\uff13\uff10-01-31T09:00:00Z"), "is no time"),
        (("--at", "2040-01-01T00:00:00Z"), "7 September 2039"),
        (("--in", "1h", "--at", "2030-01-31T09:00:00Z"), "exclude each other"),
        (("--id", ""), "--id"),
        (("--id", "a b"), "--id"),
        (("--id", "x" * 201), "--id"),
        (("--id", "naïve"), "--id"),
        (("--id", "-x"), "--id"),
        (("--id", "../x"), "--id"),
        (("--queue", ""), "--queue"),
        (("--queue", "a b"), "--queue"),
        (("--queue", "q" * 65), "--queue"),
        (("--queue", "{q}"), "--queue"),
        (("--priority", "101"), "--priority"),
        (("--priority", "1_0"), "--priority"),
        (("--priority", "\uff11"), "--priority"),
        (("--priority", "high"), "--priority"),
        (("--priority", "1.5"), "--priority"),
        (("--max-attempts", "0"), "--max-attempts"),
        (("--max-attempts", "-1"), "--max-attempts"),
        (("--max-attempts", "99999999999"), "--max-attempts"),
        (("more",), "more"),
    ],
)
def test_wrong_options_are_refused(run: Run, args: tuple[str, ...], said: str) -> None:
    """Exit 2, one line that names the option; nothing is enqueued."""
    run("enqueue", "deliver", *args).refused(2, said)
    assert run("status", "--json").json["queues"] == {}


@pytest.mark.parametrize("name", ["", " ", "a b", "x" * 201, "a\nb", "\x1b[31m"])
def test_wrong_names_are_refused(run: Run, name: str) -> None:
    """A handler's name stands in rows, log lines and on command lines."""
    run("enqueue", name).refused(2, "NAME")
