"""What masks cost: workers that serve photos with their masks, beside processes that read, decode and resize both.

    python benchmarks/masks.py [--rounds 9] [--batches 40] [--results FILE]

The data are JPEGs of 500x375 with a palette PNG of the same size each, made once in a temporary folder. A trainer
drains so many batches while the workers' processor time is counted; then a process reads the same number of both files,
decodes the JPEG at the reduced scale that covers the target, resizes it bilinearly, decodes the mask by Pillow, resizes
it to the nearest pixel, and does nothing else. The two take turns. The page is results/masks.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final

import cv2
import numpy as np
import run
import simplejpeg
from PIL import Image
from processes import children, cpu_ns
from report import RESULTS, Bound, Machine, Report, Section, Table, finish

import streamd
from streamd.client.batch import Batch

HEIGHT, WIDTH = 375, 500
SIDE: Final = 224
PHOTOS: Final = 256
CLASSES: Final = 21
BATCH: Final = 32
LEAST: Final = 0.9  # of the rate of processes that do nothing else, by processor time
_READ_BYTES: Final = 16 << 20  # more than any file has
_NS: Final = 1e9
_IDLE_S: Final = 0.3
_IDLE_NS: Final = 1_000_000  # less than decoding a single photo


@dataclass(frozen=True, slots=True)
class Round:
    """Processor seconds for the same number of photos with masks: of the workers, and of a process without a server."""

    workers_s: float
    alone_s: float

    @property
    def ratio(self) -> float:
        """The workers' rate as a part of that of the process."""
        return self.alone_s / self.workers_s


def build_report(machine: Machine, photos: int, rounds: list[Round]) -> Report:
    """One line for the workers, one for the process beside them, and the median of the ratios of the rounds."""
    per_photo = 1e6 / photos
    rows = tuple(
        (name, f"{per_photo * statistics.median(taken):,.0f}", f"{per_photo * min(taken):,.0f}")
        for name, taken in (
            ("streamd's workers", [each.workers_s for each in rounds]),
            ("a process that reads, decodes and resizes both", [each.alone_s for each in rounds]),
        )
    )
    ratio = statistics.median(each.ratio for each in rounds)
    text = (
        f"JPEGs of {WIDTH}x{HEIGHT}, each with a palette PNG of the same size, served as {SIDE}x{SIDE} with "
        f"`like: photo` and `mode: index`; {photos:,} of both in each of {len(rounds)} rounds."
    )
    bound = Bound("Rate of the workers, by processor time, as a part of that of the process", ratio, "at least", LEAST)
    table = Table(("what", "µs of processor a photo with its mask, median", "least"), rows)
    section = Section(text, table, bounds=(bound,))
    return Report("What masks cost", "python benchmarks/masks.py", machine, "Its docstring says how.", (section,))


def write_photos_with_masks(folder: Path, count: int = PHOTOS) -> None:
    """Writes `photos/N.jpg` and `masks/N.png`: smooth noise, and regions of class numbers."""
    rng = np.random.default_rng(0)
    for name in ("photos", "masks"):
        (folder / name).mkdir(parents=True)
    for number in range(count):
        coarse = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        photo = cv2.resize(coarse, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
        grain = rng.integers(-12, 13, photo.shape)
        Image.fromarray(np.clip(photo + grain, 0, 255).astype(np.uint8)).save(
            folder / "photos" / f"{number}.jpg", quality=85
        )
        regions = rng.integers(0, CLASSES, (12, 16), dtype=np.uint8)
        numbers = cv2.resize(regions, (WIDTH, HEIGHT), interpolation=cv2.INTER_NEAREST)
        mask = Image.frombytes("P", (WIDTH, HEIGHT), numbers.tobytes())
        mask.putpalette([(37 * place) % 256 for place in range(768)])
        mask.save(folder / "masks" / f"{number}.png")


def decode_alone(folder: Path, numbers: list[int]) -> float:
    """Reads, decodes and resizes photos and masks; returns the processor seconds that this took."""
    photos = np.empty((BATCH, SIDE, SIDE, 3), np.uint8)
    masks = np.empty((BATCH, SIDE, SIDE), np.uint8)
    begin_s = time.process_time()
    for place, number in enumerate(numbers):
        pixels = simplejpeg.decode_jpeg(
            _read(folder / "photos" / f"{number}.jpg"), "RGB", min_height=SIDE, min_width=SIDE
        )
        cv2.resize(pixels, (SIDE, SIDE), dst=photos[place % BATCH], interpolation=cv2.INTER_LINEAR)
        with Image.open(BytesIO(_read(folder / "masks" / f"{number}.png"))) as mask:
            masks[place % BATCH] = np.asarray(mask.resize((SIDE, SIDE), Image.Resampling.NEAREST))
    return time.process_time() - begin_s


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, _READ_BYTES)
    finally:
        os.close(descriptor)


def build_config(folder: Path) -> dict[str, object]:
    """A stream of the photos with their masks, for two workers."""
    photo = {"size": [SIDE, SIDE]}
    mask = {"from": "{stem}.png", "root": str(folder / "masks"), "like": "photo", "mode": "index"}
    source = {"kind": "folder", "path": str(folder / "photos")}
    train = {"source": source, "images": {"photo": photo, "mask": mask}, "batch_size": BATCH}
    return {"memory": "32MiB", "workers": 2, "streams": {"train": train}}


def measure(rounds: int, batches: int) -> list[Round]:
    """Serves and decodes in turns, and returns what each round took."""
    cv2.setNumThreads(1)
    with tempfile.TemporaryDirectory(prefix="sd") as place:
        folder = Path(place) / "data"
        write_photos_with_masks(folder)
        with run.Daemon(Path(place), build_config(folder)) as daemon:
            daemon.wait_ready()
            with streamd.connect(daemon.endpoint) as client, client.subscribe("train", epochs=None) as stream:
                every = iter(stream)
                taken = [_measure_round(daemon.pid, every, folder, batches) for _ in range(rounds + 1)]
    return taken[1:]  # the first warms the page cache


def _measure_round(daemon: int, stream: Iterator[Batch], folder: Path, batches: int) -> Round:
    # The workers decode a few batches ahead. They have done so at both ends, so as many are decoded as are taken.
    workers = children(daemon)
    before_ns = _wait_until_idle(workers)
    for _ in range(batches):
        next(stream)
    workers_s = (_wait_until_idle(workers) - before_ns) / _NS
    return Round(workers_s, decode_alone(folder, [number % PHOTOS for number in range(batches * BATCH)]))


def _wait_until_idle(workers: list[int]) -> int:
    """Waits until the workers use no processor time, and returns what they have used, in nanoseconds."""
    used_ns = cpu_ns(workers)
    while True:
        time.sleep(_IDLE_S)
        now_ns = cpu_ns(workers)
        if now_ns - used_ns < _IDLE_NS:
            return now_ns
        used_ns = now_ns


def main() -> None:
    parser = argparse.ArgumentParser(description="What photos with masks cost, in processor time.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--results", type=Path, default=RESULTS / "masks.json")
    options = parser.parse_args()
    rounds = measure(options.rounds, options.batches)
    finish(build_report(run.machine(), options.batches * BATCH, rounds), options.results)


if __name__ == "__main__":
    main()
