"""The generator of a first attempt: the training loop opens, decodes and resizes by Pillow, image after image."""

from __future__ import annotations

from collections.abc import Iterator

import contest
import numpy as np
import PIL
from PIL import Image

SIZE = (contest.SIDE, contest.SIDE)
SETTINGS = contest.Settings(
    library=f"Pillow {PIL.__version__}",
    chosen="Image.open, convert, resize, np.asarray in the training process; one permutation an epoch",
    source="Pillow's tutorial; tuning it would make it another row",
)


def load(path: str) -> contest.Images:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB").resize(SIZE))


def begin(options: contest.Options) -> contest.Epoch:
    files = [str(file) for file in options.files()]

    def epoch(number: int) -> Iterator[contest.Batch]:
        order = np.random.default_rng((options.trainer, number)).permutation(len(files))
        for first in range(0, len(order), contest.BATCH):
            ids = order[first : first + contest.BATCH]
            yield np.stack([load(files[each]) for each in ids]), ids

    return epoch


if __name__ == "__main__":
    contest.run(begin, settings=SETTINGS)
