"""Events: one line each, the same keys everywhere, for people and for programs."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq import context, log
from batchq.job import Claim
from batchq.registry import HandlerSpec
from batchq.worker.runner import Prepared


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    logger = log.logger
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def lines_of(format: str, level: str, /, *events: tuple[Any, ...], **keys: Any) -> list[str]:
    stream = io.StringIO()
    log.setup(format, level, stream)
    for severity, verb in events:
        log.event(severity, verb, **keys)
    return stream.getvalue().splitlines()


def test_an_event_is_one_line_verb_first() -> None:
    """Time in UTC, level, verb, then the keys in the order that they were given; None is left out."""
    [line] = lines_of("text", "info", ("warning", "reaped"), queue="mail", job="01h", token=3, late_ms=None, why="a b")
    stamp, level, text = line.split(" ", 2)
    assert len(stamp) == len("2026-01-01T00:00:00.000Z")
    assert stamp.endswith("Z")
    assert level == "warning"
    assert text == 'reaped queue=mail job=01h token=3 why="a b"'


def test_as_json_an_event_is_one_object() -> None:
    """Numbers stay numbers, and the event's own keys never hide time, level and event."""
    [line] = lines_of(
        "json", "info", ("error", "died"), queue="mail", token=3, share=0.5, odd=float("nan"), ids=["a", 1], level="x"
    )
    entry = json.loads(line)
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "error",
        "event": "died",
        "queue": "mail",
        "token": 3,
        "share": 0.5,
        "odd": "nan",
        "ids": ["a", 1],
    }


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=50))
def test_no_text_breaks_a_line_or_a_terminal(text: str) -> None:
    """Whatever a value holds, an event is one printable line, and JSON reads it back."""
    shown = log.show(text)
    assert shown.isprintable()
    assert shown.startswith('"') == (not text or not text.isprintable() or any(mark in text for mark in " \"'=\\"))
    [line] = lines_of("text", "info", ("info", "said"), text=text)
    assert line.endswith(f"said text={shown}")
    [line] = lines_of("json", "info", ("info", "said"), text=text)
    assert line.isprintable()
    assert json.loads(line)["text"] == text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "true"),
        (3, "3"),
        (0.1 + 0.2, "0.3"),
        ("", '""'),
        ("a=b", '"a=b"'),
        ("\x1b[2J", '"\\u001b[2J"'),
        ("\x9b2J", '"\\u009b2J"'),
        ('say "x"', '"say \\"x\\""'),
        ("a\nb", '"a\\nb"'),
        ("\u202e", '"\\u202e"'),
        ("grün", "grün"),
        ("x" * 3000, "x" * 2000 + "..."),
    ],
)
def test_values_are_quoted_where_they_must_be(value: object, shown: str) -> None:
    """Plain words stand as they are; what a terminal or a parser would act on is escaped."""
    assert log.show(value) == shown


def test_what_is_below_the_level_is_not_written() -> None:
    """info shows info and above."""
    events = ("debug", "a"), ("info", "b"), ("warning", "c")
    assert [line.split()[2] for line in lines_of("text", "info", *events)] == ["b", "c"]
    assert [line.split()[2] for line in lines_of("text", "error", *events)] == []


def test_a_traceback_follows_its_event() -> None:
    """Behind the line as text, inside the object as JSON."""
    try:
        raise OSError("the disk is away")
    except OSError as error:
        for format in ("text", "json"):
            stream = io.StringIO()
            log.setup(format, "info", stream)
            log.event("error", "hook_failed", exc=error)
            first, *rest = stream.getvalue().splitlines()
            trace = json.loads(first)["trace"] if format == "json" else "\n".join(rest)
            assert trace.startswith("Traceback")
            assert trace.endswith("OSError: the disk is away")
            assert (rest == []) == (format == "json")


def test_without_setup_events_reach_the_program_s_own_logging(caplog: pytest.LogCaptureFixture) -> None:
    """A producer inside a web server gets them as text, through the logger `batchq`."""
    with caplog.at_level(logging.INFO, logger="batchq"):
        log.event("info", "spooled", queue="mail", jobs=3)
    assert [record.getMessage() for record in caplog.records] == ["spooled queue=mail jobs=3"]


def test_setup_again_replaces_what_it_set() -> None:
    """No line is written twice; another's handler stays."""
    first, second = io.StringIO(), io.StringIO()
    log.setup("text", "info", first)
    log.setup("text", "info", second)
    log.event("info", "once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


@contextlib.contextmanager
def bare_root() -> Iterator[logging.Logger]:
    """The root logger without handlers, as in a program that has set up none; pytest's own come back."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    root.handlers[:] = []
    yield root
    root.handlers[:], root.level = before[0], before[1]


@contextlib.contextmanager
def a_job() -> Iterator[None]:
    spec = HandlerSpec("deliver", print, "mail")
    token = context.enter(Prepared(Claim("mail", "01h", 3, b"", forgiven=1), spec, [], {}, 5, 0, 0, 0))
    yield
    context.leave(token)


def test_what_handlers_log_names_their_job(capsys: pytest.CaptureFixture[str]) -> None:
    """Where the app has no logging of its own: an event like all others, with the job's keys, as text and as JSON."""
    with bare_root():
        log.setup_all("json", "info")
        with a_job():
            logging.getLogger("shop.mail").info("sent to %s", "a b")
        logging.getLogger("shop").warning("outside")
        logging.getLogger("shop").debug("not wanted")
    inside, outside = map(json.loads, capsys.readouterr().err.splitlines())
    assert inside.pop("time")
    assert inside == {
        "level": "info",
        "event": "message",
        "logger": "shop.mail",
        "queue": "mail",
        "job": "01h",
        "token": 3,
        "attempt": 2,
        "handler": "deliver",
        "text": "sent to a b",
    }
    assert "job" not in outside
    with bare_root():
        log.setup_all("text", "info")
        with a_job():
            logging.getLogger("shop").info("sent")
    line = capsys.readouterr().err
    assert line.split(" ", 1)[1] == (
        "info message logger=shop queue=mail job=01h token=3 attempt=2 handler=deliver text=sent\n"
    )


def test_an_apps_own_logging_learns_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    """Its handlers stay as they are; its formats can name the job. Events of ours are not written twice."""
    stream = io.StringIO()
    own = logging.StreamHandler(stream)
    own.setFormatter(logging.Formatter("%(queue)s %(job)s %(attempt)s %(message)s"))
    with bare_root() as root:
        root.addHandler(own)
        for _ in range(2):
            log.setup_all("text", "info")
        with a_job():
            logging.getLogger("shop").warning("sent")
            logging.getLogger("shop").warning("mine", extra={"job": "own"})
        logging.getLogger("shop").warning("idle")
        log.event("info", "started")
    assert stream.getvalue().splitlines() == ["mail 01h 2 sent", "mail own 2 mine", "- - 0 idle"]
    assert len(own.filters) == 1
    assert capsys.readouterr().err.count("started") == 1
