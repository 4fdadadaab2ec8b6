"""A step of jobs that was sent and not yet answered: the next one is made while the server takes it in.

Whatever goes wrong before the answer, the call is made again in the ordinary way, under the mark that it had: if it was
done, the server says so.
"""

from __future__ import annotations

from collections.abc import Callable

from batchq.errors import StoreUnavailable
from batchq.job import Mark
from batchq.lifecycle import Word
from batchq.redis.connect import Links
from batchq.redis.link import Link
from batchq.redis.replies import Unreached
from batchq.redis.wire import Command, ErrorReply, Reply


class SentAhead:
    """`read` makes words of an answer; `again` makes the call in the ordinary way."""

    def __init__(
        self, links: Links, link: Link, mark: Mark, read: Callable[[Reply], list[Word]], again: Callable[[], list[Word]]
    ) -> None:
        self._links = links
        self._link = link
        self._mark = mark
        self._read = read
        self._again = again
        self._failed = False

    def send(self, command: Command) -> None:
        try:
            self._link.send(command)
        except Unreached:
            self._failed = True
        except BaseException:
            self._links.take_back(self._link, broken=True)
            raise

    def words(self) -> list[Word]:
        broken = True
        try:
            if not self._failed:
                self._links.begin_call(self._link)
                reply = self._link.receive()
                broken = False
                return self._read(reply)
        except (Unreached, ErrorReply):
            pass
        finally:
            self._links.take_back(self._link, broken=broken)
        try:
            return self._again()
        except StoreUnavailable as error:
            # The first copy may have been done, whatever became of the second.
            error.maybe, error.mark = True, self._mark
            raise

    def drop(self) -> None:
        self._link.close()
        self._links.take_back(self._link, broken=True)
