"""What the rows of torch's DataLoader share: a dataset that fills a batch by `__getitems__`, and a tuned loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import contest
import numpy as np
import torch

Fill = Callable[[str, contest.Images], None]
CHOSEN = "shuffle, persistent_workers, prefetch_factor 4, __getitems__ (a worker fills a whole batch, no collation)"
SOURCE = "pytorch.org: torch.utils.data, sections 'Multi-process data loading' and 'map-style datasets'"
PREFETCH = 4  # batches a worker


class Folder:
    """A map-style dataset of (images, ids), which makes a batch at once."""

    def __init__(self, options: contest.Options, fill: Fill) -> None:
        self.files = [str(file) for file in options.files()]
        self.fill = fill

    def __len__(self) -> int:
        return len(self.files)

    def __getitems__(self, ids: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        images = np.empty((len(ids), contest.SIDE, contest.SIDE, 3), dtype=np.uint8)
        for row, each in zip(images, ids, strict=True):
            self.fill(self.files[each], row)
        return torch.from_numpy(images), torch.tensor(ids)


def as_it_is(batch: Any) -> Any:
    return batch


def loader(dataset: Any, options: contest.Options) -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(
        dataset,
        batch_size=contest.BATCH,
        shuffle=True,
        num_workers=options.workers,
        persistent_workers=True,
        prefetch_factor=PREFETCH,
        collate_fn=as_it_is,
        generator=torch.Generator().manual_seed(options.trainer),
    )


def epochs(dataset: Any, options: contest.Options) -> contest.Epoch:
    batches = loader(dataset, options)

    def epoch(_: int) -> Iterator[contest.Batch]:
        for images, ids in batches:
            yield images.numpy(), ids.numpy()

    return epoch
