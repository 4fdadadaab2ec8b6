"""The same stores as the process tests, and the seed of a run: CHAOS_SEED repeats one."""

from __future__ import annotations

import os
import random

import pytest

from tests.process.conftest import redis_rig, rig

__all__ = ["redis_rig", "rig"]


@pytest.fixture
def rng() -> random.Random:
    """Drawn anew for each run unless CHAOS_SEED is set; printed, so that a failure names it."""
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(2**31))
    print(f"CHAOS_SEED={seed}")
    return random.Random(seed)
