"""Names of gates: any key makes one that every store can hold, and no two keys make the same."""

from __future__ import annotations

from batchq.gates import MOST_NAME, gate_name


def test_short_names_stand_as_they_are() -> None:
    for name in ("deliver:example.org", "é" * MOST_NAME, ""):
        assert gate_name(name) == name


def test_keys_do_not_meet_where_something_is_taken_away() -> None:
    """Long keys with one beginning (urls, say), control characters, halves of surrogate pairs."""
    long = "deliver:https://example.org/" + "x" * MOST_NAME
    keys = [long + "a", long + "b", "a\nb", "a\tb", "a?b", "a\ud800b", "a\udfffb"]
    names = [gate_name(key) for key in keys]
    assert len(set(names)) == len(keys)
    for name in names:
        assert len(name.encode()) <= MOST_NAME
        assert name.isprintable()
        assert gate_name(name) == name
