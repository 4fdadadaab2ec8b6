"""The traceback of a failed attempt as text. Most failures come by a few ways: what is written of a way is kept."""

from __future__ import annotations

import traceback
from types import CodeType, TracebackType

#: The innermost frames that are shown.
FRAMES = 20
#: Ways that are remembered: in a worker of many handlers some hundred kilobytes.
_KEPT = 256
#: Of these the interpreter says more than their text: where in the source, what was meant instead, what is inside.
_TALKATIVE = (SyntaxError, NameError, AttributeError, ImportError, BaseExceptionGroup)

_Way = tuple[tuple[CodeType, int], ...]
_written: dict[_Way, str] = {}


def trace_of(error: BaseException) -> str:
    """As `traceback.format_exception` has it, without the frame that called the handler; "" where it can't be had."""
    try:
        first = error.__traceback__.tb_next if error.__traceback__ else None
        if not _is_plain(error):
            return "".join(traceback.format_exception(type(error), error, first, limit=-FRAMES))
        return f"Traceback (most recent call last):\n{_frames(first)}{_last_line(error)}"
    except BaseException:  # noqa: BLE001 - a broken __str__ must not end the worker
        return ""


def _is_plain(error: BaseException) -> bool:
    """It came of no other, and says nothing beside its text."""
    is_alone = error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)
    return is_alone and not isinstance(error, _TALKATIVE) and not getattr(error, "__notes__", None)


def _frames(first: TracebackType | None) -> str:
    way = tuple(_steps(first)[-FRAMES:])
    text = _written.get(way)
    if text is None:
        text = "".join(traceback.format_tb(first, limit=-FRAMES))
        if len(_written) >= _KEPT:
            _written.clear()
        _written[way] = text
    return text


def _steps(at: TracebackType | None) -> list[tuple[CodeType, int]]:
    steps = []
    while at is not None:
        steps.append((at.tb_frame.f_code, at.tb_lasti))
        at = at.tb_next
    return steps


def _last_line(error: BaseException) -> str:
    kind, text = type(error), str(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    return f"{name}: {text}\n" if text else f"{name}\n"
