"""torch's DataLoader over a NumPy memmap of decoded images."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

import contest
import numpy as np
import torch
import torch_folder

SETTINGS = contest.Settings(
    library=f"torch {version('torch')}, NumPy {np.__version__}",
    chosen=f"{torch_folder.CHOSEN}; images[ids] of a memmap in the worker",
    source=torch_folder.SOURCE,
)


class Rows:
    """A map-style dataset of (images, ids), which gathers a batch at once."""

    def __init__(self, options: contest.Options) -> None:
        self.images = np.load(options.data, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, ids: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.images[ids]), torch.tensor(ids)


def begin(options: contest.Options) -> contest.Epoch:
    return torch_folder.epochs(Rows(options), options)


if __name__ == "__main__":
    contest.run(begin, settings=SETTINGS)
