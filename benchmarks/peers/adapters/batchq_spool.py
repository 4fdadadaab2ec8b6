"""batchq without Redis: jobs in a spool on disk."""

PACKAGES = ()
ABOUT = {"default": "batchq start -n N on a spool, synced (durability=power)"}
BEST: dict[str, str] = {}
NOTE = "Jobs in files, synced to disk: the others keep them in the memory of a Redis that saves nothing."
SPOOL = True

from peers.adapters.batchq import Producer, fleet  # noqa: E402, F401
