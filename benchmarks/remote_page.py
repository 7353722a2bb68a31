"""The page of what a trainer on another host gets; `remote.py all` writes it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from report import Bound, Machine, Report, Section, Series, Table, tabulate_rounds

LEAST_RATE: Final = 0.9  # of ROUTER and DEALER alone
LEAST_LOSSY_MB_PER_S: Final = 20.0
MOST_BEYOND_CUT_S: Final = 10.0
LEAST_LOCAL: Final = 0.95

Measured = Mapping[str, Any]  # what one of the measurements of `remote.py` returned


def build_report(machine: Machine, measured: Mapping[str, Measured], lossy_s: float) -> Report:
    """Builds the page of all five measurements, by their names."""
    text = (
        "A link of our own between two namespaces (`link/slow_link.c`), 1 Gbit/s with a round trip of 100 ms unless a "
        "section says otherwise; batches of 1.5 MB that cost nothing to produce, a credit of 64, CURVE, and BBR where "
        "the kernel has it."
    )
    sections = (
        build_rate_section(measured["rate"]),
        build_loss_section(measured["loss"], lossy_s),
        build_cut_section(measured["cut"]),
        build_slow_section(measured["slow"]),
        build_kill_section(measured["kill"]),
    )
    return Report("A trainer on another host", "python benchmarks/remote.py all", machine, text, sections)


def build_rate_section(found: Measured) -> Section:
    pairs = [*zip(found["gate_mb_per_s"], found["plain_mb_per_s"], strict=True)]
    rows = (
        ("the gate, MB/s", found["gate_mb_per_s"], ",.0f"),
        ("ROUTER and DEALER alone, MB/s", found["plain_mb_per_s"], ",.0f"),
        ("ratio", [mine / alone for mine, alone in pairs], ".3f"),
    )
    bounds = (
        Bound("The ratio, median", found["ratio"], "at least", LEAST_RATE),
        _bound_receipts(found),
    )
    return Section("In turn, with the same credit.", tabulate_rounds(rows), "A far link", bounds)


def build_loss_section(found: Measured, lossy_s: float) -> Section:
    median = found["median_second_mb_per_s"]
    text = (
        f"5 % of all packets are lost, for {lossy_s:.0f} s: {median:.0f} MB/s in the median second, "
        f"{found['receipts']} receipts, the longest pause {found['longest_pause_s']:.1f} s."
    )
    bounds = (Bound("MB/s in the median second", median, "at least", LEAST_LOSSY_MB_PER_S), _bound_receipts(found))
    return Section(text, None, "A lossy link", bounds)


def build_cut_section(found: Measured) -> Section:
    beyond_s = found["longest_pause_s"] - found["cut_s"]
    text = f"The link is cut for {found['cut_s']:.0f} s: the longest pause was {found['longest_pause_s']:.1f} s."
    bounds = (Bound("Seconds beyond the cut", beyond_s, "at most", MOST_BEYOND_CUT_S), _bound_receipts(found))
    return Section(text, None, "A cut", bounds)


def build_slow_section(found: Measured) -> Section:
    gaps = [late - soon for soon, late in pairwise(found["arrived"])]
    text = (
        f"10 Mbit/s and batches of 20 MB, each of which takes 16 s: one arrived every {statistics.median(gaps):.1f} s, "
        "in the median."
    )
    return Section(text, None, "A slow link", (Bound("Sessions", found["sessions"], "at most", 1, ".0f"),))


def build_kill_section(found: Measured) -> Section:
    rounds = len(found["rounds_by_clock"])
    text = (
        f"The gate is killed with -9 {rounds} times, in turn with quiet times, while a trainer of the daemon's host "
        "and a remote one read. What the local one keeps, beside the quiet time before: batches for the same processor "
        "time of daemon, workers and trainer, and batches by the clock. The remote trainer lost nothing, and paused "
        f"for {found['remote']['longest_pause_s']:.1f} s at most: a gate that dies again and again is started later "
        f"each time. The local one's longest pause was {found['local']['longest_pause_s']:.2f} s."
    )
    rows = (
        ("by processor time", Series(tuple(found["rounds_by_processor_time"]), ".2f", ("median", "each"))),
        ("by the clock", Series(tuple(found["rounds_by_clock"]), ".2f", ("median", "each"))),
    )
    heads = ("", "median", *(f"kill {number}" for number in range(1, rounds + 1)))
    bounds = (
        Bound("The local trainer keeps", found["local_by_processor_time"], "at least", LEAST_LOCAL),
        _bound_receipts(found["local"]),
        _bound_receipts(found["remote"]),
    )
    return Section(text, Table(heads, rows), "The gate is killed", bounds)


def _bound_receipts(found: Measured) -> Bound:
    return Bound("Receipts that are ok, of all", float(found["all_ok"]), "at least", 1, ".0f")
