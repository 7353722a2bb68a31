"""The one consumer of the side-by-side comparison: whoever loads, this takes the batches and holds the clock.

A peer is a file beside this one that ends with `contest.run(begin, settings=...)`. The runner starts it with the Python
of the peer's own environment, as `python peers/NAME.py --data PATH [--role ...]`. What is said between them:

1. `begin(options)` returns `epoch`, and `epoch(number)` an iterable of (images, ids): uint8 (B, 128, 128, 3) in C
   order, shuffled, and the samples' positions among the sorted names `class/file` (int64 (B,), or None if it cannot
   tell; only the first epoch is asked).
2. Warm-up: the whole first epoch, with `--verify` every id and every image's mean colour held against the reference;
   without it the warm-up ends after `--warm-s` at the latest.
3. "ready" on standard output; then a line on standard input is the common start of all trainers.
4. For `--settle-s` batches are taken and not counted, so that what was read ahead in the pause does no harm; for
   `--seconds` they are counted, touched (one byte of each page); for as long again, copied into a buffer of our own.
5. One JSON object, last on standard output.

Epochs follow one another without a pause, as in training; what a loader loses between them counts.

This file is frozen and imports nothing of streamd: a change here would change what every older figure means.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SIDE = 128  # pixels
BATCH = 32  # images
PAGE_BYTES = 4096

Images = npt.NDArray[np.uint8]  # (B, SIDE, SIDE, 3)
Ids = npt.NDArray[np.int64]  # (B,)
Batch = tuple[Images, "Ids | None"]
Epoch = Callable[[int], Iterable[Batch]]

START = time.perf_counter  # the only clock


@dataclass(frozen=True, slots=True)
class Options:
    """What the runner wants of a peer. `store` is a folder of the peer's own, made by its `prepare`."""

    data: Path  # a folder of class folders of JPEGs, or a .npy of uint8 (n, SIDE, SIDE, 3)
    store: Path
    workers: int
    trainer: int  # 0, 1, ...: which of `trainers` that take at once this one is
    trainers: int
    address: str  # of what `serve` has started: ipc://..., or 127.0.0.1:port; empty for a peer without

    def files(self) -> list[Path]:
        """All images in the order of their ids."""
        return sorted(self.data.glob("*/*.jpg"), key=lambda file: file.relative_to(self.data).as_posix().encode())


@dataclass(frozen=True, slots=True)
class Settings:
    """What the report says beside the figures."""

    library: str  # with its version: "torch 2.13.0, simplejpeg 1.9.0"
    chosen: str  # the settings, which the library's documentation calls the best
    source: str  # where it does
    inexact: str = ""  # why an epoch cannot be taken exactly once, when the library cannot


def touch(images: Images) -> int:
    """Reads one byte of each page, as cheaply as NumPy can."""
    return int(images.reshape(-1)[::PAGE_BYTES].sum())


def mean_colours(images: Images) -> npt.NDArray[np.float32]:
    """Float32 (B, 3): tells images apart, and red from blue, whoever has decoded and resized them."""
    means: npt.NDArray[np.float32] = images.reshape(len(images), -1, 3).mean(axis=1, dtype=np.float32)
    return means


def endless(epoch: Epoch) -> Iterator[Batch]:
    number = 1  # 0 was the warm-up
    while True:
        yield from epoch(number)
        number += 1


@dataclass(slots=True)
class Warmup:
    """What the first epoch shows: when its first batch came, and which samples."""

    first_batch_s: float
    samples: int
    ids: list[Ids]
    colours: list[npt.NDArray[np.float32]]


def warm_up(epoch: Epoch, begun_s: float, warm_s: float | None) -> Warmup:
    """Takes the first epoch; all of it, and looks at it closely, when `warm_s` is None."""
    found = Warmup(0.0, 0, [], [])
    for images, ids in epoch(0):
        if not found.samples:
            found.first_batch_s = START() - begun_s
            if images.dtype != np.uint8 or images.shape[1:] != (SIDE, SIDE, 3) or not images.flags.c_contiguous:
                sys.exit(f"contest: batches are {images.dtype} {images.shape}, contiguous: {images.flags.c_contiguous}")
        touch(images)
        found.samples += len(images)
        if warm_s is None:
            found.colours.append(mean_colours(images))
            if ids is not None:
                found.ids.append(np.array(ids, dtype=np.int64))
        elif START() - begun_s > warm_s:
            break
    return found


def verdict(found: Warmup, reference: npt.NDArray[np.float32]) -> dict[str, Any]:
    """How the first epoch's samples compare with the `reference`, float32 (n, 3) in the order of ids.

    `worst` and `typical` are grey levels between an image's mean colours and those of the sample that its id names; by
    a peer without ids, between the sorted lists of all images' means.
    """
    colours = np.concatenate(found.colours)
    facts: dict[str, Any] = {"samples": len(colours), "of": len(reference), "ids": bool(found.ids)}
    if found.ids:
        ids = np.concatenate(found.ids)
        counts = np.bincount(ids, minlength=len(reference))
        facts |= {"missed": int((counts == 0).sum()), "repeated": int(np.maximum(counts - 1, 0).sum())}
        apart = np.abs(colours - reference[ids]).max(axis=1)
    else:
        count = min(len(colours), len(reference))
        facts |= {"missed": len(reference) - count, "repeated": len(colours) - count}
        given, wanted = (np.sort(each, axis=0)[:count] for each in (colours, reference))
        apart = np.abs(given - wanted).max(axis=1)
    return facts | {"worst": float(apart.max()), "typical": float(np.median(apart))}


def count(batches: Iterator[Batch], seconds: float, use: Callable[[Images], object]) -> dict[str, Any]:
    """Takes batches for `seconds`; the clock runs from the moment before the first is asked for to the last's end."""
    samples = 0
    wait_s = longest_s = 0.0
    begin_s = now_s = START()
    while now_s - begin_s < seconds:
        images, _ = next(batches)
        got_s = START()
        waited_s = got_s - now_s
        wait_s += waited_s
        longest_s = max(longest_s, waited_s)
        use(images)
        samples += len(images)
        now_s = START()
    taken_s = now_s - begin_s
    return {"samples": samples, "seconds": taken_s, "wait_s": wait_s, "longest_wait_s": longest_s}


def consume(begin: Callable[[Options], Epoch], options: Options, times: argparse.Namespace) -> dict[str, Any]:
    begun_s = START()
    epoch = begin(options)
    found = warm_up(epoch, begun_s, None if times.verify else times.warm_s)
    facts: dict[str, Any] = {"first_batch_s": found.first_batch_s}
    if times.verify:
        return facts | {"verified": verdict(found, np.load(times.verify))}
    batches = endless(epoch)
    next(batches)  # whoever begins an epoch slowly does it before the common start
    print("ready", flush=True)
    sys.stdin.readline()
    count(batches, times.settle_s, touch)
    touched = count(batches, times.seconds, touch)
    private = np.empty((BATCH, SIDE, SIDE, 3), dtype=np.uint8)

    def copy(images: Images) -> None:
        np.copyto(private[: len(images)], images)

    return facts | {"touch": touched, "copy": count(batches, times.seconds, copy)}


def parse() -> tuple[Options, argparse.Namespace]:
    parser = argparse.ArgumentParser(description="One peer of the side-by-side comparison; see contest.py.")
    parser.add_argument("--role", choices=["consume", "prepare", "serve"], default="consume")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--store", type=Path, default=Path())
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--trainer", type=int, default=0)
    parser.add_argument("--trainers", type=int, default=1)
    parser.add_argument("--address", default="")
    parser.add_argument("--verify", type=Path, help="mean colours of all samples, .npy; take one epoch and compare")
    parser.add_argument("--warm-s", type=float, default=6.0)
    parser.add_argument("--settle-s", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    return Options(given.data, given.store, given.workers, given.trainer, given.trainers, given.address), given


def run(
    begin: Callable[[Options], Epoch],
    *,
    settings: Settings,
    prepare: Callable[[Options], None] | None = None,
    serve: Callable[[Options], None] | None = None,
) -> None:
    """What a peer's file ends with. `prepare` makes what lies in `options.store`, once, in a folder of its own; `serve`
    starts what trainers share at `options.address`, prints "serving", and goes on until it is terminated.
    """
    options, given = parse()
    answer: Mapping[str, Any] = {}
    if given.role == "prepare":
        if prepare is not None and not options.store.exists():
            unfinished = options.store.with_name(f"{options.store.name}.unfinished")
            unfinished.mkdir(parents=True)
            prepare(Options(options.data, unfinished, options.workers, 0, 1, ""))
            unfinished.rename(options.store)
    elif given.role == "serve":
        if serve is None:
            sys.exit("contest: this peer has nothing that trainers share")
        serve(options)
    else:
        answer = consume(begin, options, given)
    print(json.dumps({**answer, "settings": asdict(settings)}), flush=True)
    sys.stderr.flush()
    os._exit(0)  # some libraries' threads and processes never end by themselves; the runner ends their group
