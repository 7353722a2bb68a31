"""scripts/bench simulate: seed after seed in as many processes as there are cores, or the story of one seed.

    scripts/bench simulate --epochs 1000000            until so many epochs are done; --seconds S: for so long
    scripts/bench simulate --seed 7                    what happened in one run, event by event

Exit status 1 when a promise was broken; each such seed is named with the command that replays it.
"""

from __future__ import annotations

import argparse
import gc
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from figures import Figures, write_page
from simulator import Simulation

_CHUNK: Final = 50  # seeds that a process runs between two lines of its own
_GOOD, _BROKEN = 0, 1


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        return _tell(options.seed)
    if options.chunks:
        return _work(options.first, options.stride)
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
    parser.add_argument("--chunks", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--stride", type=int, default=1, help=argparse.SUPPRESS)
    return parser


def _tell(seed: int) -> int:
    """One run's story."""
    simulation = Simulation(seed)
    outcome = simulation.run()
    sys.stdout.write("\n".join(simulation.story.lines()) + "\n\n")
    sys.stdout.write(outcome.broken or "every promise was kept")
    sys.stdout.write(f"; digest of the story {simulation.story.digest()}\n")
    return _BROKEN if outcome.broken else _GOOD


# --- a process of many: a line of JSON for every chunk, until nobody listens


def _work(first: int, stride: int) -> int:
    gc.disable()  # runs are short, and their cycles are collected between two chunks
    with suppress(BrokenPipeError):
        for start in _starts(first, stride):
            figures = Figures()
            for seed in range(start, start + _CHUNK):
                figures.add(Simulation(seed).run())
            gc.collect()
            sys.stdout.write(figures.to_json() + "\n")
            sys.stdout.flush()
    return _GOOD


def _starts(first: int, stride: int) -> Iterator[int]:
    start = first
    while True:
        yield start
        start += stride * _CHUNK


# --- the one that adds up


def environment() -> dict[str, str]:
    """Where a process of many finds what this one has found."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _run(epochs: int, seconds: float, processes: int, first: int) -> Figures:
    """Starts the processes and adds up what they say, until enough is done."""
    total, began_s = Figures(), time.monotonic()
    command = [sys.executable, __file__, "--chunks", f"--stride={processes}"]
    workers = [
        subprocess.Popen(
            [*command, f"--first={first + number * _CHUNK}"], stdout=subprocess.PIPE, env=environment(), text=True
        )
        for number in range(processes)
    ]
    try:
        for line in _lines([worker.stdout for worker in workers if worker.stdout]):
            total.merge(Figures.from_json(line))
            total.wall_s = time.monotonic() - began_s
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{total.line()}  ")
            if total.epochs >= epochs or total.wall_s >= seconds:
                break
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    return total


def _lines(streams: Sequence[IO[str]]) -> Iterator[str]:
    """Lines as they come; ends when a process does, which none should."""
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ, stream)
        while True:
            for key, _ in selector.select():
                line = key.data.readline()
                if not line:
                    raise RuntimeError("a process of the simulation ended; its reason stands above")
                yield line


if __name__ == "__main__":
    sys.exit(main())
