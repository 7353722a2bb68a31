"""SPDL: threads that decode and resize batches by FFmpeg, in the training process.

Needs FFmpeg's shared libraries, which pip does not bring. On Debian 12:
`apt-get install libavcodec59 libavformat59 libavfilter8 libavdevice59`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from itertools import count, islice

import contest
import numpy as np
import spdl.io
import spdl.io.utils
from spdl.pipeline import PipelineBuilder

AHEAD = 4  # batches a thread
SETTINGS = contest.Settings(
    library=f"spdl {version('spdl')}, FFmpeg's libavcodec {spdl.io.utils.get_ffmpeg_versions()['libavcodec']}",
    chosen="a source of shuffled batches of paths, pipe(load_image_batch with a scale filter, concurrency = threads), "
    f"a sink of {AHEAD} batches a thread",
    source="facebookresearch.github.io/spdl: examples/image_dataloading.py",
)


def begin(options: contest.Options) -> contest.Epoch:
    files = [str(file) for file in options.files()]

    stretched = spdl.io.get_video_filter_desc(
        scale_width=contest.SIDE, scale_height=contest.SIDE, scale_mode=None, scale_algo="bilinear", pix_fmt="rgb24"
    )

    def source() -> Iterator[contest.Ids]:
        for number in count():
            order = np.random.default_rng((options.trainer, number)).permutation(len(files))
            yield from (order[first : first + contest.BATCH] for first in range(0, len(order), contest.BATCH))

    def load(ids: contest.Ids) -> contest.Batch:
        paths = [files[each] for each in ids]
        buffer = spdl.io.load_image_batch(paths, width=None, height=None, filter_desc=stretched)
        return spdl.io.to_numpy(buffer), ids

    pipeline = (
        PipelineBuilder()
        .add_source(source())
        .pipe(load, concurrency=options.workers, output_order="input")
        .add_sink(AHEAD * options.workers)
        .build(num_threads=options.workers)
    )
    pipeline.start()
    batches = pipeline.get_iterator()
    steps = -(-len(files) // contest.BATCH)

    def epoch(_: int) -> Iterator[contest.Batch]:
        return islice(batches, steps)

    return epoch


if __name__ == "__main__":
    contest.run(begin, settings=SETTINGS)
