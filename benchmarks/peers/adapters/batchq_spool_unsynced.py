"""batchq without Redis: jobs in a spool on disk, not synced."""

import os

PACKAGES = ()
ABOUT = {"default": "batchq start -n N on a spool with durability=process"}
BEST: dict[str, str] = {}
NOTE = "Jobs in files, nothing synced."
SPOOL = True
ASKED = ("drain",)

os.environ["BATCHQ_DURABILITY"] = "process"

from peers.adapters.batchq import Producer, fleet  # noqa: E402, F401
