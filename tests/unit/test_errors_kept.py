"""What is kept of a failed attempt: its traceback as text, and its entry as the Redis store writes it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

import orjson
import pytest

from batchq.errors import Retry
from batchq.fallback.emptying import _note
from batchq.job import pack_error
from batchq.redis.notes import apart, read_error, read_note, shorten
from batchq.worker import traces
from batchq.worker.traces import FRAMES, trace_of


class Odd(Exception):
    """One with a module in front of its name."""

    class Inner(Exception):
        """A name with a dot."""


def plain() -> None:
    raise ValueError("fails")


def deep(left: int = 30) -> None:
    if left:
        deep(left - 1)
    raise KeyError("at the bottom")


def mutual(left: int = 25) -> None:
    (lambda: mutual(left - 1) if left else plain())()


def of_another() -> None:
    try:
        plain()
    except ValueError:
        raise Odd("of another") from None
    finally:
        sys.exc_info()


def caused() -> None:
    try:
        plain()
    except ValueError as error:
        raise Odd("caused") from error


def within() -> None:
    try:
        plain()
    except ValueError:
        raise Odd.Inner  # noqa: B904 - that is the way


def noted() -> None:
    error = ValueError("line\nand another")
    error.add_note("a note")
    raise error


def misspelt() -> None:
    printt  # type: ignore[name-defined] # noqa: B018, F821


def grouped() -> None:
    raise ExceptionGroup("many", [ValueError(1), Odd(2)])


def silent() -> None:
    raise Odd


def unread() -> None:
    compile("a b", "x.py", "exec")


WAYS = [plain, deep, mutual, of_another, caused, within, noted, misspelt, grouped, silent, unread]


def caught(fail: Callable[[], None]) -> BaseException:
    try:
        fail()
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("it did not fail")


@pytest.mark.parametrize("fail", WAYS)
def test_trace_is_what_the_interpreter_would_write(fail: Callable[[], None]) -> None:
    """At the first time, and when the way is known, and where another error came the same way."""
    for _ in range(2):
        error = caught(fail)
        assert error.__traceback__ is not None
        expected = traceback.format_exception(type(error), error, error.__traceback__.tb_next, limit=-FRAMES)
        assert trace_of(error) == "".join(expected)


def test_ways_are_told_apart_by_every_line_and_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lines of one function are two ways; what was written of ways is bounded."""

    def fails(where: int) -> None:
        if where:
            raise ValueError("here")
        raise ValueError("there")

    monkeypatch.setattr(traces, "_KEPT", 1)
    here, there = (trace_of(caught(lambda where=where: fails(where))) for where in (1, 0))  # type: ignore[misc]
    assert 'raise ValueError("here")' in here
    assert 'raise ValueError("there")' in there
    assert len(traces._written) == 1


def test_error_whose_text_can_not_be_read_has_no_trace() -> None:
    """And ends nothing."""

    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def fail() -> None:
        raise Broken

    assert "Broken" in trace_of(caught(fail)) or trace_of(caught(fail)) == ""


@pytest.mark.parametrize("fail", WAYS)
@pytest.mark.parametrize("more", [{}, {"started_ms": 1_767_225_600_000, "delay_ms": 0, "worker": "h.b.1.r"}])
def test_entry_that_was_written_short_is_read_as_it_was(fail: Callable[[], None], more: dict[str, int | str]) -> None:
    """Whatever is in it; and it is one line."""
    error = caught(fail)
    entry = pack_error(
        type(error).__name__, str(error), attempt=2, at_ms=1_767_225_600_500, trace=trace_of(error), **more
    )  # type: ignore[arg-type]
    others = [("Dead", "why"), ("Retry", str(Retry())), ("Retry", "")]
    for whole in (entry, *(pack_error(*other, attempt=1, at_ms=3, **more) for other in others)):  # type: ignore[arg-type]
        for row in (b'{"t":1767225600000,"job":"h"}', b'{"t":4,"job":"h"}', b'{"job":"h"}', b""):
            short = shorten(whole, row)
            assert read_error(short, 1_767_225_600_000 if b"17" in row else 4) == orjson.loads(whole)
            assert b"\n" not in short
            assert len(short) < len(whole) - 20
        assert read_error(whole, 4) == orjson.loads(whole)


def test_nought_is_kept_where_nothing_stands_behind_it() -> None:
    """A run that took no millisecond, and a retry at once."""
    for more in ({"started_ms": 3}, {"started_ms": 3, "delay_ms": 0}, {"delay_ms": 0}):
        whole = pack_error("ValueError", "no", attempt=1, at_ms=3, **more)
        assert read_error(shorten(whole, b'{"t":3,"job":"h"}'), 3) == orjson.loads(whole)


def test_error_of_a_plain_failure_takes_two_hundred_bytes() -> None:
    """A job that waits for its second attempt keeps it in the memory of the server."""
    entry = pack_error(
        "ValueError",
        "fails",
        attempt=1,
        at_ms=1_767_225_600_500,
        started_ms=1_767_225_600_400,
        delay_ms=1000,
        worker="web-1.12345678.4242.abcdefgh",
        trace='Traceback (most recent call last):\n  File "/srv/app/tasks.py", line 12, in deliver\n'
        '    raise ValueError("fails")\nValueError: fails\n',
    )
    assert len(shorten(entry, b'{"t":1767225600000,"job":"deliver"}')) < 190
    assert shorten(b"", b"") == b""


@pytest.mark.parametrize("errors", [b"", b"\n", b"[1]", b"\n[1]\n\n[2]\n", b"[1]\n[2]\n\n\n"])
def test_what_a_spool_noted_stands_before_a_row_without_hiding_it(errors: bytes) -> None:
    """Whatever empty lines somebody's editor left: an empty line is where the row begins."""
    note = _note(1, 0, 0, errors)
    row, told = apart(note + b'\n\n{"t":1}', None)
    assert row == b'{"t":1}'
    assert b"".join(read_note(told).errors) == errors.replace(b"\n", b"")
