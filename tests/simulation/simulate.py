"""scripts/bench simulate: seed after seed in as many processes as there are cores, or the story of one seed.

    scripts/bench simulate --epochs 1000000            until so many epochs are done; --seconds S: for so long
    scripts/bench simulate --seed 7                    what happened in one run, event by event

Exit status 1 when a promise was broken; each such seed is named with the command that replays it.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import count
from pathlib import Path
from typing import Final

from figures import Figures, write_page
from simulator import Simulation

_CHUNK: Final = 50  # seeds that a process runs at a time
_GOOD, _BROKEN = 0, 1


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        return _tell(options.seed)
    processes = options.processes or os.cpu_count() or 1
    figures = _run(options.epochs, options.seconds, processes, options.first)
    sys.stdout.write(figures.text())
    if options.report is not None:
        write_page(options.report, figures, options.epochs, processes)
    return _BROKEN if figures.failures else _GOOD


def _parser() -> argparse.ArgumentParser:
    summary = __doc__.splitlines()[0] if __doc__ else None
    parser = argparse.ArgumentParser(prog="scripts/bench simulate", description=summary)
    parser.add_argument("--epochs", type=int, default=1_000_000, help="epochs to run (default 1000000)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--processes", type=int, default=0, help="default: one a core")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="tell the story of one seed")
    parser.add_argument("--report", type=Path, help="write a page with the figures")
    return parser


def _tell(seed: int) -> int:
    """One run's story."""
    simulation = Simulation(seed)
    outcome = simulation.run()
    sys.stdout.write("\n".join(simulation.story.lines()) + "\n\n")
    sys.stdout.write(outcome.broken or "every promise was kept")
    sys.stdout.write(f"; digest of the story {simulation.story.digest()}\n")
    return _BROKEN if outcome.broken else _GOOD


def _run(epochs: int, seconds: float, processes: int, first: int) -> Figures:
    """Runs seeds in as many processes, and adds up what comes of them until enough is done."""
    total, began_s, starts = Figures(), time.monotonic(), count(first, _CHUNK)
    # Runs are short, and their cycles are collected between two chunks.
    with ProcessPoolExecutor(processes, initializer=gc.disable) as pool:
        running = {pool.submit(_run_chunk, next(starts)) for _ in range(processes)}
        while total.epochs < epochs and total.wall_s < seconds:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for chunk in done:
                total.merge(chunk.result())
                running.add(pool.submit(_run_chunk, next(starts)))
            total.wall_s = time.monotonic() - began_s
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{total.line()}  ")
        pool.shutdown(cancel_futures=True)
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    return total


def _run_chunk(start: int) -> Figures:
    figures = Figures()
    for seed in range(start, start + _CHUNK):
        figures.add(Simulation(seed).run())
    gc.collect()
    return figures


if __name__ == "__main__":
    sys.exit(main())
