"""When the watchdog acts, and what makes it begin anew."""

from __future__ import annotations

from batchq.master.watchdog import Step, Watchdog


def drive(dog: Watchdog, start: float, seconds: float, claimed: int = 0, *, idle: bool = True, ready: bool = True):
    """What it says, second by second."""
    said = []
    for tick in range(int(seconds)):
        step = dog.look(start + tick, claimed, some_idle=idle, is_ready=lambda: ready)
        if step is not None:
            said.append((tick, step))
    return said


def test_steps_come_in_order_and_once() -> None:
    """At one, one and a half, and two and a half periods; then nothing more."""
    assert drive(Watchdog(60), 1000, 400) == [
        (60, Step.RECONNECT),
        (90, Step.REPLACE),
        (150, Step.GIVE_UP),
    ]


def test_nothing_is_said_without_work_or_without_an_idle_worker() -> None:
    """An idle pool, a busy one, and one with the watchdog off."""
    assert not drive(Watchdog(60), 0, 1000, ready=False)
    assert not drive(Watchdog(60), 0, 1000, idle=False)
    assert not drive(Watchdog(0), 0, 1000)


def test_a_claim_begins_it_anew() -> None:
    """Also in the middle of the steps."""
    dog = Watchdog(60)
    assert [step for _, step in drive(dog, 0, 100)] == [Step.RECONNECT, Step.REPLACE]
    assert drive(dog, 100, 61, claimed=1)[0] == (60, Step.RECONNECT)


def test_work_that_comes_and_goes_is_no_stall() -> None:
    """Other hosts take it: every look must find some."""
    dog = Watchdog(60)
    for start in range(0, 600, 50):
        assert not drive(dog, start, 40)
        assert not drive(dog, start + 40, 10 + 6, ready=False)
