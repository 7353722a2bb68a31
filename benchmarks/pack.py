"""How fast `streamd pack` is, beside what bounds it: decoding and nothing else, and the disk that takes the bytes.

    python benchmarks/pack.py FOLDER [--rounds 3] [--to FOLDER] [--workers 2]

A machine's speed drifts, so each round takes the limit, a plain file of as many bytes as the pack, and the pack, one
behind the other, and ratios are taken within a round. A pack's rate is from its first sample until the last one is safe
on the disk; reading it back comes after that, and its time is told beside it. Packs go to the disk of `--to`. Exit
status 1 when a format misses its bound.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import limit
import run
from report import RESULTS, Bound, Machine, Report, Section, finish, tabulate_rounds

FORMATS: Final = ("npy", "hdf5", "lmdb", "tar")
PIECE: Final = bytes(4 << 20)
LEAST: Final = 0.8  # of what bounds a pack: decoding, or the disk


@dataclass(frozen=True, slots=True)
class Round:
    """Rates of one round: samples/s of decoding alone, of a disk that took the same bytes, and of the pack."""

    limit: float
    disk: float
    pack: float
    verify_s: float

    @property
    def of_limit(self) -> float:
        """Of what bounds it: the slower of the two."""
        return self.pack / min(self.limit, self.disk)


def write_s(folder: Path, nbytes: int) -> float:
    """Seconds that so many bytes take until they are safe."""
    path = folder / "plain"
    began_s = time.perf_counter()
    with path.open("wb") as file:
        for start in range(0, nbytes, len(PIECE)):
            file.write(PIECE[: nbytes - start])
        file.flush()
        os.fsync(file.fileno())
    wall_s = time.perf_counter() - began_s
    path.unlink()
    return wall_s


def measure(paths: list[str], config: Path, name: str, workers: int, row_side: int) -> Round:
    """One round of a format."""
    place = config.parent / f"out.{name}"
    command = [str(run.STREAMD), "pack", "--config", str(config), "s", str(place), "--format", name, "--json"]
    limit_s = limit.measure(paths, workers, row_side)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    packed = json.loads(done.stdout.splitlines()[-1])
    subprocess.run(["rm", "-r", str(place)], check=True)  # noqa: S607 - wherever the system has it
    disk_s = write_s(config.parent, packed["bytes"])
    return Round(len(paths) / limit_s, len(paths) / disk_s, packed["samples_per_s"], packed["verified_s"])


def build_report(machine: Machine, samples: int, workers: int, formats: Mapping[str, Sequence[Round]]) -> Report:
    """A table a format."""
    sections = []
    for name, rounds in formats.items():
        table = tabulate_rounds([
            ("decoding alone", [each.limit for each in rounds], ",.0f"),
            ("the disk, as many bytes in a plain file", [each.disk for each in rounds], ",.0f"),
            ("the pack", [each.pack for each in rounds], ",.0f"),
            ("of the slower of both", [each.of_limit for each in rounds], ".2f"),
            ("seconds to read it back", [each.verify_s for each in rounds], ".1f"),
        ])  # fmt: skip
        median = statistics.median(each.of_limit for each in rounds)
        sections.append(Section("", table, f"--format {name}", (Bound("Of the slower", median, "at least", LEAST),)))
    text = (
        "Rounds are interleaved: compare along a column. "
        f"{samples:,} JPEGs of 128x128 from memory, {workers} workers, samples/s: of processes that decode and do "
        "nothing else, of a plain file of as many bytes as the pack, and of the pack until it is safe on the disk."
    )
    title, command = "Packs: what `streamd pack` takes", "python benchmarks/pack.py FOLDER"
    return Report(title, command, machine, text, tuple(sections))


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast packs are made, beside decoding alone and a plain file.")
    parser.add_argument("folder", type=Path, help="a folder of class folders of JPEGs of 128x128")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--to", type=Path, default=None, help="a folder on the disk to write to; default a temporary one"
    )
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    paths = sorted(str(path) for path in options.folder.glob("*/*.jpg"))
    stream = {"source": {"kind": "folder", "path": str(options.folder.absolute())}, "image": {"size": [limit.SIDE] * 2}}
    for path in paths:
        limit.read(path)  # into the page cache
    found: dict[str, list[Round]] = {name: [] for name in FORMATS}
    with tempfile.TemporaryDirectory(dir=options.to) as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(json.dumps({"workers": options.workers, "streams": {"s": stream}}))
        for _ in range(options.rounds):
            for name, rounds in found.items():
                rounds.append(measure(paths, config, name, options.workers, limit.SIDE))
    finish(build_report(run.machine(), len(paths), options.workers, found), RESULTS / "pack.json")


if __name__ == "__main__":
    main()
