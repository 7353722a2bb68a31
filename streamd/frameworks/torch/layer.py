"""The layer behind `streamd.frameworks.torch.normalization`. Imports torch."""

from __future__ import annotations

from typing import Any

import torch

from streamd.frameworks.normalize import PixelScaling


class Normalization(torch.nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    """Computes (pixel - mean) / std for each channel.

    `mean` and `std` are buffers of shape (C, 1, 1), which are saved and moved with the model.
    """

    def __init__(self, numbers: PixelScaling) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(numbers.mean, dtype=torch.float32).reshape(-1, 1, 1))
        self.register_buffer("std", torch.tensor(numbers.std, dtype=torch.float32).reshape(-1, 1, 1))

    def forward(self, images: Any) -> Any:
        """Normalizes images (..., C, H, W) to float32, or to the type that the buffers were cast to.

        Raises ValueError for another number of channels.
        """
        channels = self.mean.shape[0]
        if tuple(images.shape[-3:-2]) != (channels,):
            raise ValueError(
                f"the images have the shape {tuple(images.shape)}, but (batch, {channels}, height, width) is needed: "
                "images.permute(0, 3, 1, 2) puts the channels of a batch first"
            )
        if images.dtype == torch.uint16:  # torch has no arithmetic of its own for them
            images = images.to(torch.float32)
        return (images - self.mean) / self.std
