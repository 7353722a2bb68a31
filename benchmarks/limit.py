"""The limits that streamd is measured against: processes that read and decode, or one core that copies; nothing else.

    python benchmarks/limit.py FOLDER [--processes 2] [--passes 2] [--row 128]
    python benchmarks/limit.py --copy [--seconds 4]

Processes started together each read their share of the files in shuffled order and decode them with libjpeg-turbo, at
the reduced DCT scale that covers the target, into a batch buffer that is used again and again. No queue, no sharing, no
order to keep. The clock runs from the common start to the last process's end, with every file in the page cache.
Larger images need a buffer of larger rows (`--row 192` for 500x375, which decodes to 188x141); they are not resized.

With `--copy` one core copies batches out of memory. Batches of 32 images of 128x128 lie one after the other in a
gigabyte, more than any cache holds, and are copied in shuffled order into a buffer that is used again and again.

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
SHAPE = (BATCH, SIDE, SIDE, 3)  # of a decoded batch
COPIED_BATCHES = 680  # together a gibibyte


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


def measure_copies(seconds: float) -> tuple[int, float]:
    """Images copied, and the seconds it took."""
    source = np.empty((COPIED_BATCHES, *SHAPE), dtype=np.uint8)
    source.fill(1)  # memory that nobody has written is one page of zeros
    batch = np.zeros(SHAPE, dtype=np.uint8)
    order = list(range(COPIED_BATCHES))
    random.Random(0).shuffle(order)  # noqa: S311 - an order, not a secret
    copied = 0
    begin_s = time.perf_counter()
    while time.perf_counter() - begin_s < seconds:
        for number in order[:32]:
            np.copyto(batch, source[number])
        order = order[32:] + order[:32]
        copied += 32 * SHAPE[0]
    return copied, time.perf_counter() - begin_s


def measure_folder(folder: Path, processes: int, passes: int, row_side: int) -> tuple[int, float]:
    """Images decoded, and the seconds it took. Exits when the folder has none."""
    files = sorted(str(file) for file in folder.glob("*/*.jpg"))
    if not files:
        sys.exit(f"limit: no JPEGs in {folder}/*/: run  python benchmarks/make_data.py  first")
    for file in files:
        read(file)  # into the page cache
    order = files * passes
    random.Random(0).shuffle(order)  # noqa: S311 - an order, not a secret
    return len(order), measure(order, processes, row_side)


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast processes decode JPEGs, or one core copies batches.")
    parser.add_argument("folder", type=Path, nargs="?", help="a folder of class folders of JPEGs of at least 128x128")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--passes", type=int, default=2, help="how often each file is decoded")
    parser.add_argument("--row", type=int, default=SIDE, help="a row of the buffer has room for so many pixels squared")
    parser.add_argument("--copy", action="store_true", help="copies decoded batches instead")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long to copy")
    options = parser.parse_args()
    if options.copy:
        options.processes = 1
        samples, wall_s = measure_copies(options.seconds)
    elif options.folder is None:
        parser.error("name a folder, or --copy")
    else:
        samples, wall_s = measure_folder(options.folder, options.processes, options.passes, options.row)
    print(json.dumps({"samples_per_s": samples / wall_s, "samples": samples, "processes": options.processes}))


if __name__ == "__main__":
    main()
