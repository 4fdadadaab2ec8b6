"""The command line. This package parses, asks the app or the store, and prints; what is decided, is decided below it.

`main` is the only way in: every error and every way to stop becomes an exit code there, see `endings`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from batchq.cli import endings
from batchq.cli.group import cli

#: What the script of `batchq completion` sets to ask for completions.
COMPLETE = "_BATCHQ_COMPLETE"


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command line and answers the exit code."""
    return endings.run(lambda: _command(list(sys.argv[1:] if args is None else args)))


def _command(args: list[str]) -> object:
    # The shell's variable, no setting of ours.
    instruction = os.environ.get(COMPLETE)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "batchq", COMPLETE, instruction)
    # Not cli.main(): it would make a failure of a reader that closed the pipe.
    with cli.make_context("batchq", args) as ctx:
        return cli.invoke(ctx)
