"""`batchq completion`: the script by which a shell completes commands and options."""

from __future__ import annotations

import click

from batchq.cli import COMPLETE
from batchq.cli.group import cli
from batchq.cli.output import write


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes SHELL complete commands and options. A line for its start-up file:

    \b
    eval "$(batchq completion bash)"      in ~/.bashrc; zsh in ~/.zshrc
    batchq completion fish | source       in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    write(made(cli, {}, "batchq", COMPLETE).source())
