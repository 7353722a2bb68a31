"""The numbers behind a stream's `normalize`, the same for every framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from streamd.client.waiting import print_stderr_line
from streamd.core.display import get_number_range
from streamd.core.spec import ImageSpec, StreamSpec
from streamd.core.text import format_count
from streamd.errors import ConfigError, suggest_name

# ImageNet's training images, in 0-255. The weights of torchvision and of Keras's "torch" mode were trained with these.
IMAGENET_MEAN: Final = (123.675, 116.28, 103.53)
IMAGENET_STD: Final = (58.395, 57.12, 57.375)
# The mean and the std of all channels, in parts of the range from black to white.
_EVEN_SCALINGS: Final = {"unit": (0.0, 1.0), "minus_one_one": (0.5, 0.5)}
_LEVELS: Final = 255.0  # of the numbers of ImageNet
_REPORTED: Final[set[tuple[str, str]]] = set()  # streams and images whose layer changes nothing, as a line has said


@dataclass(frozen=True, slots=True)
class PixelScaling:
    """(pixel - mean) / std for each channel, in the numbers of a batch. `even`: all channels share mean and std."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    even: bool = False


def compute_pixel_scaling(spec: StreamSpec, image: str | None = None) -> PixelScaling:
    """Returns the scaling of the numbers of an image of a stream: the one called `image`, or the first.

    Where the stream has normalize none, which scales nothing, a line on stderr says so once. Raises ConfigError for an
    image that does not exist or holds class numbers, for a `normalize` that this version does not know, and for numbers
    that do not match the image's channels.
    """
    shown = _find_image(spec, image)
    # A stream of one image has one `normalize`. Trainers may replace it in the stream's specification.
    normalize = spec.normalize if len(spec.images) == 1 else shown.normalize
    if isinstance(normalize, Mapping):
        return _build_channel_scaling(spec, shown, normalize["mean"], normalize["std"])
    low, high = get_number_range(shown)
    width = high - low
    if normalize == "imagenet":
        mean = [low + width * (level / _LEVELS) for level in IMAGENET_MEAN]
        return _build_channel_scaling(spec, shown, mean, [width * (level / _LEVELS) for level in IMAGENET_STD])
    if normalize == "none":
        image = next(name for name, each in spec.images.items() if each is shown)
        if (spec.name, image) not in _REPORTED:
            _REPORTED.add((spec.name, image))
            numbers = f"{low:g} to {high:g}" if shown.dtype != "float32" else "as they are stored"
            print_stderr_line(
                f"normalization changes nothing: stream {spec.name!r} has  normalize: none  for {image!r}, so the "
                f"model gets its numbers {numbers}; write  normalize: unit  (0 to 1) or another one in the "
                "configuration, or leave the layer out"
            )
        return PixelScaling((0.0,) * shown.channels, (1.0,) * shown.channels, even=True)
    if normalize not in _EVEN_SCALINGS:
        near = suggest_name(normalize, ["none", *_EVEN_SCALINGS, "imagenet"])
        raise ConfigError(f"stream {spec.name!r}: there is no normalize setting {normalize!r}{near}")
    part, parts = _EVEN_SCALINGS[normalize]
    return PixelScaling((low + width * part,) * shown.channels, (width * parts,) * shown.channels, even=True)


def _find_image(spec: StreamSpec, image: str | None) -> ImageSpec:
    name = next(iter(spec.images)) if image is None else image
    shown = spec.images.get(name)
    if shown is None:
        near = suggest_name(name, spec.images)
        raise ConfigError(f"stream {spec.name!r} has no image {name!r}; its images are {', '.join(spec.images)}{near}")
    if shown.mode == "index":
        raise ConfigError(
            f"stream {spec.name!r}: {name!r} holds class numbers, which are not normalized; name an image of pixels"
        )
    return shown


def _build_channel_scaling(
    spec: StreamSpec, image: ImageSpec, mean: Sequence[float], std: Sequence[float]
) -> PixelScaling:
    if not len(mean) == len(std) == image.channels:
        raise ConfigError(
            f"stream {spec.name!r}: normalize has {format_count(len(mean), 'mean')} and "
            f"{format_count(len(std), 'deviation')} for {format_count(image.channels, 'channel')}"
        )
    return PixelScaling(tuple(mean), tuple(std))
