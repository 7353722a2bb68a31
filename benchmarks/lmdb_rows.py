"""Rows of an LMDB file into a slot: from offsets of the mapped file, as streamd does, and through LMDB's own library.

    python benchmarks/lmdb_rows.py [--rounds 9] [--samples 4000] [--results FILE.json]

The library opens the file with readonly=True and lock=False, and gives values as buffers, in one read transaction a
batch. Each round gathers the same random batches in each way, by processor time. Exit status 1 when offsets
win by so little that the library should read.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import lmdb
import msgspec
import numpy as np
import numpy.typing as npt
import run
from report import RESULTS, Bound, Machine, Report, Section, finish, tabulate_rounds

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.lmdb_files import value_of
from support.stores_on_disk import OpenedStore

BATCH: Final = 32
BATCHES: Final = 200  # a round
SIDES: Final = (32, 128)  # of the images, in pixels
LEAST: Final = 1.3  # times the library's processor time, below which the library should read
OFFSETS, LIBRARY, PARSED = "offsets of the mapped file", "the library, place in the value known", "the library, parsed"

Ids = npt.NDArray[np.int64]
Gather = Callable[[Ids, npt.NDArray[np.uint8]], None]


def write_samples(path: Path, samples: int, side: int) -> npt.NDArray[np.uint8]:
    """Writes random images as ml-pyxis does; returns them."""
    images = np.random.default_rng(0).integers(0, 256, (samples, side, side, 3), dtype=np.uint8)
    with lmdb.open(str(path), map_size=2 * images.nbytes + (64 << 20), max_dbs=4) as environment:
        data, meta = environment.open_db(b"data_db"), environment.open_db(b"meta_db")
        with environment.begin(write=True) as transaction:
            for number, image in enumerate(images):
                transaction.put(b"%010d" % number, value_of({"X": image, "y": number}), db=data)
            transaction.put(b"nb_samples", str(samples).encode(), db=meta)
    return images


def read_value(transaction: lmdb.Transaction, number: int) -> memoryview:
    """The value of a sample, as a buffer."""
    value = transaction.get(b"%010d" % number)
    if value is None:
        sys.exit(f"lmdb_rows: there is no sample {number}")
    return memoryview(value)


def build_library_ways(environment: lmdb.Environment, images: npt.NDArray[np.uint8]) -> dict[str, Gather]:
    """Both ways through LMDB's own library."""
    data = environment.open_db(b"data_db", create=False)
    with environment.begin(db=data, buffers=True) as transaction:
        start = bytes(read_value(transaction, 0)).index(images[0].tobytes())  # of the pixels, the same in all values
    row_bytes = images[0].nbytes
    decoder = msgspec.msgpack.Decoder(dict[str, memoryview])

    def gather_known(ids: Ids, out: npt.NDArray[np.uint8]) -> None:
        rows = out.reshape(len(out), -1)
        with environment.begin(db=data, buffers=True) as transaction:
            for place, number in enumerate(ids.tolist()):
                rows[place] = np.frombuffer(read_value(transaction, number), np.uint8, row_bytes, start)

    def gather_parsed(ids: Ids, out: npt.NDArray[np.uint8]) -> None:
        rows = out.reshape(len(out), -1)
        with environment.begin(db=data, buffers=True) as transaction:
            for place, number in enumerate(ids.tolist()):
                array: Mapping[Any, Any] = msgspec.msgpack.decode(
                    decoder.decode(read_value(transaction, number))["X"], type=dict[bytes, Any]
                )
                rows[place] = np.frombuffer(array[b"data"], np.uint8)

    return {LIBRARY: gather_known, PARSED: gather_parsed}


def measure_way(gather: Gather, batches: Sequence[Ids], images: npt.NDArray[np.uint8]) -> float:
    """Microseconds of processor time a row. Exits when the rows are others."""
    out = np.empty((BATCH, *images.shape[1:]), np.uint8)
    gather(batches[0], out)
    if not np.array_equal(out, images[batches[0]]):
        sys.exit("lmdb_rows: the rows are not those that were asked for")
    began_s = time.process_time()
    for ids in batches:
        gather(ids, out)
    return 1e6 * (time.process_time() - began_s) / (len(batches) * BATCH)


def measure_side(home: Path, side: int, samples: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds a row of each way, a round an entry."""
    path = home / f"{side}.lmdb"
    images = write_samples(path, samples, side)
    opened = OpenedStore({"kind": "lmdb", "path": str(path), "images": "X"}, home / f"state-{side}")
    rng, found = np.random.default_rng(1), dict[str, list[float]]()

    def gather_offsets(ids: Ids, out: npt.NDArray[np.uint8]) -> None:
        opened.store.gather(ids, {"image": out})

    with lmdb.open(str(path), readonly=True, lock=False, max_dbs=4) as environment:
        ways = {OFFSETS: gather_offsets, **build_library_ways(environment, images)}
        for _ in range(rounds):
            batches = [rng.integers(0, samples, BATCH) for _ in range(BATCHES)]
            for name, gather in ways.items():
                found.setdefault(name, []).append(measure_way(gather, batches, images))
    opened.close()
    return found


def build_report(machine: Machine, found: Mapping[int, Mapping[str, Sequence[float]]]) -> Report:
    """A table for each size of images."""
    sections, best = [], 0.0
    for side, ways in found.items():
        times = [theirs / ours for theirs, ours in zip(ways[LIBRARY], ways[OFFSETS], strict=True)]
        best = max(best, statistics.median(times))
        table = tabulate_rounds([
            *((name, values, ",.1f") for name, values in ways.items()),
            ("the library, place known, times offsets", times, ".2f"),
        ])  # fmt: skip
        sections.append(Section("", table, f"Images of {side}x{side}x3"))
    bound = Bound("The library at its best, times offsets, for one size", best, "at least", LEAST)
    text = (
        f"Batches of {BATCH} random rows from memory into an array, microseconds of processor time a row, in "
        f"interleaved rounds. The library stands against offsets at its best: the place of the pixels in a value is "
        f"known. Offsets stay as long as they win by {LEAST:g} for one size."
    )
    title, command = "LMDB: rows by offsets or by the library", "python benchmarks/lmdb_rows.py"
    return Report(title, command, machine, text, (*sections, Section("", bounds=(bound,))))


def main() -> None:
    parser = argparse.ArgumentParser(description="Rows of an LMDB file, by offsets and through LMDB's own library.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--results", type=Path, default=RESULTS / "lmdb_rows.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="streamd-bench-") as home:
        found = {side: measure_side(Path(home), side, options.samples, options.rounds) for side in SIDES}
    finish(build_report(run.machine(), found), options.results)


if __name__ == "__main__":
    main()
