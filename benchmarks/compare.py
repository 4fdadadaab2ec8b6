"""How does batchq do beside other job queues, at the same work on the same machine?

Each system is installed from PyPI (BullMQ also from npm) into a throw-away environment, and asked each question by the
same driver, round by round, so that what is compared was measured back to back. See peers/ for how; README.md for how
to read it. `--report` makes table and plot from figures that are there, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import rig
from peers import report, systems
from peers.environments import NotInstallable
from peers.questions import QUESTIONS
from peers.systems import OURS, System
from peers.trial import Failed, Trial

#: These need no second look: memory is no matter of chance.
ONCE = ("idle",)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=systems.names(), metavar="SYSTEM", help="these (default: all)")
    parser.add_argument("--ask", nargs="+", choices=list(QUESTIONS), metavar="QUESTION", help="these (default: all)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="runs of each; the median counts (5)")
    parser.add_argument("--seconds", type=float, default=1.5, metavar="S", help="how long a producer sends (1.5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go, after each round")
    parser.add_argument("--again", type=Path, metavar="FILE", help="measure what is asked anew, and put it in there")
    parser.add_argument("--report", type=Path, metavar="FILE", help="make table, plot and README from these figures")
    parser.add_argument("--smoke", action="store_true", help="batchq alone, briefly: proves that it runs")
    parser.add_argument("--server", choices=("redis", "valkey"), help="default: redis-server if on PATH")
    parser.add_argument("--folder", help="where spools are made (default: the temporary folder)")
    args = parser.parse_args()
    args.most, args.samples, args.failing, args.heavy, args.settle = 200_000, 150, 2_000, 200, 4.0
    if args.smoke:
        args.only, args.rounds, args.seconds = args.only or list(OURS), 1, 0.2
        args.most, args.samples, args.failing, args.heavy, args.settle = 500, 10, 50, 6, 1.0
    return args


def install(args: argparse.Namespace) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """How to start each system's child, and what is told of each. One that can't be installed is told loudly."""
    children: dict[str, list[str]] = {}
    told: dict[str, Any] = {}
    for name in args.only or systems.names():
        system = systems.read(name)
        told[name] = about = {"title": system.title, "about": system.about, "note": system.note}
        about["asked"] = {question: system.configuration(question) for question in QUESTIONS}
        try:
            children[name] = system.install()
            with Trial(system, children[name], "one", server=args.server, folder=args.folder) as trial:
                about["versions"] = trial.ask("versions")
        except (NotInstallable, Failed) as error:
            children.pop(name, None)
            about["left_out"] = str(error)
            print(f"LEFT OUT: {error}", file=sys.stderr, flush=True)
    return children, told


def measure(args: argparse.Namespace, system: System, child: list[str], question: str) -> dict[str, Any]:
    """The figures of one run, with what others used meanwhile; or the error."""
    began = time.monotonic()
    try:
        with Trial(system, child, question, server=args.server, folder=args.folder) as trial, rig.others() as used:
            found: dict[str, Any] = dict(QUESTIONS[question](trial, args))
            found["others_pct"] = used()
    except Failed as error:
        found = {"error": str(error)}
    cells = [f"{name} {value:,.4g}" for name, value in found.items() if isinstance(value, int | float)]
    told = found.get("error") or "  ".join(cells)
    print(f"{system.name:<13} {question:<6} {time.monotonic() - began:5.1f} s  {told}", flush=True)
    return found


def machine(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, rig.server(args.server, Path(folder)) as port:
        server = rig.version(f"redis://127.0.0.1:{port}/0")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.system()} {platform.machine()}, {psutil.cpu_count()} CPUs",
        "python": platform.python_version(),
        "server": server,
        "load": round(os.getloadavg()[0], 1),
        "seconds": args.seconds,
    }


def run(args: argparse.Namespace) -> dict[str, Any]:
    children, told = install(args)
    result: dict[str, Any] = {**machine(args), "rounds": 0, "systems": told, "runs": {name: {} for name in children}}
    if args.again:
        result = renewed(args, result)
    for number in range(args.rounds):
        for question in args.ask or QUESTIONS:
            if number and question in ONCE:
                continue
            for name, child in children.items():
                system = systems.read(name)
                if system.answers(question):
                    found = measure(args, system, child, question)
                    result["runs"][name].setdefault(question, []).append(found)
        if not args.again:
            result["rounds"] = number + 1
        if args.json:
            args.json.write_text(json.dumps(result, indent=1) + "\n")
    return result


def renewed(args: argparse.Namespace, fresh: dict[str, Any]) -> dict[str, Any]:
    """The figures that are there, without those that are now measured anew; what is new says so."""
    kept: dict[str, Any] = json.loads(args.again.read_text())
    asked = [str(question) for question in args.ask or QUESTIONS]
    for name in fresh["runs"]:
        kept["systems"][name] = fresh["systems"][name]
        runs = kept["runs"].setdefault(name, {})
        for question in asked:
            runs.pop(question, None)
    again = {"date": fresh["date"], "systems": list(fresh["runs"]), "asked": asked, "rounds": args.rounds}
    kept.setdefault("again", []).append(again)
    return kept


def main() -> None:
    args = parse()
    if args.report:
        report.publish(json.loads(args.report.read_text()))
        return
    args.json = args.json or args.again
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
    print((__doc__ or "").partition("\n")[0])
    result = run(args)
    print(report.table(result))
    print(f"\n{report.ratios(result)}\n")
    print(report.used_by_others(result))


if __name__ == "__main__":
    main()
