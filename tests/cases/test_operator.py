"""What people do beside a running pool: commands that race with jobs, secrets, and what is left after a while."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from batchq.lifecycle import State
from tests.cases.helpers import app_on, call, key, server_of
from tests.process.rig import Rig
from tests.servers import Server

APP = """
@app.job
def work(seconds=0.0):
    note("S")
    time.sleep(seconds)
    note("E")


@app.job(max_attempts=1)
def fails():
    note("S")
    raise ValueError("no")


@app.job(max_attempts=2, backoff=fixed(0.05), result=0.5)
def mixed(n):
    note("S")
    if n % 10 == 3 and current_job().attempt == 1 or n % 100 == 7:
        raise ValueError("no")
    note("E")
    return n


@app.job(max_attempts=1)
def tells():
    raise RuntimeError("can't reach " + os.environ["BATCHQ_URL"])
"""


@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_commands_on_jobs_that_move_meanwhile_apply_or_are_refused(rig: Rig, seconds: int) -> None:
    """Cancel, requeue and purge at random ids of a running queue: none lost, none doubled, none alive after its end."""
    rig.app(APP)
    rng = random.Random(seconds)
    ids = rig.enqueue_many("work", [(0.01,)] * 150 * seconds)
    pool = rig.start(n=2)
    words: Counter[str] = Counter()
    end = time.monotonic() + seconds
    with app_on(rig) as app:
        while time.monotonic() < end:
            some = rng.sample(ids, 5)
            words.update(f"cancel {word.value}" for word in app.cancel(some))
            words.update(f"requeue {word.value}" for word in app.requeue(rng.sample(ids, 5)))
            words["purged"] += rig.store.purge("default", State.PENDING, rng.sample(ids, 2))
            rig.stats()
    stats = rig.until_counts(pending=0, active=0, delayed=0, within=60)
    ended = [entry.job for entry in rig.ledger.ends()]
    assert len(ended) == len(set(ended)), "a job was done twice"
    totals = stats.totals
    assert totals["completed"] + totals["cancelled"] + totals["purged"] == len(ids)
    assert totals["completed"] >= len(ended) - words["cancel marked"]
    assert totals["purged"] == words["purged"]
    assert not words["requeue ok"], "a completed job that was not kept came back"
    assert words["cancel cancelled"]
    assert pool.stop() == 0


#: Ctrl-C that met Python at its end, or in a callback of an import.
IGNORED = re.compile(rb"Exception ignored [^\n]*\nTraceback [^\n]*\n(?:  [^\n]*\n)*KeyboardInterrupt:? ?\n")


def test_two_shells_that_requeue_everything_move_each_job_once(rig: Rig) -> None:
    """Beside each other, one of them interrupted, some rows gone: then none is dead, and a new round is equal."""
    rig.app(APP)
    ids = rig.enqueue_many("fails", [()] * 400)
    rig.run_burst(n=2)
    gone = ids[::40] if rig.kind != "spool" else []
    if gone:
        server_of(rig).hdel(key(rig, "rows"), *gone)
    command = [sys.executable, "-m", "batchq", "requeue", "--all", "--yes", "--json"]
    shells = [
        subprocess.Popen(command, cwd=rig.folder, env=rig.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    rig.until(lambda: rig.store.stats("default").totals["requeued"] or shells[0].poll() is not None, "one is at it")
    shells[0].send_signal(signal.SIGINT)
    said = [shell.communicate(timeout=60) for shell in shells]
    # By the signal itself where it came when Python was starting or had ended already.
    assert all(shell.returncode in (0, 130, -signal.SIGINT) for shell in shells), (said, [s.returncode for s in shells])
    # Python's own words, where it had not come to batchq yet, or had left it: then it says that it ignores the signal.
    words = [IGNORED.sub(b"", err) for (_, err), shell in zip(said, shells, strict=True) if shell.returncode >= 0]
    assert not any(b"Traceback" in err for err in words), words
    call(rig, "requeue", "--all", "--yes", "--json").ended(0)
    stats = rig.store.stats("default")
    assert (stats.counts["pending"], stats.counts["dead"]) == (len(ids) - len(gone), 0)
    rig.run_burst(n=2)
    assert rig.store.stats("default").counts["dead"] == len(ids) - len(gone)
    assert Counter(Counter(entry.job for entry in rig.ledger.starts()).values()) == Counter(
        {2: len(ids) - len(gone), 1: len(gone)} if gone else {2: len(ids)}
    )


SECRET = "p@ss:w/rd%ü?#&"


@pytest.mark.parametrize(
    "source", ["environment", *(pytest.param(name, marks=pytest.mark.slow) for name in ("file", "flag"))]
)
def test_a_password_is_shown_nowhere(serve: Callable[..., Server], rig_on: Callable[..., Rig], source: str) -> None:
    """Raw and percent-encoded: not in logs, answers, errors, titles, what is stored, nor in a failed job."""
    server = serve()
    rig = rig_on(server)
    rig.app(APP)
    admin = server_of(rig)
    admin.execute_command("ACL", "SETUSER", "someone", "on", f">{SECRET}", "~*", "&*", "+@all")
    encoded = quote(SECRET, safe="")
    url = f"redis://someone:{encoded}@127.0.0.1:{server.port}/0"
    env, flags = {"BATCHQ_URL": url}, []
    if source == "file":
        (rig.folder / "pyproject.toml").write_text(f'[tool.batchq]\nurl = "{url}"\n')
        env = {"BATCHQ_URL": ""}
    if source == "flag":
        flags, env = ["--url", url], {"BATCHQ_URL": ""}
    shown = ""
    rig.enqueue("tells")
    rig.enqueue("work")
    pool = rig.start(*flags, "--log-level", "debug", "--debug", n=1, **env)
    rig.until_counts(done=1, within=20)
    rig.until_counts(dead=1, within=20)
    for args in (
        ["status"],
        ["status", "--json"],
        ["jobs"],
        ["jobs", "--state", "dead", "--json"],
        ["check", "app:app"],
    ):
        ran = call(rig, *args, *flags, **env)
        assert ran.code == 0, ran
        shown += ran.out + ran.err
    for wrong in (
        url.replace(encoded, encoded + "x"),
        url.replace(str(server.port), "1"),
        url.replace("redis:", "rediss:"),
    ):
        ran = call(rig, "status", BATCHQ_URL=wrong, BATCHQ_DEBUG="0")
        assert ran.code == 4, ran
        shown += ran.out + ran.err
    if source != "flag":
        for pid in rig.processes():
            shown += Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    assert pool.stop() == 0
    shown += pool.log()
    for name in admin.keys("*"):
        shown += (admin.dump(name) or b"").decode("latin-1")
    shown += json.dumps(rig.job(rig.store.jobs("default", State.DEAD).jobs[0].id).as_dict(), ensure_ascii=False)
    if source == "flag":
        assert "every user of this host can see" in shown, "it is warned of"
    for form in (SECRET, encoded, quote(SECRET), SECRET.encode().decode("latin-1")):
        assert form not in shown, shown[max(0, shown.find(form) - 300) : shown.find(form) + 100]


@pytest.mark.parametrize(
    ("rounds", "size"), [(1, 600), pytest.param(5, 20_000, marks=[pytest.mark.slow, pytest.mark.timeout(500)])]
)
def test_nothing_but_the_dead_and_counters_is_left_after_the_retention(rig: Rig, rounds: int, size: int) -> None:
    """Retries, deaths, cancels, given ids and results, again and again: what stays are the dead."""
    rig.app(APP)
    terms = ("--result-keep", "500ms", "--remember", "500ms")
    used: list[int] = []
    for turn in range(1, rounds + 1):
        with app_on(rig) as app:
            mixed = app.call("mixed")
            mixed.enqueue_many([(n,) for n in range(0, size, 3)], job_id=lambda item: f"id-{turn}-{item[0]}")  # noqa: B023
            mixed.enqueue_many((n,) for n in range(size) if n % 3)
        cancelled = rig.enqueue_many("work", [()] * (size // 100), delay_ms=3_600_000)
        call(rig, "cancel", *cancelled).ended(0)
        rig.run_burst(*terms, n=2, within=200)
        dead = turn * size // 100
        assert rig.stats().counts["dead"] == dead
        over_ms = rig.store.now_ms() + 600
        rig.until(lambda: rig.store.now_ms() > over_ms, "results and ids are over")  # noqa: B023
        rig.run_burst(*terms, n=1)
        stats = rig.stats()
        assert (stats.counts["completed"], stats.counts["dead"]) == (0, dead)
        if rig.kind != "spool":
            holds_the_dead_alone(rig, dead)
            used.append(int(server_of(rig).info("memory")["used_memory"]))
    # A dead job, its error and its traceback.
    assert all(later - used[0] < (size // 100) * rounds * 4096 + (1 << 20) for later in used)


def holds_the_dead_alone(rig: Rig, dead: int) -> None:
    """In Redis: no row, count or note but those of the dead; no key without a lifetime but the documented ones."""
    client = server_of(rig)
    left = {name.decode().removeprefix(f"{rig.prefix}:"): client.pttl(name) for name in client.keys(f"{rig.prefix}:*")}
    lasting = {name for name, ttl in left.items() if ttl == -1}
    assert lasting <= {
        "queues",
        "masters",
        *(
            f"{{default}}:{name}"
            for name in ("meta", "rows", "attempts", "notes", "dead", "wake", "timer", "leases", "given")
        ),
    }, left
    assert all(client.hlen(key(rig, name)) == dead for name in ("rows", "attempts"))
    assert set(client.hkeys(key(rig, "notes"))) <= set(client.hkeys(key(rig, "rows")))
    # What goes by itself are marks of calls and what masters publish: nothing that a job needs.
    assert all(":mark:" in name or name.startswith("master:") for name, ttl in left.items() if ttl != -1), left


#: What is written wrongly where, and what the one line says of it.
WRONG: dict[str, tuple[dict[str, str], str, tuple[str, ...]]] = {
    "unknown variable": ({"BATCHQ_LEASE_TME": "3"}, "", ("BATCHQ_LEASE_TME", "BATCHQ_LEASE")),
    "unknown key": ({}, "lease_tme = 3", ("lease_tme", "pyproject.toml", "lease")),
    "another case": ({}, "LEASE = 3", ("LEASE", "pyproject.toml", "lease")),
    "nested": ({}, "[tool.batchq.lease]\nms = 3", ("lease", "pyproject.toml")),
    "wrong type": ({}, 'lease = ["3s"]', ("lease", "pyproject.toml")),
    "no lease": ({"BATCHQ_LEASE": "0"}, "", ("lease", "BATCHQ_LEASE", "too short")),
    "no workers": ({"BATCHQ_PROCESSES": "-1"}, "", ("processes", "BATCHQ_PROCESSES")),
    "they contradict": ({"BATCHQ_GRACE": "30s"}, 'shutdown_timeout = "10s"', ("grace", "shutdown_timeout")),
}


def test_a_setting_that_is_written_wrongly_stops_the_start(redis_rig: Rig) -> None:
    """One line that names source and key, exit 2, nothing is forked; of the right ones the nearest source wins."""
    rig = redis_rig
    rig.app(APP)
    project = rig.folder / "pyproject.toml"
    for kind, (env, line, words) in WRONG.items():
        project.write_text(line if line.startswith("[") else f"[tool.batchq]\n{line}\n")
        ran = call(rig, "start", "app:app", "-n", "1", **env)
        ran.refused(2, *words)
        assert "started" not in ran.err, kind
    project.write_text('[tool.batchq]\nlease = "40s"\ngrace = "4s"\nmax_attempts = 4\n')
    pool = rig.start("--lease", "10s", BATCHQ_LEASE="30s", BATCHQ_GRACE="3s")
    [said] = pool.lines("started")
    assert all(word in said.split() for word in ("lease=10s", "grace=3s", "max_attempts=4")), said
    assert pool.stop() == 0


@pytest.mark.parametrize("size", [20_000, pytest.param(500_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_a_bulk_import_leaves_room_for_others(
    serve: Callable[..., Server], rig_on: Callable[..., Rig], size: int
) -> None:
    """Many lines while a pool works: no call takes long, memory is constant, probes begin at once."""
    server = serve("--slowlog-log-slower-than", "1000000", "--slowlog-max-len", "1000")
    rig = rig_on(server)
    rig.app(APP)
    with (rig.folder / "rows.ndjson").open("w") as file:
        file.writelines(f'{{"seconds": 0.0, "n": {n}}}\n' for n in range(size))
    rig.app(APP.replace("def work(seconds=0.0)", "def work(seconds=0.0, n=0)"))
    rig.start(n=2)
    client = server_of(rig)
    client.slowlog_reset()
    peak = 0
    process = subprocess.Popen(
        [sys.executable, "-m", "batchq", "import", "rows.ndjson", "--job", "work", "-q", "bulk"],
        cwd=rig.folder,
        env=rig.env(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                return
            found = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")]
            peak = max(peak, *found, 0)
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    late = []
    while process.poll() is None:
        asked = time.monotonic_ns()
        probe = rig.enqueue("work")
        rig.until_started(probe)
        late.append((rig.ledger.starts(probe)[0].at_ns - asked) / 1e9)
    watcher.join()
    assert process.returncode == 0
    assert rig.stats("bulk").totals["enqueued"] == size
    assert peak < 200 * 1024
    assert sorted(late)[int(len(late) * 0.95)] < 2
    assert client.slowlog_len() == 0
