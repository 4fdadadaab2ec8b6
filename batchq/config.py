"""Settings: what they are, where they come from, and what is wrong with them. The only reader of the environment.

Precedence: flags of the command line, then what the app's code says, then BATCHQ_* variables, then `[tool.batchq]` of
the nearest pyproject.toml (upward from the working directory), then the defaults. A setting `lease` is `--lease`,
`App(lease=)`, `BATCHQ_LEASE` and `lease`. An empty variable is an unset one; names that begin with `BATCHQ__` are the
program's own. Unknown names and impossible values are errors, never ignored. This module opens no store.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

from batchq.errors import ConfigError
from batchq.kinds import (
    DAY,
    HOUR,
    KIB,
    MAX_COUNT,
    MIB,
    MINUTE,
    SECOND,
    Choice,
    Count,
    Duration,
    DurationOr,
    Flag,
    Kind,
    Queues,
    Size,
    Text,
    Wrong,
)

#: The most workers of one master, and the most jobs of one worker at once.
MAX_PROCESSES, MAX_CONCURRENCY = 256, 1024


def cpus() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processes() -> int:
    return min(cpus(), MAX_PROCESSES)


def _setting(default: Any, kind: Kind, *, key: str = "", flag: str = "") -> Any:
    metadata = {"kind": kind, "key": key, "flag": flag}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


_PATH = re.compile(r"[^\0]{1,4096}")
_URL = re.compile(r"(?:unix|rediss?(?:\+sentinel|\+cluster)?)://\S+|spool:[^\0]+|memory:")
_APP = re.compile(r"\S+")
_HOST = re.compile(r"[A-Za-z0-9.:_-]{1,253}")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")


@dataclass(frozen=True, slots=True)
class Settings:
    """The effective settings. Made by `load`; the defaults alone are `Settings()`."""

    #: The store, see `stores.KINDS`; None for the spool at `spool`.
    url: str | None = _setting(
        None, Text(_URL, "store", "redis://127.0.0.1:6379/0, spool:PATH or memory:", optional=True)
    )
    #: Where the App is: module or module:name.
    app: str | None = _setting(None, Text(_APP, "app", "module:app", optional=True))
    #: What all Redis keys begin with.
    prefix: str = _setting("bq", Text(_PREFIX, "key prefix", "up to 64 letters, digits or . _ : -"))
    #: A worker's promise to be alive; renewed each third of it.
    lease_ms: int = _setting(15 * SECOND, Duration(low=100, high=DAY))
    #: From the soft limit (JobTimeout, JobCancelled) to SIGKILL.
    grace_ms: int = _setting(5 * SECOND, Duration(low=0, high=DAY))
    #: The time limit of handlers that have none of their own.
    timeout_ms: int | None = _setting(None, Duration(low=1, optional=True))
    #: Tries before a job is dead, for handlers that say nothing else.
    max_attempts: int = _setting(5, Count())
    #: Crashes of its worker before a job is dead as poison.
    max_crashes: int = _setting(3, Count())
    #: Losses (of host or master) before a job is dead as poison.
    max_lost: int = _setting(10, Count())
    #: How long results stay where a handler asks for them.
    result_keep_ms: int = _setting(HOUR, Duration())
    #: The greatest result that is kept.
    result_max_bytes: int = _setting(64 * KIB, Size(high=16 * MIB))
    #: How long the dead stay.
    dead_keep_ms: int = _setting(30 * DAY, Duration(high=3660 * DAY))
    #: How many dead jobs stay, a queue; the oldest go first.
    dead_limit: int = _setting(100_000, Count(low=0))
    #: The greatest row (name, arguments, options) of a job.
    max_payload_bytes: int = _setting(MIB, Size(low=256, high=16 * MIB))
    #: How many jobs may be pending for an enqueue to be taken: in each queue (1000), or in some (orders:500).
    max_pending: tuple[tuple[str, int], ...] = _setting(
        (), Queues(high=MAX_COUNT, bare="*", example="10000,orders:500")
    )
    #: What a producer does about a full queue: raise, spool, or wait so long and then raise.
    when_full: str | int = _setting("raise", DurationOr(("raise", "spool")))
    #: How long enqueue may wait for a store that does not answer.
    enqueue_timeout_ms: int = _setting(SECOND, Duration(high=HOUR))
    #: How long a connection may be silent inside a call.
    socket_timeout_ms: int = _setting(5 * SECOND, Duration(low=10, high=HOUR))
    #: How long an enqueue call can be repeated safely.
    mark_ttl_ms: int = _setting(7 * DAY, Duration(low=MINUTE))
    #: How long an id given by a caller is known after the job's end.
    remember_ms: int = _setting(DAY, Duration(low=0))
    #: How long a graceful stop waits for running jobs.
    shutdown_timeout_ms: int = _setting(25 * SECOND, Duration(low=0, high=DAY))
    #: How long a job without a handler is parked before it is dead.
    unknown_grace_ms: int = _setting(HOUR, Duration(low=0))
    #: How often the master looks for what is due, expired or too old; at most a third of the lease unless given.
    sweep_ms: int = _setting(SECOND, Duration(low=10, high=HOUR))
    #: Workers of one master; by default one a CPU.
    processes: int = _setting(_processes, Count(high=MAX_PROCESSES), flag="-n")
    #: Jobs that one worker runs at once: coroutines in its event loop, plain functions on threads.
    concurrency: int = _setting(1, Count(high=MAX_CONCURRENCY), flag="-c")
    #: Plain functions run on threads, without a word of their own (`@app.job(threads=True)`).
    threads: bool = _setting(False, Flag())
    #: (queue, weight) that workers serve; empty for those that the handlers name, and `default`.
    queues: tuple[tuple[str, int], ...] = _setting((), Queues(), flag="-q")
    #: Serve the queues in strict order instead of by weight.
    strict_order: bool = _setting(False, Flag())
    #: Replace a worker after about so many jobs; None: never.
    max_jobs: int | None = _setting(None, Count(optional=True))
    #: Replace a worker, between jobs, above this resident memory.
    max_rss_bytes: int | None = _setting(None, Size(low=MIB, optional=True))
    #: Kill a worker above this resident memory: a crash.
    max_rss_hard_bytes: int | None = _setting(None, Size(low=MIB, optional=True))
    #: Without a claim for so long, although jobs are ready and a worker is idle, something is done; 0: never.
    watchdog_ms: int = _setting(MINUTE, Duration(low=0))
    #: text for people, json for programs: one event a line either way.
    log_format: str = _setting("text", Choice(("text", "json")))
    #: The least level that is logged.
    log_level: str = _setting("info", Choice(("debug", "info", "warning", "error")))
    #: The file spool: the store where there is no url.
    spool: str = _setting("", Text(_PATH, "path", "a directory", path=True))
    #: Jobs that the store can't take wait in the spool of this host until it is back.
    fallback: bool = _setting(True, Flag())
    #: Also where the spool does not outlive this machine or container.
    fallback_ephemeral: bool = _setting(False, Flag())
    #: When a job that waited leaves the spool: by the server's reply, once it is on its disk, or after 5 s of grace.
    forward_confirm: Literal["reply", "waitaof", "grace"] = _setting("reply", Choice(("reply", "waitaof", "grace")))
    #: A producer goes on spooling while jobs of this host wait, so that none overtakes them.
    ordered: bool = _setting(False, Flag())
    #: What a power cut may take from the spool: power (finishes), strict (nothing), process (the tail).
    durability: Literal["power", "strict", "process"] = _setting("power", Choice(("power", "strict", "process")))
    #: The master's pid file; scoreboard and control socket stand beside it.
    pid_file: str | None = _setting(None, Text(_PATH, "path", "a file", optional=True, path=True))
    #: Where Prometheus finds the metrics of this pool, and others its health; None: nowhere. Needs the extra `metrics`.
    metrics_port: int | None = _setting(
        None, Count(0, 65535, optional=True, what="port", write="9464, 0 for one that is free, or none")
    )
    #: The address of that port: 127.0.0.1 for this host alone, 0.0.0.0 for all.
    metrics_host: str = _setting("127.0.0.1", Text(_HOST, "host", "127.0.0.1 or 0.0.0.0"))
    #: Also show the traceback of an error that ends a command.
    debug: bool = _setting(False, Flag())
    #: Setting -> where its value comes from: --lease, App(lease=), BATCHQ_LEASE, a file, default.
    sources: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), compare=False, repr=False)

    def pending_limit(self, queue: str) -> int:
        """How many jobs may be pending in that queue; 0: any number."""
        limits = dict(self.max_pending)
        return limits.get(queue) or limits.get("*", 0)

    @property
    def store_url(self) -> str:
        """The url, or that of the spool where none is given."""
        return self.url or f"spool:{self.spool or default_spool()}"

    @property
    def own_spool(self) -> str:
        """The spool of this host: the store where that is one, else where jobs wait while the store is away."""
        store = self.store_url
        return store.removeprefix("spool:") if store.startswith("spool:") else self.spool or str(default_spool())

    def limits(self) -> dict[str, Any]:
        """What a pool is bound by, and where its fallback is, for its first words: as one would write it."""
        names = ("lease", "timeout", "grace", "max_attempts", "max_rss", "max_jobs")
        shown = {key: rules()[key].kind.show(getattr(self, rules()[key].name)) for key in names}
        return shown | {"fallback": "none" if self.stores_in_spool or not self.fallback else self.spool}

    @property
    def stores_in_spool(self) -> bool:
        """The store is a spool, so that nothing else can be one for it."""
        return not self.store_url.startswith(("redis", "unix"))

    def effective(self) -> list[tuple[str, str, str]]:
        """(setting, value as one would write it, source), in the order of this class; passwords are masked."""
        return [
            (key, masked(rule.kind.show(getattr(self, rule.name))), self.sources.get(key, "default"))
            for key, rule in rules().items()
        ]

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value}" for key, value, source in self.effective() if source != "default")
        return f"Settings({shown})"


class Rule(NamedTuple):
    """How one setting is read: its field's name and kind, and its flag on the command line."""

    name: str
    kind: Any
    flag: str


_SUFFIX = re.compile(r"_(ms|bytes)$")


def _key(one: Field[Any]) -> str:
    return str(one.metadata["key"]) or _SUFFIX.sub("", one.name)


@cache
def rules() -> Mapping[str, Rule]:
    """Setting -> its rule: all settings there are. The field of a setting has its unit behind the name."""
    out: dict[str, Rule] = {}
    for one in fields(Settings):
        if one.metadata:
            key = _key(one)
            out[key] = Rule(one.name, one.metadata["kind"], one.metadata["flag"] or f"--{key.replace('_', '-')}")
    return MappingProxyType(out)


# -- sources --------------------------------------------------------------------------------------------------


class _Source(NamedTuple):
    """Values of one place, with the way it names a setting."""

    values: Mapping[str, object]
    name: Callable[[str], str]
    #: Every value is a string there: numbers and booleans are read from it.
    text: bool
    #: What relative paths are relative to.
    base: Path | None = None


def load(
    overrides: Mapping[str, object] = MappingProxyType({}),
    *,
    code: Mapping[str, object] = MappingProxyType({}),
    environ: Mapping[str, str] = os.environ,
    cwd: str | Path | None = None,
) -> Settings:
    """The effective settings. `overrides` are flags (None: not given), `code` what App(...) was called with.

    Raises ConfigError that names source and key for a value that is wrong, a name that is unknown (with the nearest
    known one), and values that contradict each other.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source in (_file(cwd), _environment(environ), _code(code), _flags(overrides)):
        for key, value in source.values.items():
            values[key] = read_value(key, value, source.name(key), text=source.text, base=source.base)
            sources[key] = source.name(key)
    if "sweep" not in values:
        values["sweep"] = max(10, min(SECOND, values.get("lease", SECOND * 3) // 3))
    values.setdefault("spool", str(default_spool(environ)))
    _check_together(values, sources)
    known = rules()
    return Settings(**{known[key].name: value for key, value in values.items()}, sources=MappingProxyType(sources))


def read_value(key: str, value: object, source: str, *, text: bool = False, base: Path | None = None) -> Any:
    """One value of the setting `key`, as it stands in Settings. Raises ConfigError that names key and source."""
    kind = rules()[key].kind
    try:
        out = kind.read(value, text)
    except Wrong as wrong:
        shown = masked(f'"{value}"' if isinstance(value, str) else repr(value))
        raise ConfigError(f"{key}: {shown:.200} {wrong.what} (from {source}); write {wrong.write}") from None
    if base is not None and isinstance(kind, Text):
        if kind.path and out is not None:
            out = str(base / out)
        elif key == "url" and str(out).startswith("spool:"):
            out = f"spool:{base / str(out)[6:]}"
    return out


def unknown(key: str, source: str, known: Sequence[str]) -> ConfigError:
    """The error for a name that is no setting, with the nearest one."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5) or difflib.get_close_matches(key.lower(), known, n=1)
    if not near:
        # Another case or another separator is the commonest slip, and the least alike by letters.
        bare = {re.sub(r"[^a-z]", "", name.lower()): name for name in known}
        near = difflib.get_close_matches(re.sub(r"[^a-z]", "", key.lower()), list(bare), n=1, cutoff=0.5)
        near = [bare[name] for name in near]
    hint = f"did you mean {near[0]}?" if near else f"known are: {', '.join(known)}"
    return ConfigError(f"{key:.100}: no such setting (from {source}); {hint}")


def _named(values: Mapping[str, object], name: Callable[[str], str], *, text: bool) -> _Source:
    for key in values:
        if key not in rules():
            raise unknown(key, name(key), list(rules()))
    return _Source(values, name, text)


def _flags(values: Mapping[str, object]) -> _Source:
    def name(key: str) -> str:
        return rules()[key].flag if key in rules() else f"--{key.replace('_', '-')}"

    return _named({key: value for key, value in values.items() if value is not None}, name, text=True)


def _code(values: Mapping[str, object]) -> _Source:
    return _named(values, lambda key: f"App({key}=)", text=False)


def check_code(values: Mapping[str, object]) -> None:
    """Reads what App(...) was called with, for its errors: at import, where they are made."""
    source = _code(values)
    for key, value in source.values.items():
        read_value(key, value, source.name(key))


# BATCHQ__x is the program's own; the rest is what Kubernetes sets in every pod beside a service called batchq.
_NOT_OURS = re.compile(
    r"BATCHQ__\w*|BATCHQ_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)"
)


# A service called batchq-metrics sets a variable that is one of ours, to this.
_SERVICE = re.compile(r"(?:tcp|udp|sctp)://.*", re.IGNORECASE)

_OWN = "BATCHQ__"


def own(name: str) -> str:
    """The variable by which one process of this program tells another."""
    return _OWN + name


def take_own(name: str) -> str | None:
    """What such a variable says to this process, which keeps it from those that it starts."""
    return os.environ.pop(own(name), None)


def environment() -> dict[str, str]:
    """All variables as they are now, without those of `own`."""
    return {name: value for name, value in os.environ.items() if not name.startswith((own("HANDOVER"), own("CHECK")))}


def take_manager(pid: int) -> tuple[str, int]:
    """NOTIFY_SOCKET of a service manager ("": there is none), and the microseconds of WATCHDOG_USEC where that is meant
    for this process (0: no). They are kept from those that this process starts."""
    address = os.environ.pop("NOTIFY_SOCKET", "")
    usec, meant = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
    ours = usec.isdigit() and meant in ("", str(pid))
    return address, int(usec) if ours else 0


def working_folder() -> str:
    """The current folder, by the name under which the shell entered it where that still leads there."""
    here = os.getcwd()
    named = os.environ.get("PWD") or here
    try:
        return named if os.path.isabs(named) and os.path.samefile(named, here) else here
    except OSError:
        return here


def _environment(environ: Mapping[str, str]) -> _Source:
    known = {f"BATCHQ_{key.upper()}": key for key in rules()}
    values: dict[str, object] = {}
    for variable in sorted(environ):
        if not variable.upper().startswith("BATCHQ_"):
            continue
        if _NOT_OURS.fullmatch(variable) and (variable not in known or _SERVICE.fullmatch(environ[variable])):
            continue
        if variable not in known:
            raise unknown(variable, "the environment", list(known))
        if environ[variable].strip():
            values[known[variable]] = environ[variable]
    return _Source(values, lambda key: f"BATCHQ_{key.upper()}", text=True)


def _file(cwd: str | Path | None) -> _Source:
    path = _pyproject(Path(cwd) if cwd is not None else Path.cwd())
    nothing = _Source({}, str, text=False)
    if path is None:
        return nothing
    where = f"[tool.batchq] of {path}"
    try:
        table = tomllib.loads(path.read_text("utf-8")).get("tool", {}).get("batchq")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: can't be read as TOML ({error}); mend it, or move it out of the way") from error
    if table is None:
        return nothing
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: expected a table, found {table!r:.100}; write [tool.batchq] and a line a setting")
    return _named(table, lambda key: where, text=False)._replace(base=path.parent)


def _pyproject(start: Path) -> Path | None:
    for folder in (start, *start.resolve().parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            return path.resolve()
    return None


#: (smaller, greater, why): refused where both are given and stand the wrong way round.
_ORDER = (
    ("grace", "shutdown_timeout", "a job is killed after its grace, and the stop waits no longer than that"),
    ("sweep", "lease", "an expired lease is seen only by a sweep"),
    ("max_rss", "max_rss_hard", "a worker is replaced before it has to be killed"),
)


def _check_together(values: Mapping[str, Any], sources: Mapping[str, str]) -> None:
    for small, great, why in _ORDER:
        low, high = values.get(small), values.get(great)
        if small in sources and great in sources and low is not None and high is not None and low > high:
            show = rules()[small].kind.show
            raise ConfigError(
                f"{small}: {show(low)} (from {sources[small]}) is more than {great}, {show(high)} "
                f"(from {sources[great]}); {why}: lower {small} or raise {great}"
            )


# -- paths and secrets ----------------------------------------------------------------------------------------

SYSTEM_SPOOL = Path("/var/lib/batchq/spool")


def default_spool(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the spool is when nobody says: the system's place if this user can write there, else the user's own."""
    place = SYSTEM_SPOOL
    # Path.exists raises where a folder above is another user's.
    while not os.path.exists(place):
        place = place.parent
    if os.access(place, os.W_OK | os.X_OK):
        return SYSTEM_SPOOL
    state = environ.get("XDG_STATE_HOME") or ""
    # A relative XDG path is to be ignored, says its specification.
    if not state.startswith("/"):
        try:
            state = str(Path(environ.get("HOME") or "~").expanduser() / ".local" / "state")
        except RuntimeError:
            # A user without a home, as in containers: whoever needs the spool is told that it can't be written.
            return SYSTEM_SPOOL
    return Path(state) / "batchq" / "spool"


# The last @ ends it: a password may hold others. With one slash it is a slip, and a secret all the same.
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://|(?:redis|rediss|unix):/?)(.*)@", re.DOTALL)
_PLAIN_USER = re.compile(r"[\w.-]*")
_QUERY = re.compile(r"([?&;](?:ssl_|sentinel_)?(?:password|passwd|secret|token)=)[^&;\s\"']*", re.IGNORECASE)


def _hide_userinfo(match: re.Match[str]) -> str:
    user, colon, _ = match[2].partition(":")
    # What has no colon, or is no plain name, may be a password in the wrong place.
    shown = f"{user}:" if colon and _PLAIN_USER.fullmatch(user) else ""
    return f"{match[1]}{shown}***@"


def masked(url: str) -> str:
    """The url as it may be shown: no password, also not one that holds @ / : or %, nor one among the parameters."""
    return _QUERY.sub(r"\1***", _USERINFO.sub(_hide_userinfo, url))


def scrub(text: str, url: str | None) -> str:
    """A message of others (an exception, say) without the url's password, as written and percent-decoded."""
    match = _USERINFO.search(url or "")
    if match is None:
        return text
    secret = match[2].partition(":")[2]
    for form in sorted({secret, unquote(secret)}, key=len, reverse=True):
        if form:
            text = text.replace(form, "***")
    return text
