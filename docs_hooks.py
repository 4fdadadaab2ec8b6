"""What `mkdocs build` needs beside the pages: those that are made from the code, and files from elsewhere.

A page that stands nowhere as text is made here, so that it can't say anything else than the code does.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent

#: Links that leave the folder of the pages, as they work on a checkout, and where they lead on the site.
_ELSEWHERE = {
    "../spool/FORMAT.md": "reference/spool-format.md",
    "../ARCHITECTURE.md": "reference/architecture.md",
}


def settings_page() -> str:
    """Every setting: how it is given, its default, what it is for."""
    from batchq.cli.start import HELP
    from batchq.config import Settings, rules

    defaults = {key: value for key, value, _ in Settings().effective()}
    # These depend on the machine.
    defaults |= {"processes": "one a CPU", "spool": "/var/lib/batchq/spool, or ~/.local/state/batchq/spool"}
    lines = [
        "# Settings",
        "",
        "Each setting is a flag of `batchq start`, a variable, and a key of `[tool.batchq]` in",
        "`pyproject.toml`, in this order; `App(lease=...)` stands between flag and variable. Durations are",
        "`30s`, `5m`, `1h`, `7d`, `500ms` or a number of seconds, sizes `64KiB` or a number of bytes. `batchq",
        "config` shows the values in effect and where each comes from. Unknown names are errors that name the",
        "nearest.",
        "",
        "| setting | flag | variable | default | what |",
        "|---|---|---|---|---|",
    ]
    for key, rule in rules().items():
        what = re.sub(r"\s*\[default: .*?\]", "", HELP.get(key, "Where the App is: module or module:name."))
        given = f"`{'APP' if key == 'app' else rule.flag}` | `BATCHQ_{key.upper()}`"
        lines.append(f"| `{key}` | {given} | {defaults[key] or 'none'} | {what} |")
    return "\n".join(lines) + "\n"


def cli_page() -> str:
    """Every command's own help."""
    from batchq.cli.group import cli

    parts = ["# Command line", "", "What `batchq COMMAND --help` says.", "", "## batchq", "", _help(cli, "batchq")]
    for path, command in _commands(cli, "batchq"):
        parts += [f"## {path}", "", _help(command, path)]
    return "\n".join(parts)


def _commands(group: click.Group, path: str) -> Any:
    ctx = click.Context(group, info_name=path)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")


def _help(command: click.Command, path: str) -> str:
    ctx = click.Context(command, info_name=path, max_content_width=100, terminal_width=100)
    return f"```text\n{command.get_help(ctx)}\n```\n"


def redis_page() -> str:
    """The section of ARCHITECTURE.md."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    section = text.partition("\n## Redis\n")[2].partition("\n## ")[0]
    return f"# Redis keys\n{section}"


#: Pages that are made: where, and by what.
MADE = {
    "reference/settings.md": settings_page,
    "reference/cli.md": cli_page,
    "reference/redis-keys.md": redis_page,
    "reference/spool-format.md": lambda: (ROOT / "spool" / "FORMAT.md").read_text("utf-8"),
    "reference/architecture.md": lambda: (ROOT / "ARCHITECTURE.md").read_text("utf-8"),
}


def on_config(config: Any) -> Any:
    """A page that the menu does not name yet stands at the end of the guides: none is left out."""
    named = set(re.findall(r"[\w/-]+\.md", str(config.nav)))
    guides: list[Any] = next(part["Guides"] for part in config.nav if "Guides" in part)
    guides += [path.name for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in named]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are made, and what pages link to outside their folder."""
    for path, make in MADE.items():
        files.append(File.generated(config, path, content=make()))
    for folder in ("deploy", "examples"):
        for path in sorted((ROOT / folder).iterdir()):
            if path.is_file():
                files.append(File.generated(config, f"{folder}/{path.name}", content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links that work on a checkout lead to the same thing on the site."""
    up = "../" * page.file.src_uri.count("/")

    def lead(match: re.Match[str]) -> str:
        target, hash_, anchor = match[1].partition("#")
        if target in _ELSEWHERE:
            return f"]({up}{_ELSEWHERE[target]}{hash_}{anchor})"
        if target.startswith(("../deploy", "../examples")):
            name = target.removeprefix("../").rstrip("/")
            # A folder has no page: its first file stands for it.
            path = ROOT / name
            name = f"{name}/{sorted(one.name for one in path.iterdir() if one.is_file())[0]}" if path.is_dir() else name
            return f"]({up}{name})"
        return match[0]

    if page.file.src_uri in MADE:
        # Written for the top of the checkout.
        return re.sub(r"\]\((?!https?:|#)([^)]+)\)", _from_top(page), markdown)
    return re.sub(r"\]\((\.\./[^)]+)\)", lead, markdown)


def _from_top(page: Any) -> Any:
    def lead(match: re.Match[str]) -> str:
        name = match[1].removeprefix("docs/")
        return f"](../{name})" if match[1].startswith("docs/") else match[0]

    return lead
