"""The layer behind `streamd.frameworks.torch.normalization`. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from streamd.frameworks.model_inputs import PixelScaling


class Normalization(torch.nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    """Computes (pixel - mean) / std for each channel, in float32.

    `mean` and `std` are buffers of shape (C, 1, 1), which are saved and moved with the model. They stay float32 where
    the model is cast to another type, such as float16, in which 65535 is infinite. The result has the model's type.
    """

    mean: Any
    std: Any

    def __init__(self, numbers: PixelScaling) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(numbers.mean, dtype=torch.float32).reshape(-1, 1, 1))
        self.register_buffer("std", torch.tensor(numbers.std, dtype=torch.float32).reshape(-1, 1, 1))
        self.register_buffer(
            "result_type", torch.tensor(0.0, dtype=torch.float32), persistent=False
        )  # has the model's type

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        """Moves and casts the module. torch calls this for `to`, `half`, `cuda` and the like."""
        mean, std = self.mean, self.std
        super()._apply(fn, recurse)
        if not mean.is_meta:  # such a tensor has no numbers to keep
            self.mean, self.std = mean.to(self.mean.device), std.to(self.std.device)
        return self

    def forward(self, images: Any) -> Any:
        """Normalizes images (..., C, H, W) of any type. Raises ValueError for another number of channels."""
        channels = self.mean.shape[0]
        if tuple(images.shape[-3:-2]) != (channels,):
            raise ValueError(
                f"the images have the shape {tuple(images.shape)}, but (batch, {channels}, height, width) is needed: "
                "images.permute(0, 3, 1, 2) puts the channels of a batch first, and  normalization(spec, image)  takes "
                "the name of another image"
            )
        return ((images.to(torch.float32) - self.mean) / self.std).to(self.result_type.dtype)
