"""The limit of decoded data: one core that copies batches out of memory, and nothing else.

    python benchmarks/limit_copy.py [--seconds 4]

Batches of 32 images of 128x128 lie one after the other in a gigabyte, more than any cache holds, and are copied in
shuffled order into a buffer that is used again and again.

This file is frozen and imports nothing of streamd: a change here would change what every older figure means.
"""

from __future__ import annotations

import argparse
import json
import random
import time

import numpy as np

SHAPE = (32, 128, 128, 3)  # a batch
BATCHES = 680  # together a gibibyte


def measure(seconds: float) -> tuple[int, float]:
    """Images copied, and the seconds it took."""
    source = np.empty((BATCHES, *SHAPE), dtype=np.uint8)
    source.fill(1)  # memory that nobody has written is one page of zeros
    batch = np.zeros(SHAPE, dtype=np.uint8)
    order = list(range(BATCHES))
    random.Random(0).shuffle(order)  # noqa: S311 - an order, not a secret
    copied = 0
    begin_s = time.perf_counter()
    while time.perf_counter() - begin_s < seconds:
        for number in order[:32]:
            np.copyto(batch, source[number])
        order = order[32:] + order[:32]
        copied += 32 * SHAPE[0]
    return copied, time.perf_counter() - begin_s


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast one core copies batches of images and does nothing else.")
    parser.add_argument("--seconds", type=float, default=4.0)
    samples, wall_s = measure(parser.parse_args().seconds)
    print(json.dumps({"samples_per_s": samples / wall_s, "samples": samples, "processes": 1}))


if __name__ == "__main__":
    main()
