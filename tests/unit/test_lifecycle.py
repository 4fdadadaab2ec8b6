"""The domain on one page: states, moves, words and the law."""

from __future__ import annotations

import pytest

from batchq.lifecycle import COUNTED, MOVES, TOTALS, VERBS, State, Word, unaccounted


def test_every_state_can_be_entered_and_left_as_far_as_it_should() -> None:
    """No job can get stuck: what is not terminal has a way out, and every state a way in."""
    entered = {target for move in MOVES for target in move.targets}
    left = {source for move in MOVES for source in move.sources}
    assert entered == set(State)
    assert left == set(State) - {State.CANCELLED}


def test_only_claims_make_jobs_active() -> None:
    """A token is minted by claims alone; cancel only marks what is active already."""
    into = {move.verb for move in MOVES if State.ACTIVE in move.targets}
    assert into == {"claim", "cancel"}
    assert next(move.sources for move in MOVES if move.verb == "claim") == (State.PENDING,)


def test_every_move_out_of_active_but_complete_can_end_in_cancelled() -> None:
    """The cancel mark is obeyed by all who give a job back."""
    out = {move.verb: move.targets for move in MOVES if State.ACTIVE in move.sources and move.verb != "cancel"}
    assert {verb for verb, targets in out.items() if State.CANCELLED not in targets} == {"complete"}
    assert set(out) == {"complete", "retry", "bury", "snooze", "release", "reap", "admit"}


def test_finished_jobs_come_back_by_requeue_alone() -> None:
    """The morgue is left by a person's word; what is completed or dead never moves by itself."""
    back = {move.verb for move in MOVES if {State.DEAD, State.COMPLETED} & set(move.sources) and move.targets}
    assert back == {"requeue"}


def test_verbs_and_words_are_single_lower_case_words() -> None:
    """They stand in scripts, logs and on the wire."""
    assert len(set(VERBS)) == len(MOVES)
    for name in (*VERBS, *Word, *TOTALS):
        assert name == str(name).lower()
        assert name.replace("_", "").isalpha()
    assert tuple(state for state in State if state is not State.CANCELLED) == COUNTED
    assert all(move.effect for move in MOVES)


def figures(**given: int) -> tuple[dict[str, int], dict[str, int]]:
    counts = {state.value: given.pop(f"n_{state.value}", 0) for state in COUNTED}
    return counts, dict.fromkeys(TOTALS, 0) | given


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({}, 0),
        ({"enqueued": 10, "n_pending": 2, "n_delayed": 3, "n_active": 1, "completed": 2, "dead": 1, "cancelled": 1}, 0),
        ({"enqueued": 3, "requeued": 1, "dead": 1, "n_dead": 0, "purged": 1, "dropped": 1, "completed": 1}, 0),
        ({"enqueued": 2, "completed": 1}, 1),
        ({"enqueued": 1, "completed": 2}, -1),
        ({"enqueued": 1, "completed": 1, "n_completed": 1}, 0),
        ({"enqueued": 1, "dead": 1, "n_dead": 1, "retried": 5, "snoozed": 5, "released": 5, "promoted": 9}, 0),
    ],
)
def test_law_of_the_totals(given: dict[str, int], missing: int) -> None:
    """What came is what stands and what went. Kept rows stand there, but are counted where they ended."""
    assert unaccounted(*figures(**given)) == missing
