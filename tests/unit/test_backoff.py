"""Backoff: when a failed attempt runs again."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq import backoff
from batchq.backoff import DEFAULT, DEFAULT_CAP_MS, Called, Curve, as_backoff, exponential, fixed, full_jitter
from batchq.errors import ConfigError

SECONDS = st.one_of(st.integers(0, 10**7), st.floats(0, 1e7))
ATTEMPTS = st.one_of(st.integers(1, 80), st.integers(1, 10**9))


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Any declarative policy that can be made."""
    cap = draw(SECONDS)
    jitter = draw(st.one_of(st.sampled_from([0, 0.2, 0.5, 1.0]), st.floats(0, 1)))
    kind = draw(st.sampled_from(["fixed", "exponential", "list"]))
    if kind == "fixed":
        policy = fixed(draw(SECONDS), cap=cap, jitter=jitter)
    elif kind == "exponential":
        policy = exponential(draw(SECONDS), cap=cap, jitter=jitter)
    else:
        made = as_backoff(draw(st.lists(SECONDS, min_size=1, max_size=5)))
        assert isinstance(made, Curve)
        policy = made
    if draw(st.booleans()):
        spread = full_jitter(policy)
        assert isinstance(spread, Curve)
        policy = spread
    return policy


# -- the curve -----------------------------------------------------------------------------------------------------


def test_exponential_doubles_from_its_base_to_its_cap() -> None:
    """base * 2^(n-1), n the attempt that failed."""
    policy = exponential(1.5, cap=60, jitter=0)
    assert [policy.delay_ms(n) for n in range(1, 9)] == [1500, 3000, 6000, 12_000, 24_000, 48_000, 60_000, 60_000]


def test_fixed_is_the_same_each_time() -> None:
    """Whatever the attempt."""
    assert {fixed(2.5).delay_ms(n) for n in (1, 2, 3, 1000)} == {2500}


def test_list_goes_on_with_its_last_delay() -> None:
    """One delay an attempt."""
    policy = as_backoff([1, 0.5, timedelta(minutes=2)])
    assert [policy.delay_ms(n) for n in (1, 2, 3, 4, 99)] == [1000, 500, 120_000, 120_000, 120_000]


def test_list_longer_than_the_default_cap_is_not_cut() -> None:
    """Who writes two hours means two hours."""
    assert as_backoff([7200]).delay_ms(1) == 7_200_000


def test_default_is_exponential_from_a_second_to_an_hour() -> None:
    """With a fifth of jitter."""
    assert DEFAULT.range_ms(1) == (800, 1200)
    assert DEFAULT.range_ms(13) == (2_880_000, 4_320_000)
    assert DEFAULT.cap_ms == DEFAULT_CAP_MS == 3_600_000


@pytest.mark.parametrize("attempt", [64, 65, 66, 1000, 10**6, 10**12])
@pytest.mark.parametrize("base", [0.001, 1, 3600])
def test_late_attempt_gets_the_cap_and_no_overflow(attempt: int, base: float) -> None:
    """n up to 10^6 and beyond is a number, not an error or a wait for one."""
    assert exponential(base, cap=300, jitter=0).delay_ms(attempt) == 300_000


def test_base_of_zero_stays_zero() -> None:
    """0 doubled is 0."""
    assert {exponential(0, jitter=1.0).delay_ms(n) for n in (1, 2, 70)} == {0}


@pytest.mark.parametrize("attempt", [0, -1, -(10**6)])
def test_attempt_below_one_counts_as_the_first(attempt: int) -> None:
    """A requeued job's arithmetic may say 0."""
    assert exponential(1, jitter=0).delay_ms(attempt) == 1000
    assert as_backoff([5, 6]).delay_ms(attempt) == 5000


@given(curves(), ATTEMPTS, st.randoms(use_true_random=False))
def test_delay_is_whole_never_negative_and_within_its_range(policy: Curve, attempt: int, rng: random.Random) -> None:
    """Every policy, every attempt: an int between the ends that range_ms names."""
    low, high = policy.range_ms(attempt)
    delay = policy.delay_ms(attempt, None, rng)
    assert type(delay) is int
    assert 0 <= low <= delay <= high
    assert policy.base_ms(attempt) <= policy.cap_ms


@given(curves(), ATTEMPTS)
def test_cap_comes_before_the_jitter(policy: Curve, attempt: int) -> None:
    """The curve is clamped, then spread: a jittered delay can pass the cap, by no more than the fraction."""
    _, high = policy.range_ms(attempt)
    assert high <= math.ceil(policy.cap_ms * (1 + policy.jitter))


@given(SECONDS, SECONDS, st.integers(1, 100))
def test_curve_never_falls(base: float, cap: float, attempt: int) -> None:
    """A later attempt never waits less, jitter aside."""
    policy = exponential(base, cap=cap, jitter=0)
    assert policy.delay_ms(attempt) <= policy.delay_ms(attempt + 1)


# -- jitter --------------------------------------------------------------------------------------------------------


def test_fifth_of_jitter_on_four_seconds_is_3200_to_4800_both_ends_included() -> None:
    """lo = trunc(d * (1 - j)); lo + uniform integer in 0..trunc(d * j * 2)."""
    policy = exponential(4, jitter=0.2)
    assert policy.range_ms(1) == (3200, 4800)
    rng = random.Random(1)
    drawn = {policy.delay_ms(1, None, rng) for _ in range(60_000)}
    assert (min(drawn), max(drawn)) == (3200, 4800)
    assert drawn == set(range(3200, 4801))


def test_capped_delay_is_jittered_around_the_cap() -> None:
    """4 s is the cap of a curve that would be at 2^19 s: 3200..4800 all the same."""
    policy = exponential(1, cap=4, jitter=0.2)
    assert policy.range_ms(20) == (3200, 4800)


def test_full_jitter_is_zero_to_the_delay_both_ends_included() -> None:
    """Uniform over the whole range of the inner policy."""
    policy = full_jitter(exponential(0.05, jitter=0.2))
    rng = random.Random(2)
    drawn = Counter(policy.delay_ms(1, None, rng) for _ in range(20_000))
    assert set(drawn) == set(range(51))
    assert max(drawn.values()) < 2 * min(drawn.values())


def test_proportional_jitter_of_one_is_zero_to_twice_the_delay() -> None:
    """j = 1 is the widest."""
    policy = fixed(0.02, jitter=1)
    rng = random.Random(3)
    assert {policy.delay_ms(1, None, rng) for _ in range(5000)} == set(range(41))


def test_full_jitter_of_a_list_and_of_a_function() -> None:
    """Every policy can be spread."""
    rng = random.Random(4)
    assert {full_jitter([0.003]).delay_ms(1, None, rng) for _ in range(500)} == {0, 1, 2, 3}
    assert {full_jitter(lambda attempt, error: 0.003).delay_ms(1, None, rng) for _ in range(500)} == {0, 1, 2, 3}


def test_seeded_random_gives_the_same_herd() -> None:
    """The whole randomness of a delay is the generator handed in."""
    one, two = ([DEFAULT.delay_ms(n, None, random.Random(7)) for n in range(1, 30)] for _ in range(2))
    assert one == two
    assert one != [DEFAULT.delay_ms(n, None, random.Random(8)) for n in range(1, 30)]


def test_forked_children_that_reseed_do_not_jitter_alike() -> None:
    """A herd of workers forked from one master spreads."""
    drawn = []
    for _ in range(2):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            backoff.reseed()
            os.write(write, repr([DEFAULT.delay_ms(10) for _ in range(8)]).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            drawn.append(pipe.read())
        os.waitpid(pid, 0)
    assert drawn[0]
    assert drawn[0] != drawn[1]


# -- policies written in Python --------------------------------------------------------------------------------------


def test_function_gets_the_attempt_and_the_error() -> None:
    """It answers seconds or a timedelta, clamped by the cap."""
    seen: list[Any] = []

    def policy(attempt: int, error: BaseException | None) -> float:
        seen.append((attempt, error))
        return attempt * 1.5

    made = as_backoff(policy)
    assert isinstance(made, Called)
    error = KeyError("x")
    assert made.delay_ms(3, error) == 4500
    assert seen == [(3, error)]
    assert as_backoff(lambda attempt, error: timedelta(milliseconds=70)).delay_ms(1) == 70
    assert as_backoff(lambda attempt, error: 10**9).delay_ms(1) == DEFAULT_CAP_MS
    assert as_backoff(lambda attempt, error: -5).delay_ms(1) == 0


@pytest.mark.parametrize("answer", [math.nan, math.inf, "5", None])
def test_function_that_answers_no_duration_is_refused(answer: Any) -> None:
    """The caller then falls back to the default; nothing infinite reaches a store."""
    with pytest.raises(ConfigError):
        as_backoff(lambda attempt, error: answer).delay_ms(1)


# -- refusals ------------------------------------------------------------------------------------------------------

NO_SECONDS = [-1, -0.001, math.nan, math.inf, -math.inf, True, "1", None, timedelta(seconds=-1)]


@pytest.mark.parametrize("bad", NO_SECONDS)
def test_negative_or_non_finite_base_and_cap_are_refused_when_the_policy_is_made(bad: Any) -> None:
    """Not at the first failure, at night."""
    makers: list[Callable[[], object]] = [
        lambda: fixed(bad),
        lambda: exponential(bad),
        lambda: exponential(1, cap=bad),
        lambda: as_backoff([1, bad]),
    ]
    if bad is not None:
        makers.append(lambda: fixed(1, cap=bad))
    for make in makers:
        with pytest.raises(ConfigError, match="backoff"):
            make()


@pytest.mark.parametrize("bad", [-0.01, 1.01, 20, math.nan, math.inf, True, "0.2", None])
def test_jitter_outside_zero_to_one_is_refused(bad: Any) -> None:
    """20 is most likely meant as a percentage: the message says so."""
    makers: list[Callable[[], object]] = [lambda: fixed(1, jitter=bad), lambda: exponential(1, jitter=bad)]
    for make in makers:
        with pytest.raises(ConfigError, match=r"jitter.*0\.2"):
            make()


@pytest.mark.parametrize("bad", [[], (), "1s", b"1", 5, None, object()])
def test_what_is_no_policy_is_refused(bad: Any) -> None:
    """An empty list has no delay, a text is no list."""
    with pytest.raises(ConfigError, match="backoff"):
        as_backoff(bad)


def test_policy_passes_through() -> None:
    """What is a policy already stays the same object."""
    policy = exponential(2)
    assert as_backoff(policy) is policy
