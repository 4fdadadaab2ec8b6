"""batchq without Redis: jobs in a spool on disk, not synced."""

import os

PACKAGES = ()
ABOUT = {"default": "batchq start -n N on a spool with durability=process"}
BEST: dict[str, str] = {}
NOTE = "Jobs in files, nothing synced."
LACKS = {
    "one": "see spool_peers.py",
    "times": "held against batchq's spool at the drain alone",
    "retry": "held against batchq's spool at the drain alone",
    "heavy": "held against batchq's spool at the drain alone",
    "idle": "held against batchq's spool at the drain alone",
}
SPOOL = True

os.environ["BATCHQ_DURABILITY"] = "process"

from peers.adapters.batchq import Producer, fleet  # noqa: E402, F401
