"""How a command ends: the one place that turns errors and interruptions into exit codes and one line on stderr.

0 done · 1 failed · 2 wrong usage · 3 the app can't be loaded · 4 the store can't be reached · 130 interrupted.
A reader that closes the pipe early (`| head`) is no failure: 0. A full disk behind stdout is one: 1.
With the setting `debug` (BATCHQ_DEBUG=1) the traceback is shown as well. `start` adds 5: the watchdog gave up.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator

import click

from batchq.errors import AppError, BatchqError, ConfigError, StoreUnavailable

DONE, FAILED, USAGE, NO_APP, NO_STORE, INTERRUPTED = 0, 1, 2, 3, 4, 130

#: Errors without a name that are those of a write to stdout; what can't be opened, forked or found is none of its.
_OF_OUTPUT = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE, errno.EAGAIN))

_debug = False


class OutputFailed(Exception):
    """What the command found could not be written to stdout."""


class Failed(Exception):
    """The command did not do all that was asked; what went wrong was said already."""


def run(command: Callable[[], object]) -> int:
    """Runs the command and answers its exit code: what it returned, or what its error stands for."""
    try:
        _prepare()
        answer = command()
        flush()
    except BrokenPipeError:
        _abandon_stdout()
        return DONE
    except BaseException as error:  # noqa: BLE001 - this is where all of them end
        return _end(error)
    return answer if isinstance(answer, int) else DONE


def _end(error: BaseException) -> int:
    if _debug or _debug_variable():
        import traceback

        traceback.print_exception(error)
    match error:
        case click.exceptions.Exit(exit_code=code) | SystemExit(code=int(code)):
            return _flushed(code)
        case SystemExit(code=code):
            return _flushed(DONE if code is None else FAILED)
        case Failed():
            return _flushed(FAILED)
        case KeyboardInterrupt() | click.Abort():
            _abandon_stdout()
            return INTERRUPTED
        case click.UsageError():
            where = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
            complain(f"{' '.join(error.format_message().split()).rstrip('.')}{where}")
            return USAGE
        case BatchqError():
            complain(str(error) or type(error).__name__)
            return code_of(error)
        case OutputFailed() | OSError():
            _abandon_stdout()
            complain(_os_text(error))
            return FAILED
        case _:
            complain(
                f"{type(error).__name__}: {error}. That is a bug of batchq; please report it with what the same command"
                " says under BATCHQ_DEBUG=1"
            )
            return FAILED


def show_tracebacks(wanted: bool) -> None:
    """What the setting `debug` says, once the settings could be read, or -v."""
    global _debug
    _debug = _debug or wanted


def _debug_variable() -> bool:
    """Read here as well as in config, which may be what failed."""
    return os.environ.get("BATCHQ_DEBUG", "").strip().lower() in ("1", "true", "yes", "on")


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """A request to end is met as Ctrl-C is: what was begun is put in order."""
    import signal

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def code_of(error: BatchqError) -> int:
    """The exit code that this error stands for."""
    match error:
        case ConfigError():
            return USAGE
        case AppError():
            return NO_APP
        case StoreUnavailable():
            return NO_STORE
        case _:
            return FAILED


def say(message: str) -> None:
    """One message to stderr. A stderr that is closed or full silences it: there is nowhere left to say so."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(message + "\n")
        sys.stderr.flush()


def complain(message: str) -> None:
    """The line of an error."""
    say(f"batchq: error: {message}")


def flush() -> None:
    """Raises OutputFailed where what was written to stdout can't be kept, BrokenPipeError where nobody reads it."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(_os_text(error)) from error


def _flushed(code: int) -> int:
    try:
        flush()
    except (OutputFailed, BrokenPipeError) as error:
        _abandon_stdout()
        if isinstance(error, OutputFailed):
            complain(str(error))
            return code or FAILED
    return code


def _os_text(error: BaseException) -> str:
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    of = error.filename or ("stdout" if error.errno in _OF_OUTPUT else "")
    return f"{of}: {error.strerror}" if of else error.strerror


def _prepare() -> None:
    """Text that the terminal's encoding can't show is escaped instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _abandon_stdout() -> None:
    """What is still buffered goes nowhere, so that the interpreter does not fail on it once more at its end."""
    if sys.stdout is None:
        return
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
