"""WebDataset over tar shards, which `prepare` writes in shuffled order, read by the processes of a WebLoader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version

import contest
import numpy as np
import torch
import turbo_image
import webdataset

SHARDS = 16
BUFFER = 1000  # samples; what the documentation's examples shuffle by
SETTINGS = contest.Settings(
    library=f"webdataset {version('webdataset')}, torch {version('torch')}, {turbo_image.LIBRARIES}",
    chosen=f"{SHARDS} shards written in shuffled order; shardshuffle, shuffle({BUFFER}); batched in the workers by a "
    "collation_fn that decodes into the batch at the reduced DCT scale; WebLoader(batch_size=None, persistent_workers)",
    source="WebDataset's README and FAQ (batch in the workers); simplejpeg's README",
)


def prepare(options: contest.Options) -> None:
    files = options.files()
    order = np.random.default_rng(0).permutation(len(files))
    for number, ids in enumerate(np.array_split(order, SHARDS)):
        with webdataset.TarWriter(str(options.store / f"{number:04}.tar")) as shard:
            for each in ids:
                shard.write({"__key__": f"{each:09}", "jpg": files[each].read_bytes()})


def decode(samples: Sequence[tuple[str, bytes]]) -> tuple[torch.Tensor, torch.Tensor]:
    images = np.empty((len(samples), contest.SIDE, contest.SIDE, 3), dtype=np.uint8)
    for row, (_, data) in zip(images, samples, strict=True):
        turbo_image.fill(data, row)
    return torch.from_numpy(images), torch.tensor([int(key) for key, _ in samples])


def begin(options: contest.Options) -> contest.Epoch:
    shards = sorted(str(file) for file in options.store.glob("*.tar"))
    samples = webdataset.WebDataset(shards, shardshuffle=SHARDS, detshuffle=True, seed=options.trainer)
    batched = samples.shuffle(BUFFER).to_tuple("__key__", "jpg").batched(contest.BATCH, collation_fn=decode)
    batches = webdataset.WebLoader(
        batched, batch_size=None, num_workers=options.workers, persistent_workers=True, prefetch_factor=4
    )

    def epoch(_: int) -> Iterator[contest.Batch]:
        for images, ids in batches:
            yield images.numpy(), ids.numpy()

    return epoch


if __name__ == "__main__":
    contest.run(begin, settings=SETTINGS, prepare=prepare)
