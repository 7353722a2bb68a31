"""torch's DataLoader with processes that decode and resize by Pillow."""

from __future__ import annotations

from importlib.metadata import version

import contest
import pillow_image
import torch_folder

SETTINGS = contest.Settings(
    library=f"torch {version('torch')}, Pillow {version('pillow')}",
    chosen=f"{torch_folder.CHOSEN}; Image.draft (reduced DCT scale), resize BILINEAR",
    source=f"{torch_folder.SOURCE}; Pillow: Image.draft",
)


def begin(options: contest.Options) -> contest.Epoch:
    return torch_folder.epochs(torch_folder.Folder(options, pillow_image.fill), options)


if __name__ == "__main__":
    contest.run(begin, settings=SETTINGS)
