"""The trial cases run in the rigs that the other process tests have, on every store or on a server of their own."""

from __future__ import annotations

from tests.outage.conftest import flavour, rig_on, serve
from tests.process.conftest import redis_rig, rig

__all__ = ["flavour", "redis_rig", "rig", "rig_on", "serve"]
