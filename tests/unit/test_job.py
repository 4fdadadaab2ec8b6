"""Ids, names, rows, errors and durations: the small rules of the values."""

from __future__ import annotations

import os
import string
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.clock import MAX_FIRE_MS, ManualClock, due_ms, fire_ms
from batchq.errors import ConfigError, Retry, Snooze, milliseconds
from batchq.job import (
    ERROR_MAX,
    ID,
    Claim,
    Job,
    _Ids,
    check_id,
    check_priority,
    check_queue,
    new_id,
    pack_error,
    pack_row,
    random_name,
    stamp_row,
)
from batchq.lifecycle import State

# -- ids -----------------------------------------------------------------------------------------------------------


def test_ids_have_22_characters_that_a_caller_may_give_as_well() -> None:
    """They travel in keys, file names, URLs and shells."""
    made = new_id()
    assert len(made) == 22
    assert made.isalnum()
    assert check_id(made) == made


def test_ids_are_time_ordered_in_the_order_of_their_creation() -> None:
    """Also within one millisecond."""
    made = [new_id() for _ in range(100_000)]
    assert made == sorted(made)
    assert len(set(made)) == 100_000


def test_ids_carry_their_millisecond_in_front() -> None:
    """The first eight characters are base 62 of the time."""
    before = time.time_ns() // 1_000_000
    made = _Ids().new()
    after = time.time_ns() // 1_000_000
    number = 0
    for character in made[:8]:
        number = number * 62 + (string.digits + string.ascii_uppercase + string.ascii_lowercase).index(character)
    assert before <= number <= after


def test_ids_of_a_clock_that_goes_back_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter goes on where the clock does not, and spills into the next millisecond when it is full."""
    now = 1_800_000_000_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now)
    ids = _Ids()
    made = [ids.new() for _ in range(200_000)]
    now -= 3_600_000_000_000
    made += [ids.new() for _ in range(200_000)]
    now += 3_600_000_000_000 + 5_000_000
    made += [ids.new() for _ in range(10)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_of_threads_are_unique() -> None:
    """One counter for the process."""
    made: list[list[str]] = [[] for _ in range(4)]
    threads = [threading.Thread(target=lambda n=n: made[n].extend(new_id() for _ in range(20_000))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id for part in made for id in part}) == 80_000
    assert all(part == sorted(part) for part in made)


def in_child(make: Callable[[], str]) -> str:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, make().encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return answer


def test_ids_of_forked_children_are_unique() -> None:
    """The random part is drawn anew after a fork: the counter alone would repeat itself in every child."""
    new_id()
    tails = [in_child(new_id)[13:] for _ in range(3)] + [new_id()[13:]]
    assert len(set(tails)) == 4
    assert new_id()[13:] == tails[-1]


def test_random_names_differ() -> None:
    """A lane, a worker, a parcel: named once for ever."""
    assert len({random_name() for _ in range(1000)}) == 1000
    assert len(random_name(6)) == 6


# -- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "default", "A-1_b.c", "0", "x" * 64])
def test_queue_names(name: str) -> None:
    """A letter or digit first, 64 characters at most."""
    assert check_queue(name) == name


@pytest.mark.parametrize(
    "name", ["", "-a", ".a", "_a", "a b", "a:b", "a{b}", "ü", "x" * 65, "a\n", "a/b", None, 5, b"a"]
)
def test_what_is_no_queue_name_is_refused(name: Any) -> None:
    """Braces and colons would break keys, slashes paths; the message shows what was found."""
    with pytest.raises(ConfigError, match="queue") as caught:
        check_queue(name)
    assert repr(name)[:50] in str(caught.value)


@pytest.mark.parametrize("id", ["a", "order:17", "a@b.c/d+e=f_g-h", "x" * 200])
def test_given_ids(id: str) -> None:
    """Anything printable without spaces that keys, shells and logs carry unharmed."""
    assert check_id(id) == id


@pytest.mark.parametrize("id", ["", " a", "a b", "-a", "a\n", "a\x00", "ü", "a'b", "a{b}", "x" * 201, None, 7, b"a"])
def test_what_is_no_id_is_refused(id: Any) -> None:
    """Spaces, quotes and control characters are not."""
    with pytest.raises(ConfigError, match="job_id"):
        check_id(id)


@pytest.mark.parametrize("priority", [-100, -1, 0, 1, 100])
def test_priorities(priority: int) -> None:
    """-100 to 100."""
    assert check_priority(priority) == priority


@pytest.mark.parametrize("priority", [-101, 101, 0.0, 1.5, True, "1", None])
def test_what_is_no_priority_is_refused(priority: Any) -> None:
    """A bool is no number here."""
    with pytest.raises(ConfigError, match="priority"):
        check_priority(priority)


# -- rows and errors -----------------------------------------------------------------------------------------------


def test_row_holds_what_was_given_and_nothing_else() -> None:
    """Only what differs from the handler's own is stored."""
    assert orjson.loads(pack_row("send")) == {"job": "send"}
    assert orjson.loads(pack_row("send", [1], {"a": None}, max_attempts=0, timeout_ms=5, keep_ms=6)) == {
        "job": "send",
        "args": [1],
        "kwargs": {"a": None},
        "max": 0,
        "timeout": 5,
        "keep": 6,
    }


@given(st.text(max_size=20), st.lists(st.integers(-(2**63), 2**64 - 1), max_size=4), st.integers(0, 2**41))
def test_stamped_row_is_the_row_with_the_times_in_front(job: str, args: list[int], now: int) -> None:
    """Every store keeps the same bytes."""
    row = pack_row(job, args)
    stamped, timed = stamp_row(row, now, None), stamp_row(row, now, now + 1)
    assert stamped.endswith(row[1:])
    assert orjson.loads(stamped) == {"t": now, **orjson.loads(row)}
    assert orjson.loads(timed) == {"t": now, "at": now + 1, **orjson.loads(row)}


def test_error_is_one_line_of_json() -> None:
    """A line feed would end the entry in a store that keeps them line by line."""
    data = pack_error("E", "a\nb\r\n\x00", attempt=2, at_ms=3, worker="w", trace="x\ny")
    assert b"\n" not in data
    assert orjson.loads(data) == {
        "kind": "E",
        "error": "a\nb\r\n\x00",
        "attempt": 2,
        "at_ms": 3,
        "worker": "w",
        "trace": "x\ny",
    }


def test_error_is_bounded_and_keeps_the_end_of_the_trace() -> None:
    """A traceback's last line names the fault, a text's first one does."""
    entry = orjson.loads(
        pack_error("E", "t" * 99_999 + "END", attempt=1, at_ms=1, trace="BEGIN" + "x" * 99_999 + "END")
    )
    assert len(entry["error"]) + len(entry["trace"]) <= ERROR_MAX
    assert entry["error"] == "t" * (ERROR_MAX // 2)
    assert entry["trace"].endswith("END")
    short = orjson.loads(pack_error("E", "t", attempt=1, at_ms=1, trace="x" * 99_999))
    assert len(short["trace"]) == ERROR_MAX - 1


@given(st.text(st.characters(), max_size=50))
def test_any_text_can_be_an_error(text: str) -> None:
    """Lone surrogates too: they are kept as escapes, never raised."""
    entry = orjson.loads(pack_error("E", text, attempt=1, at_ms=1, trace=text))
    assert entry["error"] == text.encode("utf-8", "backslashreplace").decode()
    assert orjson.loads(pack_error("E", "\ud800", attempt=1, at_ms=1))["error"] == "\\ud800"


def test_attempt_is_the_token_less_what_was_forgiven() -> None:
    """What budgets and backoff count."""
    assert Claim("q", "a", 7, b"", forgiven=4).attempt == 3


@pytest.mark.parametrize("state", list(State))
def test_job_as_dict_is_json_with_the_promised_keys(state: State) -> None:
    """id, queue, job, state, attempts, priority, enqueued_ms always; the state's own where it has some."""
    shown = Job("a", "q", "send", state, 2, 0, 5, since_ms=9, worker="w", reason="poison").as_dict()
    assert orjson.loads(orjson.dumps(shown)) == shown
    assert {"id", "queue", "job", "state", "attempts", "attempt", "priority", "enqueued_ms"} <= set(shown)
    own: dict[State, dict[str, Any]] = {
        State.DELAYED: {"fire_ms": 9},
        State.DEAD: {"error": "", "reason": "poison", "died_ms": 9},
        State.ACTIVE: {"worker": "w", "cancel": False},
        State.COMPLETED: {"result": None, "expires_ms": 9},
    }
    assert own.get(state, {}).items() <= shown.items()


# -- durations and clocks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (0, 0),
        (1, 1000),
        (1.5, 1500),
        (0.0001, 1),
        (0.001001, 2),
        (0.29, 290),
        (1.1, 1100),
        (-3, 0),
        (-0.0, 0),
        (timedelta(days=1, milliseconds=1), 86_400_001),
        (timedelta(microseconds=1), 1),
        (timedelta(seconds=-1), 0),
        (10**15, 10**18),
        (1e300, int(1e300) * 1000),
    ],
)
def test_durations_become_whole_milliseconds(duration: Any, expected: int) -> None:
    """Rounded up, never early; a negative one is nothing; a huge one stays a number for the range check."""
    made = milliseconds(duration)
    assert type(made) is int
    assert made == expected


@given(st.floats(0, 1e9))
def test_duration_is_never_rounded_down_by_a_microsecond(seconds: float) -> None:
    """At most one millisecond more, never less but for the noise of the double."""
    made = milliseconds(seconds)
    assert seconds * 1000 - 0.001 <= made <= seconds * 1000 + 1.001


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), "5", None, True, b"1", [1]])
def test_what_is_no_duration_is_refused_by_name(bad: Any) -> None:
    """The setting is named."""
    with pytest.raises(ConfigError, match=r"^timeout: "):
        milliseconds(bad, "timeout")


def test_steering_exceptions_carry_whole_milliseconds() -> None:
    """Retry(after=) and Snooze(after) speak seconds outside, milliseconds inside."""
    assert Retry().after_ms is None
    assert Retry(after=0).after_ms == 0
    assert Retry("later", after=timedelta(minutes=1)).after_ms == 60_000
    assert Snooze(0.25).after_ms == 250
    with pytest.raises(ConfigError):
        Snooze(float("inf"))


@given(st.integers(0, MAX_FIRE_MS * 1000), st.integers(0, 10**9))
def test_nothing_fires_early(now_us: int, delay_ms: int) -> None:
    """Fire-times are rounded up, what is due is rounded down."""
    fire = fire_ms(now_us, delay_ms)
    assert fire * 1000 >= now_us + delay_ms * 1000
    assert fire * 1000 < now_us + delay_ms * 1000 + 1000
    assert due_ms(now_us) * 1000 <= now_us
    assert due_ms(fire * 1000) >= fire > due_ms(fire * 1000 - 1)


def test_last_fire_time_leaves_room_for_its_sequence_in_a_double() -> None:
    """score = fire_ms * 4096 + seq is exact to 2^53."""
    assert MAX_FIRE_MS * 4096 + 4095 == 2**53 - 1
    assert float(MAX_FIRE_MS * 4096 + 4095) != float(MAX_FIRE_MS * 4096 + 4094)


def test_manual_clock_stands_until_it_is_moved() -> None:
    """Both of its times move together."""
    clock = ManualClock(5)
    assert (clock.now_us(), clock.now_us()) == (5000, 5000)
    before = clock.monotonic()
    clock.advance(1.5)
    assert clock.now_us() == 6500
    assert clock.monotonic() - before == pytest.approx(0.0015)


def test_pattern_of_ids_refuses_a_trailing_line_feed() -> None:
    """fullmatch, not match with a dollar."""
    assert ID.fullmatch("a\n") is None
