"""Producer processes and a multiprocessing.Queue: each takes a chunk of 100 batches and queues them one by one.

A generation of Keras users wrote this; everything is pickled through a pipe, once in and once out.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.queues import Queue
from typing import Any

import contest
import numpy as np
import turbo_image

CHUNK = 100 * contest.BATCH  # samples
WAITING = 50  # batches; 78 MB
SETTINGS = contest.Settings(
    library=f"Python's multiprocessing, {turbo_image.LIBRARIES}",
    chosen=f"a permutation an epoch, cut into chunks of {CHUNK} samples; a process decodes a chunk at the reduced DCT "
    f"scale and puts each batch when it is full; Queue(maxsize={WAITING})",
    source="docs.python.org: multiprocessing, 'Exchanging objects between processes'; simplejpeg's README",
)


def produce(files: list[str], chunks: Queue[Any], batches: Queue[Any]) -> None:
    while True:
        number, chunk = chunks.get()
        for first in range(0, len(chunk), contest.BATCH):
            ids = chunk[first : first + contest.BATCH]
            images = np.empty((len(ids), contest.SIDE, contest.SIDE, 3), dtype=np.uint8)
            for row, each in zip(images, ids, strict=True):
                turbo_image.fill_from(files[each], row)
            batches.put((number, images, ids))


def begin(options: contest.Options) -> contest.Epoch:
    files = [str(file) for file in options.files()]
    chunks: Queue[Any] = multiprocessing.Queue()
    batches: Queue[Any] = multiprocessing.Queue(WAITING)
    for _ in range(options.workers):
        multiprocessing.Process(target=produce, args=(files, chunks, batches), daemon=True).start()

    def ask(number: int) -> None:
        order = np.random.default_rng((options.trainer, number)).permutation(len(files))
        for first in range(0, len(order), CHUNK):
            chunks.put((number, order[first : first + CHUNK]))

    early: list[contest.Batch] = []  # of the next epoch, which a producer begins while another ends this one

    def epoch(number: int) -> Iterator[contest.Batch]:
        ask(number + 1)
        yield from early
        taken = sum(len(images) for images, _ in early)
        early.clear()
        while taken < len(files):
            of, images, ids = batches.get()
            if of == number:
                taken += len(ids)
                yield images, ids
            else:
                early.append((images, ids))

    ask(0)
    return epoch


if __name__ == "__main__":
    contest.run(begin, settings=SETTINGS)
