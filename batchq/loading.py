"""Finds the user's App: `module:app` on the command line, in BATCHQ_APP or in [tool.batchq].

A fault in the user's code is shown as the user's own line, without the frames of the machinery around it.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from batchq.errors import AppError, ConfigError

if TYPE_CHECKING:
    from batchq.app import App

#: Lines of the user's own code that are shown, the innermost last.
FRAMES = 3


def load_app(spec: str) -> App:
    """Imports `module:app`, or the only App of `module`, with the current directory on sys.path.

    Raises ConfigError for a spec of another form, AppError where the module raises, is not found or holds no App there.
    """
    module_name, path = split(spec)
    put_here_on_path()
    return find_app(import_module(module_name), path, spec)


def split(spec: str) -> tuple[str, str]:
    """(module, attribute path) of `module:app`, the path "" of `module` alone.

    Raises ConfigError that shows how the given one would be written.
    """
    module, colon, path = spec.partition(":")
    named = (*module.split("."), *(path.split(".") if colon else ()))
    if all(part.isidentifier() for part in named) and not module.endswith(".py"):
        return module, path
    as_module = module.removeprefix("./").removesuffix(".py").strip("/").replace("/", ".") or "module"
    raise ConfigError(f"APP: expected module:app, found {spec!r:.200}; write {as_module}:{path or 'app'}")


def put_here_on_path() -> None:
    """The current directory comes first on sys.path, where python itself would put it."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)


def import_module(name: str) -> ModuleType:
    """The user's module. Raises AppError for whatever it raises but an interruption."""
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise AppError(_not_found(error.name)) from error
        raise AppError(f"{name} can't be imported: {describe(error)}") from error
    except BaseException as error:  # the module's own sys.exit() is its fault as well
        raise AppError(f"{name} can't be imported: {describe(error)}") from error


def find_app(module: ModuleType, path: str, spec: str) -> App:
    """The App at that path inside the module. Raises AppError that names what is near, or what stands there."""
    from batchq.app import App

    if not path:
        path = _only_app(module, spec)
    found: object = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise AppError(f"{spec}: {module.__name__} has no {path!r}{_near(module, path)}")
        found = getattr(found, part)
    if isinstance(found, App):
        return found
    kind = "a class" if isinstance(found, type) else f"of type {type(found).__name__}"
    raise AppError(f"{spec}: {path!r} is {kind}, not a batchq App{_near(module, path)}")


def _only_app(module: ModuleType, spec: str) -> str:
    apps = _apps_of(module)
    if "app" in apps:
        return "app"
    if len(apps) == 1:
        return apps[0]
    raise AppError(f"{spec}: expected one App in {module.__name__}, found {len(apps)}{_near(module, 'app')}")


def _apps_of(module: ModuleType) -> list[str]:
    from batchq.app import App

    return [name for name, value in vars(module).items() if isinstance(value, App)]


def describe(error: BaseException) -> str:
    """The error in one line, and the lines of the user's own code that it came through."""
    text = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, SyntaxError):
        # Its own lines name the place; the last one the fault.
        *place, fault = text.splitlines()
        return "\n".join([fault, *place])
    frames = "".join(traceback.format_list(_own_frames(error)[-FRAMES:])).rstrip()
    if isinstance(error, SystemExit):
        text = f"it called sys.exit({error.code!r:.100}) while it was imported"
    return f"{text}\n{frames}" if frames else text


def _own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames that are neither import machinery, nor batchq's, nor a library's; all real files if none is left."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    here = str(Path(__file__).parent)
    frames = [frame for frame in frames if not frame.filename.startswith(here + os.sep)]
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    own = [frame for frame in frames if not any(frame.filename.startswith(lib + os.sep) for lib in libraries)]
    return own or frames


def _not_found(name: str) -> str:
    parent, _, last = name.rpartition(".")
    folder = Path(os.getcwd(), *parent.split(".")) if parent else Path.cwd()
    try:
        there = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    except OSError:
        there = set()
    near = get_close_matches(last, sorted(there), n=3)
    hint = f"; near it in {folder} is {', '.join(near)}" if near else f"; {folder} comes first on the path"
    return f"{name}: no such module{hint}"


def _near(module: ModuleType, path: str) -> str:
    apps = _apps_of(module)
    if apps:
        return f"; the App there is {' or '.join(f'{module.__name__}:{name}' for name in apps)}"
    names = [name for name in vars(module) if not name.startswith("__")]
    near = get_close_matches(path, names, n=3)
    return f"; near it is {', '.join(near)}" if near else f"; write {path.partition('.')[0]} = App(...) there"
