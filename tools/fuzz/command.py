"""Looks for input that makes streamd fail in a way that it does not promise.

    scripts/fuzz                                  every target for half a minute
    scripts/fuzz --target frames --seconds 3600   one target for an hour; several: --target tar --target png
    scripts/fuzz --reproduce FILE                 one input again; its folder names the target
    scripts/fuzz --list                           the targets

Each target is fed with damaged inputs in a process of its own. A finding is an error other than those that streamd
raises for bad input, a hang, a process that ends, or memory that grows without end. It is written to TARGET/DIGEST
below --findings, with a text beside it that says how to repeat it. When it is repaired, move the input to
tests/tools/fuzz_inputs/TARGET/, where a quick test replays it for ever. The same --seed makes the same inputs.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fuzz.campaign import Campaign, CampaignFigures, find_fault
from fuzz.findings import Finding, save_finding
from fuzz.target import TARGET_MODULES, FuzzTarget, load_target
from streamd.limits import MIB

_SECONDS: Final = 30.0


def format_figures(target: FuzzTarget, figures: CampaignFigures) -> str:
    """Returns one line about a campaign."""
    units = "" if target.unit == "cases" else f", {figures.units:,} {target.unit}"
    contained = f", {figures.contained_ends} contained crashes" if figures.contained_ends else ""
    return (
        f"{target.name}: {figures.cases:,} cases{units} in {figures.elapsed_s:.0f} s, {figures.effects} effects, "
        f"slowest {figures.slowest_s * 1000:.0f} ms, {figures.resident_bytes // MIB} MiB{contained}"
    )


def fuzz_target(target: FuzzTarget, seed: int, seconds: float, max_cases: int | None, folder: Path) -> list[Finding]:
    """Runs a campaign, prints its progress and saves its findings, which it returns."""
    findings: list[Finding] = []

    def report_finding(finding: Finding) -> None:
        findings.append(finding)
        print(f"FINDING {finding.headline}\n    scripts/fuzz --reproduce {save_finding(folder, finding)}", flush=True)

    def report_progress(figures: CampaignFigures) -> None:
        print(f"... {format_figures(target, figures)}", flush=True)

    figures = Campaign(target, seed, report_finding, report_progress).run(seconds, max_cases)
    print(f"{format_figures(target, figures)}, {len(findings)} findings", flush=True)
    return findings


def reproduce_input(path: Path, name: str | None) -> bool:
    """Runs one input again and prints what comes of it. Returns whether it is still a finding."""
    target = load_target(name or path.absolute().parent.name)
    finding = find_fault(target, path.read_bytes())
    print(f"{target.name}: nothing is wrong any more" if finding is None else f"{finding.text}\n{finding.headline}")
    return finding is not None


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--target",
        action="append",
        choices=sorted(TARGET_MODULES),
        metavar="NAME",
        help="one of --list; may be repeated; default all",
    )
    parser.add_argument("--seconds", type=float, help=f"for each target; default {_SECONDS:g}, none with --cases")
    parser.add_argument("--cases", type=int, help="for each target: end after so many")
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), metavar="FOLDER")
    parser.add_argument("--reproduce", type=Path, metavar="FILE", help="an input to run again")
    parser.add_argument("--list", action="store_true", help="list the targets")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command. The exit status is 1 if there are findings."""
    options = _build_parser().parse_args(arguments)
    if options.list:
        for name in TARGET_MODULES:
            print(f"{name:15} {load_target(name).what}")
        return
    if options.reproduce is not None:
        sys.exit(reproduce_input(options.reproduce, (options.target or [None])[0]))
    seed = secrets.randbits(32) if options.seed is None else options.seed
    seconds = options.seconds or (_SECONDS if options.cases is None else float("inf"))
    names = options.target or list(TARGET_MODULES)
    print(f"seed {seed}; {len(names)} targets", flush=True)
    findings: list[Finding] = []
    try:
        for name in names:
            findings += fuzz_target(load_target(name), seed, seconds, options.cases, options.findings)
    except KeyboardInterrupt:
        print("interrupted")
    sys.exit(1 if findings else 0)
