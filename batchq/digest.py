"""Digests that name a text or a script. Nothing is kept secret by them.

hashlib brings OpenSSL into the process, 1.6 MiB of memory in each pool; these are the modules of Python that it falls
back on itself where there is no OpenSSL (`random` takes its own from there, too).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import blake2b, sha1, sha256
else:
    try:
        from _blake2 import blake2b
        from _sha1 import sha1

        if sys.version_info >= (3, 12):
            from _sha2 import sha256
        else:
            from _sha256 import sha256
    except ImportError:
        # A Python that was built without them.
        from hashlib import blake2b, sha1, sha256

__all__ = ["blake2b", "sha1", "sha256"]
