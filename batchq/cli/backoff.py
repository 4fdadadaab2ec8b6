"""`batchq backoff`: the retry curve as a table and a plot, and what a herd of jobs makes of it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from batchq.cli.output import Column, Table, json_line, on_terminal, span, write
from batchq.cli.params import load, span_ms, takes_json, whole, with_options

if TYPE_CHECKING:
    from batchq.backoff import Called, Curve
    from batchq.herd import Step

#: Rows of a histogram.
HEIGHT = 8
#: The widest plot, and what is drawn where nobody says how wide it may be.
WIDEST, PIPED = 120, 80


def fraction(text: str) -> float:
    """Reads a fraction from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise click.BadParameter(f"expected a fraction from 0 to 1, found {text!r:.40}; 0.2 means 20% either way")
    return value


def several(text: str) -> tuple[int, ...]:
    """Reads durations with commas between."""
    return tuple(span_ms(part.strip()) for part in text.split(","))


_POLICY = with_options(
    click.option("--job", metavar="NAME", help="This handler's own policy and attempts; loads the app."),
    click.option("--app", metavar="APP", help="module:app, for --job.  [default: BATCHQ_APP]"),
    click.option("--base", "base_ms", type=span_ms, metavar="DURATION", help="The first delay.  [default: 1s]"),
    click.option("--cap", "cap_ms", type=span_ms, metavar="DURATION", help="The longest delay.  [default: 1h]"),
    click.option("--jitter", type=fraction, metavar="FRACTION", help="Proportional, 0 to 1.  [default: 0.2]"),
    click.option("--full-jitter", is_flag=True, help="Anything from 0 to the delay."),
    click.option("--fixed", is_flag=True, help="The same delay each time, instead of doubling."),
    click.option("--delays", type=several, metavar="D,D,...", help="These delays; the last one goes on."),
    click.option("--attempts", type=whole(2, 1000), metavar="N", help="Tries in all.  [default: max_attempts]"),
)


@click.command("backoff")
@_POLICY
@click.option("--herd", type=whole(1, 100_000), metavar="N", help="So many jobs that failed at once: when they return.")
@click.option("--seed", type=whole(0, 2**31), default="0", metavar="N", help="Another draw of the herd.")
@click.option("--png", metavar="PATH", help="Write the picture; needs the extra `plot`.")
@click.option("--svg", metavar="PATH", help="The same as SVG.")
@takes_json
def backoff(
    herd: int | None, seed: int, png: str | None, svg: str | None, as_json: bool, **policy_options: Any
) -> None:
    """Show what a retry policy means: the delay after each failed attempt, its range under jitter, and the time since
    the first failure.

    \b
    batchq backoff
    batchq backoff --base 5s --cap 10m --jitter 0.5 --attempts 12
    batchq backoff --job deliver --herd 1000
    batchq backoff --full-jitter --herd 1000 --svg herd.svg
    """
    from batchq.herd import curve

    policy, attempts, name = _policy(**policy_options)
    steps = curve(policy, attempts)
    times = _herds(policy, attempts, herd, seed) if herd else {}
    for path in (png, svg):
        if path is not None:
            _draw(path, name, steps, times)
    if as_json:
        json_line(_as_dict(name, attempts, steps, times))
        return
    write(f"{name}: {attempts} attempts\n\n")
    _table(steps, attempts)
    _plot(steps)
    for words, found in times.items():
        _histogram(words, found, times)


def _policy(
    job: str | None,
    app: str | None,
    base_ms: int | None,
    cap_ms: int | None,
    jitter: float | None,
    full_jitter: bool,
    fixed: bool,
    delays: tuple[int, ...] | None,
    attempts: int | None,
) -> tuple[Curve | Called, int, str]:
    """The policy that the options name, how many attempts there are, and what to call it."""
    from batchq import config
    from batchq.backoff import DEFAULT, Curve

    shaped = [base_ms, cap_ms, jitter, delays, full_jitter or None, fixed or None]
    if job is not None:
        if any(option is not None for option in shaped):
            raise click.UsageError("--job: the handler has its own policy; leave out --base, --cap, --jitter ...")
        found, most = _handler(job, app)
        return found, attempts or most, f"handler {job}"
    if delays is not None and (base_ms is not None or fixed):
        raise click.UsageError("--delays: leave out --base and --fixed")
    steps = delays or (base_ms if base_ms is not None else 1000,)
    cap = cap_ms if cap_ms is not None else max(DEFAULT.cap_ms, *steps)
    chosen = 0.0 if full_jitter else (DEFAULT.jitter if jitter is None else jitter)
    name = "delays" if delays else ("fixed" if fixed else "exponential")
    words = "full jitter" if full_jitter else f"jitter {chosen:g}"
    curve = Curve(steps, cap, doubling=not fixed and delays is None, jitter=chosen, full=full_jitter)
    return curve, attempts or config.load({}).max_attempts, f"{name} from {span(steps[0])}, cap {span(cap)}, {words}"


def _handler(name: str, app: str | None) -> tuple[Curve | Called, int]:
    """The policy and the attempts of a handler. Raises AppError, UnknownHandler."""
    from batchq.backoff import DEFAULT

    loaded, settings, _ = load({"app": app}, "batchq backoff --job NAME --app module:app")
    spec = loaded.registry.get(name)
    return spec.backoff or DEFAULT, spec.max_attempts or settings.max_attempts


def _herds(policy: Curve | Called, attempts: int, jobs: int, seed: int) -> dict[str, list[int]]:
    from batchq.herd import herd, plain

    return {
        f"{jobs:,} jobs that failed at once, without jitter": herd(plain(policy), jobs, attempts, seed),
        f"{jobs:,} jobs that failed at once, with it": herd(policy, jobs, attempts, seed),
    }


def _as_dict(name: str, attempts: int, steps: Sequence[Step], times: dict[str, list[int]]) -> dict[str, Any]:
    from batchq.herd import peak

    out: dict[str, Any] = {"policy": name, "attempts": attempts, "steps": [step._asdict() for step in steps]}
    if times:
        without, jittered = (peak(found) for found in times.values())
        out["herd"] = {"returns": len(next(iter(times.values()))), "peak_without": without, "peak_jittered": jittered}
    return out


def _table(steps: Sequence[Step], attempts: int) -> None:
    titles = ("ATTEMPT", "DELAY", "LEAST", "MOST", "NEXT AT", "EARLIEST", "LATEST")
    table = Table(*(Column(title, right=True) for title in titles))
    table.page((str(step.attempt), *(span(ms, tenths=True) for ms in step[1:])) for step in steps)
    end = f"{span(steps[-1].at_ms)} after the first failure" if steps else "at once"
    write(f"\nAttempt {attempts} is the last: dead {end}, runs not counted.\n")


def _width() -> int:
    return min(WIDEST, shutil.get_terminal_size((PIPED, 24)).columns if on_terminal() else PIPED)


def _plain_ink() -> bool:
    """The terminal has no block characters."""
    try:
        "█▒".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def _plot(steps: Sequence[Step]) -> None:
    """A bar a step: what the delay surely is, then what the jitter adds. By logarithm where it would show nothing."""
    from math import log

    most = max((step.high_ms for step in steps), default=0)
    if not most:
        return
    least = min(step.low_ms for step in steps)
    room = max(10, _width() - 20)
    logarithmic = least > 0 and most > 50 * least
    solid, spread = "#-" if _plain_ink() else "█▒"

    def columns(ms: int) -> int:
        part = (log(ms / least) + 1) / (log(most / least) + 1) if logarithmic else ms / most
        return round(part * room)

    write(f"\ndelay{' (logarithmic)' if logarithmic else ''}, {solid} at least, {spread} under jitter\n")
    for step in steps:
        low, high = columns(step.low_ms), columns(step.high_ms)
        write(f"{step.attempt:>4} {solid * low}{spread * (high - low)} {span(step.high_ms, tenths=True)}\n")


def _histogram(words: str, times: Sequence[int], all_times: dict[str, list[int]]) -> None:
    """Columns of time, on the axes that all histograms share, but each with its own height."""
    from batchq.herd import WINDOW_MS, histogram, peak

    end = max(max(found, default=0) for found in all_times.values())
    bins = max(10, _width() - 8)
    counts = histogram(times, end, bins)
    most = max(counts)
    blocks = " #" if _plain_ink() else " ▁▂▃▄▅▆▇█"
    fine = len(blocks) - 1
    write(f"\n{words}: at most {peak(times):,} within {span(WINDOW_MS)}\n")
    for row in range(HEIGHT - 1, -1, -1):
        parts = (count * HEIGHT * fine / most - row * fine for count in counts)
        # What is there at all is seen.
        line = "".join(
            blocks[max(0, min(fine, round(part)))] if row or not count else blocks[max(1, min(fine, round(part)))]
            for part, count in zip(parts, counts, strict=True)
        )
        write(f"{most if row == HEIGHT - 1 else '':>6} {line}".rstrip() + "\n")
    last = span(end)
    write(f"{'':>6} 0{last:>{bins - 1}}\n")


def _draw(path: str, name: str, steps: Sequence[Step], times: dict[str, list[int]]) -> None:
    """Writes the picture. Raises ConfigError where the extra is missing."""
    from batchq.errors import ConfigError

    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise ConfigError("--png, --svg: matplotlib draws them; pip install 'batchq[plot]'") from None
    figure = Figure(figsize=(8, 3 * (1 + len(times))), layout="constrained")
    first, *others = figure.subplots(1 + len(times), squeeze=False)[:, 0]
    attempts = [step.attempt for step in steps]
    first.fill_between(attempts, [s.low_ms / 1000 for s in steps], [s.high_ms / 1000 for s in steps], alpha=0.3)
    first.plot(attempts, [step.base_ms / 1000 for step in steps], marker="o")
    first.xaxis.set_major_locator(MaxNLocator(integer=True))
    first.set(title=name, xlabel="failed attempt", ylabel="delay, s")
    end = max((found[-1] for found in times.values()), default=0) / 1000
    for axes, (words, found) in zip(others, times.items(), strict=True):
        axes.hist([at / 1000 for at in found], bins=200, range=(0, end or 1))
        axes.set(title=words, xlabel="s since they failed", ylabel="jobs")
    figure.savefig(path, format="svg" if path.lower().endswith(".svg") else None)
