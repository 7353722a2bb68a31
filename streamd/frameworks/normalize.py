"""The numbers behind a stream's `normalize`, the same for every framework. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from streamd.core.spec import StreamSpec
from streamd.core.text import format_count
from streamd.errors import ConfigError, suggest_name

# ImageNet's training images, in 0-255. The weights of torchvision and of Keras's "torch" mode were trained with these.
IMAGENET_MEAN: Final = (123.675, 116.28, 103.53)
IMAGENET_STD: Final = (58.395, 57.12, 57.375)
_EVEN_SCALINGS: Final = {
    "none": (0.0, 1.0),
    "unit": (0.0, 255.0),
    "minus_one_one": (127.5, 127.5),
}  # mean and std of all channels


@dataclass(frozen=True, slots=True)
class PixelScaling:
    """(pixel - mean) / std for each channel, pixels in 0-255. `even`: all channels share one mean and one std."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    even: bool = False


def compute_pixel_scaling(spec: StreamSpec) -> PixelScaling:
    """Returns the scaling of a stream's pixels.

    Raises ConfigError for a name that this version does not know, or numbers that do not match the image's channels.
    """
    channels = spec.image.channels
    if isinstance(spec.normalize, Mapping):
        return _build_channel_scaling(spec, spec.normalize["mean"], spec.normalize["std"])
    if spec.normalize == "imagenet":
        return _build_channel_scaling(spec, IMAGENET_MEAN, IMAGENET_STD)
    if spec.normalize not in _EVEN_SCALINGS:
        near = suggest_name(spec.normalize, [*_EVEN_SCALINGS, "imagenet"])
        raise ConfigError(f"stream {spec.name!r}: there is no normalize setting {spec.normalize!r}{near}")
    mean, std = _EVEN_SCALINGS[spec.normalize]
    return PixelScaling((mean,) * channels, (std,) * channels, even=True)


def _build_channel_scaling(spec: StreamSpec, mean: Sequence[float], std: Sequence[float]) -> PixelScaling:
    if not len(mean) == len(std) == spec.image.channels:
        raise ConfigError(
            f"stream {spec.name!r}: normalize has {format_count(len(mean), 'mean')} and "
            f"{format_count(len(std), 'deviation')} for {format_count(spec.image.channels, 'channel')}"
        )
    return PixelScaling(tuple(mean), tuple(std))
