"""Huey on SQLite, not synced."""

import os

PACKAGES = ("huey==3.5.4",)
ABOUT = {"default": "huey_consumer -k process -w N on SqliteHuey without fsync, results off, polled each 10 ms"}
BEST: dict[str, str] = {}
NOTE = "Jobs in files, nothing synced. No acknowledgement: a job whose worker is killed is lost."
SPOOL = True
ASKED = ("drain",)

os.environ["PEERS_SYNCED"] = "no"

from peers.adapters.huey_sqlite import Producer, fleet  # noqa: E402, F401
