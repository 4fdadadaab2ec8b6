"""Handlers: what `@app.job` takes, what it refuses, and what a registry answers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from batchq.app import App
from batchq.arity import Arity
from batchq.backoff import Called, Curve, exponential
from batchq.errors import ConfigError, UnknownHandler
from batchq.registry import Registry


@pytest.fixture
def app() -> App:
    return App("memory:")


def test_a_spec_holds_what_the_decorator_was_given(app: App) -> None:
    """Durations are milliseconds inside, policies are made, the rest is as it was said."""

    @app.job(
        queue="webhooks",
        max_attempts=8,
        backoff=exponential(1.0, cap=300, jitter=0.2),
        timeout=timedelta(seconds=30),
        result=60,
        batch_claim=False,
    )
    def deliver(url: str) -> int:
        return len(url)

    spec = app.registry.get("deliver")
    assert (spec.name, spec.queue, spec.max_attempts, spec.timeout_ms, spec.keep_ms) == (
        "deliver",
        "webhooks",
        8,
        30_000,
        60_000,
    )
    assert spec.backoff == exponential(1.0, cap=300, jitter=0.2)
    assert not spec.batch_claim
    assert not spec.is_async
    assert deliver("abc") == spec.function("abc") == 3


def test_without_parentheses_the_terms_are_the_defaults(app: App) -> None:
    """`@app.job` alone registers under the function's name, on the default queue, with nothing kept."""

    @app.job
    async def ping() -> str:
        """Says so."""
        return "pong"

    spec = ping.spec
    assert (
        spec.name,
        spec.queue,
        spec.max_attempts,
        spec.backoff,
        spec.timeout_ms,
        spec.keep_ms,
        spec.batch_claim,
    ) == (
        "ping",
        "default",
        None,
        None,
        None,
        0,
        True,
    )
    assert spec.is_async
    assert ping.__doc__ == "Says so."
    assert ping.__name__ == "ping"


def test_backoff_may_be_a_list_or_a_function(app: App) -> None:
    """What users may write for it becomes a policy at import, where its errors belong."""
    listed = app.job(name="listed", backoff=[1, 5, 30])(print)
    called = app.job(name="called", backoff=lambda attempt, error: attempt * 2)(print)
    assert isinstance(listed.spec.backoff, Curve)
    assert isinstance(called.spec.backoff, Called)


def test_the_same_name_twice_names_both_places(app: App) -> None:
    """The second registration fails, and says where both are."""

    def build() -> Any:
        def mail() -> None: ...

        return mail

    app.job(build())
    with pytest.raises(ConfigError) as caught:
        app.job(build())
    message = str(caught.value)
    assert message.count(f"{__file__}:{build().__code__.co_firstlineno}") == 2
    assert "'mail'" in message


def a_function() -> None: ...


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"queue": 3}, "queue: 3"),
        ({"queue": "a b"}, "queue: 'a b'"),
        ({"max_attempts": 0}, "max_attempts: expected a whole number from 1"),
        ({"max_attempts": True}, "max_attempts"),
        ({"max_attempts": 2.0}, "max_attempts"),
        ({"timeout": -1}, "timeout: expected more than 0 seconds"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "30"}, "timeout: expected seconds (a number) or a timedelta, found '30'"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"result": -1}, "result"),
        ({"result": "yes"}, "result"),
        ({"backoff": []}, "backoff"),
        ({"backoff": "fast"}, "backoff"),
        ({"backoff": [1, -1]}, "backoff"),
        ({"name": "a b"}, "name: 'a b'"),
        ({"name": ""}, "name: ''"),
        ({"name": 3}, "name: 3"),
        ({"name": "x\ny"}, "name"),
        ({"batch_claim": 1}, "batch_claim: expected True or False, found 1"),
    ],
)
def test_wrong_arguments_of_the_decorator_are_refused(app: App, arguments: dict[str, Any], words: str) -> None:
    """Each is a ConfigError at import that names the argument; nothing is registered."""
    with pytest.raises(ConfigError) as caught:
        app.job(**arguments)(a_function)
    assert words in str(caught.value)
    assert len(app.registry) == 0


def test_what_is_no_handler_is_refused(app: App) -> None:
    """A generator's body would never run; a lambda has no name; a class is no function."""

    def loop() -> Iterator[int]:
        yield 1

    for wrong in (loop, lambda: 1, dict, 3, functools.partial(a_function)):
        with pytest.raises(ConfigError):
            app.job(wrong)  # type: ignore[call-overload]
    assert len(app.registry) == 0
    assert app.job(name="part")(functools.partial(a_function)).spec.name == "part"


def test_a_registry_answers_names_queues_and_specs(app: App) -> None:
    """Names and queues are sorted; `default` is always among the queues; an unknown name is its own error."""
    app.job(name="b", queue="mail")(a_function)
    app.job(name="a", queue="critical")(a_function)
    assert app.registry.names() == ("a", "b")
    assert app.registry.queues() == ("critical", "default", "mail")
    assert "a" in app.registry
    with pytest.raises(UnknownHandler) as caught:
        app.registry.get("c")
    assert "'c'" in str(caught.value)
    assert "a, b" in str(caught.value)
    assert Registry().queues() == ("default",)


def test_kept_results_follow_the_setting_of_the_command_line(app: App) -> None:
    """`result=True` means the setting, also one that a flag changes after the import; a duration means itself."""
    app.job(name="setting", result=True)(a_function)
    app.job(name="own", result=7)(a_function)
    assert app.registry.get("setting").keep_ms == 3_600_000
    app.configure({"result_keep": "5m"})
    assert app.registry.get("setting").keep_ms == 300_000
    assert app.registry.get("own").keep_ms == 7_000


def _plain(a: int, b: int = 2, *, c: int, d: int = 4) -> None: ...
def _open(a: int, /, *rest: int, key: int = 1, **others: int) -> None: ...
def _none() -> None: ...
def _only(a: int, b: int, /) -> None: ...


@pytest.mark.parametrize("function", [_plain, _open, _none, _only])
def test_arity_says_what_python_says(function: Any) -> None:
    """For every small call the check agrees with a real one."""
    arity = Arity(function, function.__name__)
    names = ["a", "b", "c", "d", "key", "zz"]
    for count in range(4):
        for mask in range(2 ** len(names)):
            kwargs = {name: 0 for bit, name in enumerate(names) if mask >> bit & 1}
            assert _accepts(arity.check, (0,) * count, kwargs) == _accepts(
                lambda args, kwargs: function(*args, **kwargs), (0,) * count, kwargs
            ), (count, kwargs)


def _accepts(call: Any, args: tuple[int, ...], kwargs: dict[str, int]) -> bool:
    try:
        call(args, kwargs)
    except TypeError as error:
        if "()" not in str(error):
            raise
        return False
    return True
