"""A NumPy memmap and a fancy index a batch, in the training process: what decoded data costs without any loader."""

from __future__ import annotations

from collections.abc import Iterator

import contest
import numpy as np

SETTINGS = contest.Settings(
    library=f"NumPy {np.__version__}",
    chosen="np.load(mmap_mode='r'), one permutation an epoch, images[ids] a batch",
    source="numpy.org: numpy.memmap, advanced indexing",
)


def begin(options: contest.Options) -> contest.Epoch:
    images = np.load(options.data, mmap_mode="r")

    def epoch(number: int) -> Iterator[tuple[contest.Images, contest.Ids]]:
        order = np.random.default_rng((options.trainer, number)).permutation(len(images))
        for first in range(0, len(order), contest.BATCH):
            ids = order[first : first + contest.BATCH]
            yield images[ids], ids

    return epoch


if __name__ == "__main__":
    contest.run(begin, settings=SETTINGS)
