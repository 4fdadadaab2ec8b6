"""The file spool: an SQLite ledger and a drop box of plain files, in one directory. FORMAT.md describes the directory.

One move, one place: the verbs of `lifecycle.py` are functions in enqueue.py, claim.py, settle.py, lease.py and
manage.py; ledger.py has the transactions, inbox.py the files that others drop, fs.py all system calls.
"""

from batchq.spool.inbox import drop
from batchq.spool.store import SpoolStore

__all__ = ["SpoolStore", "drop"]
