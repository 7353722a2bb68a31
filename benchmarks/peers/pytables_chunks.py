"""A generator over a PyTables EArray: read a chunk of 100 batches in one piece, shuffle it, cut it into batches."""

from __future__ import annotations

from collections.abc import Iterator

import contest
import numpy as np
import tables

CHUNK = 100 * contest.BATCH  # samples
SETTINGS = contest.Settings(
    library=f"PyTables {tables.__version__}, HDF5 {tables.hdf5_version}",
    chosen=f"EArray with expectedrows and a chunkshape of one batch, not compressed; chunks of {CHUNK} samples in "
    "shuffled order, read(out=) into one buffer, shuffled within",
    source="pytables.org: 'Optimization tips', EArray.read",
)


def prepare(options: contest.Options) -> None:
    images = np.load(options.data, mmap_mode="r")
    with tables.open_file(str(options.store / "images.h5"), "w") as file:
        rows = file.create_earray(
            "/",
            "images",
            tables.UInt8Atom(),
            shape=(0, *images.shape[1:]),
            chunkshape=(contest.BATCH, *images.shape[1:]),
            expectedrows=len(images),
        )
        for first in range(0, len(images), CHUNK):
            rows.append(images[first : first + CHUNK])


def begin(options: contest.Options) -> contest.Epoch:
    rows = tables.open_file(str(options.store / "images.h5")).root.images
    buffer = np.empty((CHUNK, *rows.shape[1:]), dtype=np.uint8)

    def epoch(number: int) -> Iterator[contest.Batch]:
        rng = np.random.default_rng((options.trainer, number))
        for first in rng.permutation(np.arange(0, len(rows), CHUNK)):
            chunk = buffer[: min(CHUNK, len(rows) - first)]
            rows.read(first, first + len(chunk), out=chunk)
            order = rng.permutation(len(chunk))
            for cut in range(0, len(order), contest.BATCH):
                places = order[cut : cut + contest.BATCH]
                yield chunk[places], first + places

    return epoch


if __name__ == "__main__":
    contest.run(begin, settings=SETTINGS, prepare=prepare)
