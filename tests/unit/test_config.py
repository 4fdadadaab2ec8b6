"""Settings: precedence, what is refused and how, and that secrets are shown nowhere."""

from __future__ import annotations

import dataclasses
import os
import pwd
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq import config, kinds
from batchq.config import Settings, load, masked, scrub
from batchq.errors import ConfigError


def write_project(folder: Path, body: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(f"[tool.batchq]\n{body}\n")
    return path


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder whose nearest pyproject.toml says nothing of batchq."""
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    return tmp_path


def refusal(**given: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(**given)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_are_those_of_the_interface(here: Path) -> None:
    """Without any source the settings are the documented defaults, and each says that it is one."""
    settings = load(environ={"HOME": "/home/x"}, cwd=here)
    assert (settings.url, settings.app, settings.prefix) == (None, None, "bq")
    assert (settings.lease_ms, settings.grace_ms) == (15_000, 5_000)
    assert (settings.max_attempts, settings.max_crashes, settings.max_lost) == (5, 3, 10)
    assert (settings.result_keep_ms, settings.result_max_bytes) == (3_600_000, 65_536)
    assert (settings.dead_keep_ms, settings.dead_limit) == (30 * 86_400_000, 100_000)
    assert (settings.max_payload_bytes, settings.enqueue_timeout_ms) == (1 << 20, 1_000)
    assert (settings.socket_timeout_ms, settings.mark_ttl_ms) == (5_000, 7 * 86_400_000)
    assert (settings.remember_ms, settings.shutdown_timeout_ms) == (86_400_000, 25_000)
    assert (settings.unknown_grace_ms, settings.timeout_ms, settings.queues) == (3_600_000, None, ())
    assert settings.strict_order is False
    assert 1 <= settings.processes <= 256
    assert {source for _, _, source in settings.effective()} == {"default"}


def test_flags_win_over_code_over_environment_over_file(here: Path) -> None:
    """The documented precedence holds, and each value names the source that won."""
    path = write_project(here, 'lease = "40s"\ngrace = 4\nmax_attempts = 4\nprefix = "file"')
    settings = load(
        {"lease": "10s"},
        code={"lease": "20s", "grace": 2},
        environ={"BATCHQ_LEASE": "30s", "BATCHQ_GRACE": "3", "BATCHQ_MAX_ATTEMPTS": "3"},
        cwd=here,
    )
    assert (settings.lease_ms, settings.grace_ms, settings.max_attempts, settings.prefix) == (10_000, 2_000, 3, "file")
    assert settings.sources == {
        "lease": "--lease",
        "grace": "App(grace=)",
        "max_attempts": "BATCHQ_MAX_ATTEMPTS",
        "prefix": f"[tool.batchq] of {path}",
    }


def test_the_nearest_pyproject_upward_is_read(here: Path) -> None:
    """A command started deep inside a project finds the project's table, not that of a project around it."""
    write_project(here, "max_attempts = 9")
    inner = here / "project"
    deep = inner / "src" / "deep"
    deep.mkdir(parents=True)
    assert load(environ={}, cwd=deep).max_attempts == 9
    write_project(inner, "max_attempts = 7")
    assert load(environ={}, cwd=deep).max_attempts == 7


def test_paths_in_the_file_are_relative_to_the_file(here: Path) -> None:
    """What a project's file names is the same place from every folder of the project."""
    write_project(here, 'spool = "var/spool"\nurl = "spool:./var/other"')
    deep = here / "a" / "b"
    deep.mkdir(parents=True)
    settings = load(environ={}, cwd=deep)
    assert settings.spool == str(here / "var/spool")
    assert settings.url == f"spool:{here / 'var/other'}"
    assert load({"spool": "x"}, environ={}, cwd=deep).spool == "x"


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        ("30s", 30000),
        ("5m", 300000),
        ("1h", 3600000),
        ("2d", 172800000),
        ("500ms", 500),
        ("30", 30000),
        (" 1.5s ", 1500),
        (30, 30000),
        (0.25, 250),
        (timedelta(minutes=2), 120000),
        ("0.0001s", 1),
    ],
)
def test_durations(written: object, ms: int) -> None:
    """All documented ways to write a duration are read, and what is finer than a millisecond is rounded up."""
    assert kinds.duration_ms(written) == ms


@pytest.mark.parametrize(
    "written",
    [
        "half a minute",
        "",
        "-1",
        "-1s",
        "1_000",
        "0x10",
        "\uff11\uff10",
        "inf",
        "nan",
        "1e3",
        "5 min",
        "10ss",
        True,
        None,
        -1,
        float("nan"),
        float("inf"),
        [],
        timedelta(seconds=-1),
    ],
)
def test_no_durations(written: object) -> None:
    """What is no duration is refused, also where int() or float() of Python would take it."""
    with pytest.raises(ValueError, match=r"duration|finite"):
        kinds.duration_ms(written)


@given(st.integers(min_value=0, max_value=10**12))
def test_a_shown_duration_is_read_back(ms: int) -> None:
    """What `batchq check` prints can be written into the file."""
    assert kinds.duration_ms(kinds.show_duration(ms)) == ms


@given(st.integers(min_value=0, max_value=2**60))
def test_a_shown_size_is_read_back(size: int) -> None:
    """The same for sizes."""
    assert kinds.size_bytes(kinds.show_size(size)) == size


@pytest.mark.parametrize(
    ("written", "size"), [("64KiB", 65_536), ("1MiB", 1 << 20), ("2G", 2 << 30), ("100", 100), (7, 7)]
)
def test_sizes(written: object, size: int) -> None:
    """All documented ways to write a size are read."""
    assert kinds.size_bytes(written) == size


def test_a_wrong_value_names_setting_value_source_and_remedy(here: Path) -> None:
    """The message has the four parts, in the form that is promised."""
    message = refusal(environ={"BATCHQ_LEASE": "half a minute"}, cwd=here)
    assert message == 'lease: "half a minute" is no duration (from BATCHQ_LEASE); write 30s or 30'


def test_a_port_has_a_hint_of_its_own(here: Path) -> None:
    """What is shown to write is a port, not any small number."""
    message = refusal(environ={"BATCHQ_METRICS_PORT": "70000"}, cwd=here)
    said = "is no port from 0 to 65535 (from BATCHQ_METRICS_PORT); write 9464, 0 for one that is free, or none"
    assert message == f'metrics_port: "70000" {said}'


@pytest.mark.parametrize("value", ["0", "-1", "2.5", "100000", "08", "1_0", "", "eight", 0, -1, 2.5, 100_000, True, []])
def test_impossible_numbers_of_processes_are_refused(here: Path, value: object) -> None:
    """-n takes a whole number from 1 to 256 and nothing that merely looks like one."""
    message = refusal(overrides={"processes": value}, environ={}, cwd=here)
    assert message.startswith("processes: ")
    assert "whole number from 1 to 256 (from -n)" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lease", 0),
        ("lease", -5),
        ("lease", "2000d"),
        ("max_attempts", 0),
        ("result_max", "64 potatoes"),
        ("log_format", "xml"),
        ("strict_order", "perhaps"),
        ("url", "mysql://x"),
        ("prefix", "a b"),
        ("queues", "a,a"),
        ("queues", "a:0"),
        ("queues", "a b"),
        ("queues", 7),
        ("max_attempts", "5"),
        ("strict_order", 1),
        ("spool", ""),
        ("durability", "none"),
        ("max_payload", "1GiB"),
        ("max_rss", "5"),
        ("lease", "1" * 5000),
        ("dead_limit", 2**40),
    ],
)
def test_impossible_values_in_code_and_file_are_refused(here: Path, key: str, value: object) -> None:
    """Out of range, of another type, contradicting itself: one line that names the key and where it stands."""
    assert f"(from App({key}=))" in refusal(code={key: value}, environ={}, cwd=here)
    if isinstance(value, str):
        path = write_project(here, f'{key} = "{value}"')
        message = refusal(environ={}, cwd=here)
        assert message.startswith(f"{key}: ")
        assert str(path) in message
        assert len(message) < 600


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("BATCHQ_LEASE_TME", "BATCHQ_LEASE"),
        ("BATCHQ_MAXATTEMPTS", "BATCHQ_MAX_ATTEMPTS"),
        ("batchq_lease", "BATCHQ_LEASE"),
        ("BATCHQ_GRACEE", "BATCHQ_GRACE"),
    ],
)
def test_unknown_variables_are_an_error_with_the_nearest_name(here: Path, variable: str, near: str) -> None:
    """A setting that is spelled wrong never has no effect in silence."""
    message = refusal(environ={variable: "3"}, cwd=here)
    assert message.startswith(f"{variable}: no such setting (from the environment)")
    assert f"did you mean {near}?" in message


@pytest.mark.parametrize(
    ("line", "near"), [("lease_tme = 3", "lease"), ("LEASE = 3", "lease"), ("max-attempts = 3", "max_attempts"),
                       ("maxAttempts = 3", "max_attempts"), ("[tool.batchq.lease]\nms = 3", "lease")]
)  # fmt: skip
def test_unknown_keys_of_the_file_are_an_error_with_the_nearest_name(here: Path, line: str, near: str) -> None:
    """Also in another case, with another separator, or nested wrongly."""
    path = write_project(here, line)
    message = refusal(environ={}, cwd=here)
    assert near in message
    assert str(path) in message


def test_unknown_flags_and_arguments_are_an_error(here: Path) -> None:
    """The same for what code and command line hand over."""
    assert refusal(code={"lese": 3}, cwd=here) == "lese: no such setting (from App(lese=)); did you mean lease?"
    assert "(from --max-atempts); did you mean max_attempts?" in refusal(overrides={"max_atempts": 3}, cwd=here)


def test_the_program_s_own_and_kubernetes_variables_are_passed_over(here: Path) -> None:
    """A pod beside a service named batchq has variables that nobody wrote; they must not stop the start."""
    environ = {
        "BATCHQ__HANDOVER": "7",
        "BATCHQ_SERVICE_HOST": "10.0.0.1",
        "BATCHQ_SERVICE_PORT_HTTP": "80",
        "BATCHQ_PORT": "tcp://10.0.0.1:80",
        "BATCHQ_PORT_80_TCP_ADDR": "10.0.0.1",
        "BATCHQ_REDIS_SERVICE_HOST": "10.0.0.2",
        "BATCHQ_REDIS_PORT_6379_TCP": "tcp://10.0.0.2:6379",
        "BATCHQ_METRICS_PORT": "tcp://10.0.0.3:9464",
        "BATCHQ_URL": "",
        "BATCHQ_GRACE": "1",
    }
    settings = load(environ=environ, cwd=here)
    assert settings.sources == {"grace": "BATCHQ_GRACE"}


def test_values_that_contradict_each_other_are_refused(here: Path) -> None:
    """Both sources are named; a default never contradicts what was given."""
    message = refusal(overrides={"grace": "30s", "shutdown_timeout": "5s"}, environ={}, cwd=here)
    assert "grace: 30s (from --grace) is more than shutdown_timeout, 5s (from --shutdown-timeout)" in message
    message = refusal(overrides={"sweep": 3}, environ={"BATCHQ_LEASE": "2"}, cwd=here)
    assert "--sweep" in message
    assert "BATCHQ_LEASE" in message
    assert load({"shutdown_timeout": 2}, environ={}, cwd=here).shutdown_timeout_ms == 2_000
    assert load({"lease": "300ms"}, environ={}, cwd=here).sweep_ms == 100
    assert load(environ={}, cwd=here).sweep_ms == 1_000


def test_a_broken_file_is_named(here: Path) -> None:
    """A pyproject.toml that can't be read stops the start; its settings are not silently defaults."""
    (here / "pyproject.toml").write_text("[tool.batchq\n")
    assert str(here / "pyproject.toml") in refusal(environ={}, cwd=here)
    (here / "pyproject.toml").write_text("[tool]\nbatchq = 3\n")
    assert "expected a table, found 3" in refusal(environ={}, cwd=here)


def test_queues_in_every_form(here: Path) -> None:
    """A variable, repeated flags, a list and a table give the same weights."""
    wanted = (("critical", 5), ("default", 1))
    assert load(environ={"BATCHQ_QUEUES": "critical:5, default"}, cwd=here).queues == wanted
    assert load({"queues": ("critical:5", "default")}, environ={}, cwd=here).queues == wanted
    write_project(here, "queues = { critical = 5, default = 1 }")
    assert load(environ={}, cwd=here).queues == wanted
    write_project(here, 'queues = ["critical:5", "default"]')
    assert load(environ={}, cwd=here).queues == wanted


def test_the_default_spool_is_the_system_s_where_it_can_be_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it is below XDG_STATE_HOME, else below the home; a relative XDG path is ignored."""
    environ = {"HOME": "/home/x", "XDG_STATE_HOME": "/state"}
    monkeypatch.setattr(config, "SYSTEM_SPOOL", here / "var" / "batchq" / "spool")
    assert load(environ=environ, cwd=here).spool == str(here / "var" / "batchq" / "spool")
    monkeypatch.setattr(config.os, "access", lambda path, mode: False)
    assert load(environ=environ, cwd=here).spool == "/state/batchq/spool"
    for xdg in ("", "relative"):
        environ["XDG_STATE_HOME"] = xdg
        assert load(environ=environ, cwd=here).spool == "/home/x/.local/state/batchq/spool"
    assert load(environ=environ, cwd=here).store_url == "spool:/home/x/.local/state/batchq/spool"
    assert load(environ=environ | {"BATCHQ_SPOOL": "/x"}, cwd=here).spool == "/x"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_system_spool_of_somebody_else_is_in_nobody_s_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folders can't even be looked into: another user's spool is below that one's home."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "batchq" / "spool"
        place.mkdir(parents=True)
        monkeypatch.setattr(config, "SYSTEM_SPOOL", place)
        os.setresuid(12345, 12345, 0)
        try:
            found = config.default_spool({"HOME": "/home/x"})
        finally:
            os.setresuid(0, 0, 0)
    assert str(found) == "/home/x/.local/state/batchq/spool"


def test_a_user_needs_no_home(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container, say: the spool that is named is used, and the default is the system's."""

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setattr(config.os, "access", lambda path, mode: False)
    assert load(environ={"BATCHQ_SPOOL": "/x"}, cwd=here).spool == "/x"
    assert load(environ={"XDG_STATE_HOME": "/state"}, cwd=here).spool == "/state/batchq/spool"
    assert load(environ={}, cwd=here).spool == str(config.SYSTEM_SPOOL)


SECRETS = ["hunter2", "p@ss:w/rd", "p%40ss", "sch\u00f6n", "a?b=c", "x&y#z", "***"]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("scheme", ["redis", "rediss", "unix", "http"])
def test_masked_urls_hold_no_password(scheme: str, secret: str) -> None:
    """Whatever the password holds, of it nothing is shown; host and user stay readable."""
    for userinfo in (f"user:{secret}", f":{secret}", secret):
        shown = masked(f"{scheme}://{userinfo}@db.example:6379/0?password={'q' + 'w'}&client_name=x")
        assert shown in (
            f"{scheme}://user:***@db.example:6379/0?password=***&client_name=x",
            f"{scheme}://:***@db.example:6379/0?password=***&client_name=x",
            f"{scheme}://***@db.example:6379/0?password=***&client_name=x",
        )


def test_urls_without_a_password_are_shown_as_they_are() -> None:
    """Masking changes nothing else."""
    for url in ("redis://127.0.0.1:6379/0", "unix:///run/redis.sock?db=1", "spool:/var/a@b", "memory:"):
        assert masked(url) == url


def test_no_password_in_errors_reprs_and_lists(here: Path) -> None:
    """A url is masked wherever settings show it, also the wrong one that an error quotes."""
    url = "redis://user:hunter2@db/0"
    settings = load({"url": url}, environ={}, cwd=here)
    assert settings.url == url
    assert "hunter2" not in repr(settings) + str(settings.effective())
    for wrong in ("mysql://user:hunter2@db/0", "redis:/user:hunter2@db/0", "redis://user:hunter2@d b/0"):
        assert "hunter2" not in refusal(environ={"BATCHQ_URL": wrong}, cwd=here)


def test_scrubbed_text_holds_neither_form_of_the_password() -> None:
    """Messages of libraries may quote the password raw or percent-decoded."""
    text = scrub("can't log in with p%40ss, that is p@ss", "redis://u:p%40ss@db/0")
    assert text == "can't log in with ***, that is ***"
    assert scrub("as it is", "redis://db/0") == "as it is"
    assert scrub("as it is", None) == "as it is"


def test_every_field_has_a_rule_and_a_unit() -> None:
    """A setting's key is its field without the unit; durations end in _ms, sizes in _bytes."""
    rules = config.rules()
    fields = {one.name for one in dataclasses.fields(Settings)} - {"sources"}
    assert {rule.name for rule in rules.values()} == fields
    for key, rule in rules.items():
        unit = {kinds.Duration: "_ms", kinds.Size: "_bytes"}.get(type(rule.kind), "")
        assert rule.name == key + unit


def test_effective_values_can_be_written_back(here: Path) -> None:
    """What the list shows gives the same settings, when it is set through the environment."""
    settings = load(
        {"lease": "2s", "queues": ["a:3", "b"], "max_rss": "200MiB", "timeout": "90s"}, environ={}, cwd=here
    )
    environ = {f"BATCHQ_{key.upper()}": shown for key, shown, _ in settings.effective() if shown != "none"}
    assert load(environ=environ, cwd=here) == settings
