"""torch's DataLoader with processes that decode by simplejpeg, and resize by OpenCV what is larger than wanted."""

from __future__ import annotations

from importlib.metadata import version

import contest
import torch_folder
import turbo_image

SETTINGS = contest.Settings(
    library=f"torch {version('torch')}, {turbo_image.LIBRARIES}",
    chosen=f"{torch_folder.CHOSEN}; min_height and min_width (reduced DCT scale), decoded into the batch's row",
    source=f"{torch_folder.SOURCE}; simplejpeg's README",
)


def begin(options: contest.Options) -> contest.Epoch:
    return torch_folder.epochs(torch_folder.Folder(options, turbo_image.fill_from), options)


if __name__ == "__main__":
    contest.run(begin, settings=SETTINGS)
