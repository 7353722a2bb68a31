"""The limit that streamd is measured against: read and decode, and nothing else.

    python benchmarks/limit.py FOLDER [--processes 2] [--passes 2] [--row 128]

Processes started together each read their share of the files in shuffled order and decode them with libjpeg-turbo, at
the reduced DCT scale that covers the target, into a batch buffer that is used again and again. No queue, no sharing, no
order to keep. The clock runs from the common start to the last process's end, with every file in the page cache.
Larger images need a buffer of larger rows (`--row 192` for 500x375, which decodes to 188x141); they are not resized.

This file is frozen and imports nothing of streamd: a change here would change what every older figure means.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import simplejpeg

BATCH = 32  # images a buffer
SIDE = 128  # pixels
READ_BYTES = 16 << 20  # more than any file has, so that one read is the whole file


def read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    data = os.read(descriptor, READ_BYTES)
    os.close(descriptor)
    return data


def decode_all(paths: Sequence[str], row_side: int) -> None:
    batch = np.zeros((BATCH, row_side, row_side, 3), dtype=np.uint8)
    for number, path in enumerate(paths):
        row = batch[number % BATCH]
        simplejpeg.decode_jpeg(read(path), "RGB", min_height=SIDE, min_width=SIDE, buffer=row)


def start(paths: Sequence[str], row_side: int, ready: int, go: tuple[int, int]) -> int:
    """Forks a process that says it is `ready`, waits for the writing end of `go` to close everywhere, and decodes."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(go[1])
            os.write(ready, b"r")
            os.read(go[0], 1)
            decode_all(paths, row_side)
            status = 0
        finally:
            os._exit(status)
    return pid


def measure(paths: Sequence[str], processes: int, row_side: int) -> float:
    """Seconds from the common start to the end of the last process. Exits when one of them fails."""
    go, ready = os.pipe(), os.pipe()
    pids = [start(paths[number::processes], row_side, ready[1], go) for number in range(processes)]
    for _ in pids:
        os.read(ready[0], 1)
    begin_s = time.perf_counter()
    os.close(go[1])
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    wall_s = time.perf_counter() - begin_s
    if any(statuses):
        sys.exit(f"limit: a process failed: {statuses}")
    return wall_s


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast processes read and decode JPEGs and do nothing else.")
    parser.add_argument("folder", type=Path, help="a folder of class folders of JPEGs of at least 128x128")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--passes", type=int, default=2, help="how often each file is decoded")
    parser.add_argument("--row", type=int, default=SIDE, help="a row of the buffer has room for so many pixels squared")
    options = parser.parse_args()
    files = sorted(str(file) for file in options.folder.glob("*/*.jpg"))
    if not files:
        sys.exit(f"limit: no JPEGs in {options.folder}/*/: run  python benchmarks/make_data.py  first")
    for file in files:
        read(file)  # into the page cache
    order = files * options.passes
    random.Random(0).shuffle(order)  # noqa: S311 - an order, not a secret
    wall_s = measure(order, options.processes, options.row)
    print(json.dumps({"samples_per_s": len(order) / wall_s, "samples": len(order), "processes": options.processes}))


if __name__ == "__main__":
    main()
