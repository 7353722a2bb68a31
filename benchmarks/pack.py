"""How fast `streamd pack` is, beside what bounds it: decoding and nothing else, and the disk that takes the bytes.

    python benchmarks/pack.py FOLDER [--rounds 3] [--to FOLDER] [--workers 2]

A machine's speed drifts, so each round takes the limit, a plain file of as many bytes as the pack, and the pack, one
behind the other, and ratios are taken within a round. A pack's rate is from its first sample until the last one is safe
on the disk; reading it back comes after that, and its time is told beside it. Packs go to the disk of `--to`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import limit
import run
from pack_page import PAGE, Packs, Round, render

STREAMD: Final = Path(sys.executable).with_name("streamd")
FORMATS: Final = ("npy", "hdf5", "lmdb", "tar")
PIECE: Final = bytes(4 << 20)


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
    command = [str(STREAMD), "pack", "--config", str(config), "s", str(place), "--format", name, "--json"]
    limit_s = limit.measure(paths, workers, row_side)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    packed = json.loads(done.stdout.splitlines()[-1])
    subprocess.run(["rm", "-r", str(place)], check=True)  # noqa: S607 - wherever the system has it
    disk_s = write_s(config.parent, packed["bytes"])
    return Round(len(paths) / limit_s, len(paths) / disk_s, packed["samples_per_s"], packed["verified_s"])


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
    formats = {name: tuple(rounds) for name, rounds in found.items()}
    packs = Packs(run.machine(), len(paths), options.workers, formats)
    PAGE.save(packs, PAGE.results)
    print(render(packs))


if __name__ == "__main__":
    main()
