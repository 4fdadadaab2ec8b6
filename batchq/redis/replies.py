"""What went wrong on the way to a Redis server, and what its error replies mean for the caller."""

from __future__ import annotations

from typing import NoReturn

from batchq.errors import InternalError, StoreCorrupt, StoreDenied, StoreError, StoreFull
from batchq.redis.wire import ErrorReply

_REPLICA = "it is a replica: name the primary in the url, or its sentinels"
#: Replies that prove "not executed, try again", and what there is to do.
_TRANSIENT = {
    "LOADING": "it starts, and answers when it has its data",
    "READONLY": _REPLICA,
    "MASTERDOWN": _REPLICA,
    "CLUSTERDOWN": "a part of the cluster is away: see CLUSTER INFO there",
    "TRYAGAIN": "slots are being moved, and it answers when that is done",
    "BUSY": "somebody's script runs on and on: SCRIPT KILL there ends it",
    "NOREPLICAS": "it waits for its replicas: see min-replicas-to-write there",
    "MISCONF": "it can't save: see the disk and the log of that server",
}
#: Replies that refuse the user: a person must look, but nothing was executed.
_DENIED = ("NOAUTH", "WRONGPASS")


class Unreached(Exception):
    """One try did not come through. Inside the Redis modules and their tests only: callers see StoreUnavailable."""

    def __init__(
        self,
        text: str,
        *,
        sent: bool = False,
        denied: bool = False,
        refused: bool = False,
        timed_out: bool = False,
        way_out: str = "is the server up, and the url right?",
    ) -> None:
        super().__init__(text)
        #: What a person may do.
        self.way_out = way_out
        #: The server is there and does no writes now: it may answer reads all the same.
        self.refused = refused
        #: The call may have been executed; False where it surely was not.
        self.sent = sent
        #: The server is there and refuses this user.
        self.denied = denied
        #: Its time was over.
        self.timed_out = timed_out


def way_out(error: ErrorReply) -> str:
    """What there is to do about a server that says "try again"."""
    return _TRANSIENT[error.code]


def text_of(error: BaseException) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def denied(where: str, what: str) -> StoreDenied:
    """A right is missing."""
    return StoreDenied(
        f"redis at {where} refuses: {what}; give the user of the url that right (docs/redis.md lists all)"
    )


def raise_for(error: ErrorReply, where: str, met_by: str = "", key: str = "") -> NoReturn:
    """What an error reply means for the caller. Raises Unreached for those that go by themselves. `met_by`: the
    command of a script that met it, where the server does not say so; `key`: at which."""
    code, text = error.code, str(error)
    if code in _TRANSIENT:
        raise Unreached(f"redis at {where}: {text}", refused=True, way_out=_TRANSIENT[code]) from error
    if code == "OOM" or "OOM command not allowed" in text:
        raise StoreFull(
            f"redis at {where} is out of memory (maxmemory): nothing was enqueued; "
            "raise maxmemory or let the workers catch up"
        ) from error
    # Of who has not said who he is no long command is read: that is told, in these words, instead of NOAUTH.
    if code in _DENIED or "Protocol error: unauthenticated" in text:
        raise Unreached(f"redis at {where}: {text}; check the user and password of the url", denied=True) from error
    if code == "NOPERM" or "ACL failure in script" in text or "user executing the script can't" in text:
        what = f"{text} (command {met_by})" if met_by and met_by not in text.lower() else text
        raise denied(where, what) from error
    if "unknown command" in text:
        raise StoreDenied(
            f"redis at {where} does not know a command that batchq needs: {text}; it is too old, or has renamed it"
        ) from error
    if code in ("MOVED", "ASK", "CROSSSLOT"):
        raise StoreError(
            f"redis at {where} is a node of a cluster ({text}); write redis+cluster://HOST:PORT in the url"
        ) from error
    if code == "WRONGTYPE" or "WRONGTYPE" in text:
        what = f"the key {key}" if key else "a key of this prefix"
        raise StoreCorrupt(
            f"redis at {where}: {text}; {what} was written by something else: rename or delete it"
        ) from error
    raise InternalError(f"redis at {where}: {text}") from error
