"""enqueue_many makes the next step while the server takes in the last: whatever goes wrong, each job is in once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from batchq import App, StoreUnavailable
from batchq.redis import ahead
from batchq.redis.scripts import shipped
from tests.faults.proxy import Proxy
from tests.servers import Server

Q = "default"
ENQUEUE = shipped("enqueue").sha.encode()
STEP = 480


def app_on(url: str, prefix: str, **settings: object) -> App:
    made = App(url, prefix=prefix, fallback=None, **settings)  # type: ignore[arg-type]

    @made.job
    def work(n: int) -> None:
        """Runs nowhere."""

    made.enqueue("work", [0])
    return made


def numbers(app: App) -> list[int]:
    """Of the jobs that stand there, without the one that opened the connection."""
    return sorted(job.args[0] for job in app.jobs(queue=Q))[1:]


def send(app: App, items: Iterator[tuple[int]]) -> int:
    return app.call("work").enqueue_many(items).created


def test_step_is_sent_before_the_next_is_made(redis_server: Server, prefix: str) -> None:
    """While the iterable is asked for the third step, the first is in and the second not yet sent."""
    app = app_on(redis_server.url, prefix)
    client = redis.Redis(port=redis_server.port)
    seen: list[int] = []

    def items() -> Iterator[tuple[int]]:
        for n in range(1, 2 * STEP + 1):
            if n == 2 * STEP:
                # The reply is not read, and the server has it done all the same.
                while (pending := client.llen(f"{prefix}:{{{Q}}}:pending")) < 1 + STEP:
                    pass
                seen.append(pending)
            yield (n,)

    assert send(app, items()) == 2 * STEP
    assert seen == [1 + STEP]
    assert numbers(app) == list(range(1, 2 * STEP + 1))
    app.close()


def test_lost_answer_of_a_step_loses_and_doubles_nothing(redis_server: Server, prefix: str) -> None:
    """The connection dies after the server has done it: the same call is made again, and is known by its mark."""
    with Proxy(redis_server.port) as proxy:
        app = app_on(proxy.url, prefix)
        cut: list[int] = []

        def items() -> Iterator[tuple[int]]:
            for n in range(1, 3 * STEP + 1):
                if n in (STEP + 100, 2 * STEP + 100):
                    cut.append(n)
                    proxy.cut_all()
                yield (n,)

        assert send(app, items()) == 3 * STEP
        assert len(cut) == 2
        assert numbers(app) == list(range(1, 3 * STEP + 1))
        app.close()


def test_server_that_is_gone_in_between_is_told_with_the_call_that_may_have_been_done(
    redis_server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a fallback the error names the mark of the step; the note says how many are in surely."""
    with Proxy(redis_server.port) as proxy:
        app = app_on(proxy.url, prefix, enqueue_timeout=0.2)

        def items() -> Iterator[tuple[int]]:
            for n in range(1, 3 * STEP + 1):
                if n == STEP + 100:
                    proxy.refusing = True
                    proxy.cut_all()
                yield (n,)

        with pytest.raises(StoreUnavailable) as away:
            send(app, items())
        assert away.value.maybe
        assert away.value.mark is not None
        # The answer to the first step may have come in before the end.
        surely = [f"enqueue_many: the first {jobs} jobs are enqueued surely" for jobs in (0, STEP)]
        assert away.value.__notes__ in ([surely[0]], [surely[1]])
        proxy.refusing = False
        app.close()


def test_iterable_that_raises_leaves_what_came_before(redis_server: Server, prefix: str) -> None:
    """All before that item, also of a step that was on its way; and nothing twice."""
    app = app_on(redis_server.url, prefix)

    def items() -> Iterator[tuple[int]]:
        for n in range(1, STEP + 101):
            yield (n,)
        raise LookupError("no more")

    with pytest.raises(LookupError) as raised:
        send(app, items())
    assert raised.value.__notes__ == [f"enqueue_many: the first {STEP + 100} jobs are enqueued surely"]
    assert numbers(app) == list(range(1, STEP + 101))
    app.close()


def test_exception_of_a_signal_leaves_no_answer_behind(redis_server: Server, prefix: str) -> None:
    """What is left unread would be taken for the answer to the next call."""
    app = app_on(redis_server.url, prefix)

    def items() -> Iterator[tuple[int]]:
        for n in range(1, STEP + 101):
            yield (n,)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        send(app, items())
    assert app.enqueue("work", [7777]).created
    assert app.store.stats(Q).counts["pending"] in (2, 2 + STEP)
    app.close()


def test_scripts_that_are_flushed_in_between_are_loaded_again(redis_server: Server, prefix: str) -> None:
    """NOSCRIPT: the call is made again in the ordinary way."""
    app = app_on(redis_server.url, prefix)
    client = redis.Redis(port=redis_server.port)
    flushed: list[object] = []

    def items() -> Iterator[tuple[int]]:
        for n in range(1, 3 * STEP + 1):
            if n == STEP:
                flushed.append(client.script_flush())
            yield (n,)

    assert send(app, items()) == 3 * STEP
    assert flushed
    assert numbers(app) == list(range(1, 3 * STEP + 1))
    app.close()


def test_steps_really_go_ahead(redis_server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above are of no worth where every step takes the ordinary way."""
    app = app_on(redis_server.url, prefix)
    words = ahead.SentAhead.words
    taken: list[int] = []

    def counted(self: ahead.SentAhead) -> object:
        taken.append(1)
        return words(self)

    monkeypatch.setattr(ahead.SentAhead, "words", counted)
    assert send(app, ((n,) for n in range(1, 3 * STEP + 1))) == 3 * STEP
    assert len(taken) == 3
    app.close()
