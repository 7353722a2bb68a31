"""Files of PyTables scripts: their own generator, and streamd on the same file.

    python benchmarks/hdf5.py [--rounds 3] [--data FOLDER] [--results FILE.json]

Writes the files once. Each round takes every file by both; both are verified first to give the right samples. Exit
status 1 when what was promised is missed.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import loader_process
import make_data
import numpy as np
import numpy.typing as npt
import run
import tables
from report import Bound, Machine, Report, Section, finish, tabulate_rounds

Images = npt.NDArray[np.uint8]  # (n, H, W, 3)
Colours = npt.NDArray[np.float32]  # (n, 3)

HERE: Final = Path(__file__).resolve().parent
TIMES: Final = ("--warm-s", "0.5", "--settle-s", "0.5", "--seconds", "1")
LIMIT_S: Final = 60.0
WORST: Final = 0.01  # grey levels between an image's mean colours and those of what was written
GENERATOR: Final = "pytables_chunks"
STREAMD: Final = "streamd_"
LEAST: Final = 3.0  # times the generator, on the file as scripts write it
VERSIONS: Final = f"PyTables {tables.__version__}, HDF5 {tables.hdf5_version}"


@dataclass(frozen=True, slots=True)
class File:
    """One file: how it was written, and samples a second of both, an entry a round."""

    name: str
    samples: int
    chunk: int  # images of a chunk, as PyTables chose
    generator: tuple[float, ...]
    streamd: tuple[float, ...]

    @property
    def times(self) -> tuple[float, ...]:
        """streamd's rate by the generator's, in each round."""
        return tuple(ours / theirs for ours, theirs in zip(self.streamd, self.generator, strict=True))


@dataclass(frozen=True, slots=True)
class Store:
    """A file of the first `samples` images: /images of images.h5 in a folder of its own."""

    name: str
    folder: Path
    samples: int
    filters: tables.Filters | None = None

    @property
    def path(self) -> Path:
        return self.folder / "images.h5"

    @property
    def colours(self) -> Path:
        """The mean colours of its images, for the verification."""
        return self.folder / "colours.npy"

    def write(self, images: Images, colours: Colours) -> None:
        """Once, as scripts do: image by image."""
        if self.colours.exists():  # the last thing that is written
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with tables.open_file(str(self.path), "w") as file:
            rows = file.create_earray(
                file.root, "images", tables.UInt8Atom(), (0, *images.shape[1:]), filters=self.filters
            )
            for image in images[: self.samples]:
                rows.append(image[np.newaxis])
        np.save(self.colours, colours[: self.samples])

    def chunk(self) -> int:
        """Images of a chunk."""
        with tables.open_file(str(self.path)) as file:
            return int(file.root.images.chunkshape[0])

    def stream(self) -> dict[str, Any]:
        return {"source": {"kind": "hdf5", "path": str(self.path), "images": "/images"}, "batch_size": 32}


def ask(peer: str, options: Sequence[str]) -> dict[str, Any]:
    """What one of `peers/` says when it has taken its batches."""
    command = [sys.executable, str(HERE / "peers" / f"{peer}.py"), *options]
    with loader_process.started([command], LIMIT_S) as (process,):
        if "--verify" not in options:
            process.wait_for("ready")
            process.tell("\n")
        return process.answer()


def options_of(peer: str, store: Store, address: str) -> list[str]:
    place = ["--store", str(store.folder)] if peer == GENERATOR else ["--address", address]
    return ["--data", str(store.path), *place]


def verify(peer: str, options: Sequence[str], colours: Path) -> None:
    """Exits unless a whole epoch holds every sample once, with its own colours."""
    found = ask(peer, [*options, "--verify", str(colours)])["verified"]
    if found["missed"] or found["repeated"] or found["worst"] > WORST:
        sys.exit(f"hdf5: {peer} does not give the samples of the file: {found}")


def rate(peer: str, options: Sequence[str]) -> float:
    """Samples a second of one trainer."""
    touched = ask(peer, [*options, *TIMES])["touch"]
    return float(touched["samples"] / touched["seconds"])


def measure_round(store: Store, *, first: bool) -> tuple[float, float]:
    """Of the generator and of streamd, each alone."""
    rates = []
    for peer in (GENERATOR, STREAMD):
        with run.serve_stream(store.stream()) if peer == STREAMD else nullcontext() as daemon:
            options = options_of(peer, store, "" if daemon is None else daemon.endpoint)
            if first:
                verify(peer, options, store.colours)
            rates.append(rate(peer, options))
    return rates[0], rates[1]


def measure(stores: Sequence[Store], rounds: int) -> list[File]:
    """The first of them is the one as scripts write it."""
    found: list[list[tuple[float, float]]] = [[] for _ in stores]
    for number in range(rounds):
        for rates, store in zip(found, stores, strict=True):
            rates.append(measure_round(store, first=not number))
        told = "; ".join(f"{each[-1][0]:,.0f} and {each[-1][1]:,.0f}" for each in found)
        print(f"round {number + 1}: generator and streamd {told}")
    return [
        File(store.name, store.samples, store.chunk(), *map(tuple, zip(*rates, strict=True)))
        for store, rates in zip(stores, found, strict=True)
    ]


def build_report(machine: Machine, versions: str, files: Sequence[File]) -> Report:
    """A table a file; the first one is held to the bound."""
    sections = [
        Section(
            f"{file.name}: {file.samples:,} images, of which PyTables puts {file.chunk} into a chunk:",
            tabulate_rounds([
                ("the generator", file.generator, ",.0f"),
                ("streamd", file.streamd, ",.0f"),
                ("times", file.times, ".2f"),
            ]),
        )
        for file in files
    ]  # fmt: skip
    bound = Bound("Times the generator, on the first file", statistics.median(files[0].times), "at least", LEAST)
    text = (
        f"{versions}. Rounds are interleaved: compare along a column. Images of 128x128x3, appended one at a time to "
        "an EArray of uint8 without further settings. One trainer takes batches of 32, samples/s: from the generator "
        "of such scripts, which reads 100 batches at a time, shuffles them and cuts them up, and from streamd with its "
        "defaults, on the same file."
    )
    title, command = "HDF5: the files of PyTables scripts", "python benchmarks/hdf5.py"
    return Report(title, command, machine, text, (*sections, Section("", bounds=(bound,))))


def stores_in(data: Path) -> list[Store]:
    """The files that are measured, the one as scripts write it first."""
    zlib = tables.Filters(complevel=5, complib="zlib")
    return [
        Store("Not compressed", data / "hdf5.plain", make_data.IMAGES),
        Store("Compressed, zlib 5", data / "hdf5.zlib", make_data.IMAGES // 5, zlib),
    ]


def main() -> None:
    parser = run.build_parser("Files of PyTables scripts, by their generator and by streamd.", "hdf5", rounds=3)
    parser.set_defaults(data=make_data.DATA)
    options = parser.parse_args()
    make_data.make_all(options.data)
    stores = stores_in(options.data)
    images, colours = (np.load(options.data / name, mmap_mode="r") for name in ("s.npy", "s.colours.npy"))
    for store in stores:
        store.write(images, colours)
    files = measure(stores, options.rounds)
    finish(build_report(run.machine(), VERSIONS, files), options.results)


if __name__ == "__main__":
    main()
