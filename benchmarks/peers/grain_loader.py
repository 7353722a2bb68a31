"""Grain over loose files, with its processes and its global shuffle."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from itertools import islice

import contest
import grain
import numpy as np
import turbo_image

SETTINGS = contest.Settings(
    library=f"grain {version('grain')}, {turbo_image.LIBRARIES}",
    chosen="MapDataset.range, shuffle, map (reduced DCT scale), batch, repeat; ReadOptions(num_threads=0), "
    "mp_prefetch with a process a worker and per_worker_buffer_size 4",
    source="google-grain.readthedocs.io: 'Dataset basics', 'Performance & debugging'; ReadOptions",
)


def begin(options: contest.Options) -> contest.Epoch:
    files = [str(file) for file in options.files()]

    def load(each: int) -> tuple[contest.Images, np.int64]:
        image = np.empty((contest.SIDE, contest.SIDE, 3), dtype=np.uint8)
        turbo_image.fill_from(files[each], image)
        return image, np.int64(each)

    samples = grain.MapDataset.range(len(files)).seed(options.trainer).shuffle().map(load)
    endless = samples.batch(contest.BATCH).repeat()
    reading = grain.ReadOptions(num_threads=0, prefetch_buffer_size=4)
    processes = grain.MultiprocessingOptions(num_workers=options.workers, per_worker_buffer_size=4)
    batches = iter(endless.to_iter_dataset(reading).mp_prefetch(processes))
    steps = -(-len(files) // contest.BATCH)

    def epoch(_: int) -> Iterator[contest.Batch]:
        return islice(batches, steps)

    return epoch


if __name__ == "__main__":
    contest.run(begin, settings=SETTINGS)
