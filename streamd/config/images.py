"""The images of a stream: where each lies, what it must hold, and the form in which trainers see it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from streamd.config.fields import BrokenRule
from streamd.config.schema_sections import CHANNELS_OF_MODE, ImageConfig, MeanStd
from streamd.config.units import format_yaml_value
from streamd.core.spec import ImageMode, ImageSpec, PixelType
from streamd.core.text import format_count
from streamd.dataset.sources import DataSource, FrameRule, ImageSource

Images = Mapping[str, ImageConfig]
StoredSizes = Mapping[str, tuple[int, int]]

PICTURE_KINDS: Final = frozenset({"folder", "filelist", "coco", "yolo"})  # each sample is a picture of its own
_MAX_LEVEL: Final = 255.0  # the brightest value of a pixel
_FRACTIONS: Final = {  # means and stds of other tools, for pixels in 0-1, by their name here
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "minus_one_one": ((0.5,), (0.5, 0.5, 0.5)),
}


def takes_own_picture(image: ImageConfig, source: DataSource) -> bool:
    """Whether an entry without `from` is the picture, or the array, that the source gives each sample."""
    if source.is_encoded:
        has_own = source.kind in PICTURE_KINDS or getattr(source, "image", None) is not None
    else:
        has_own = source.kind == "npy" or getattr(source, "images", None) is not None
    return image.source is None and has_own


def find_frame_rule(image: ImageConfig, images: Images) -> FrameRule | None:
    """Returns the rule of an image that is a clip, its own or that of the image that it follows."""
    frames = image.find_shown(images).frames
    return None if frames is None else FrameRule(frames.by, frames.order, frames.offsets, frames.edge)


def build_image_sources(images: Images, source: DataSource) -> dict[str, ImageSource]:
    """Returns where each image lies, in the form that dataset formats read."""
    places: dict[str, ImageSource] = {}
    for name, image in images.items():
        place = None if takes_own_picture(image, source) else image.source or name
        frames = find_frame_rule(image, images)
        if source.is_encoded:
            places[name] = ImageSource(place, image.root, is_pattern=image.is_pattern, frames=frames)
        else:
            # An array of the file by its name, or .npy files by their path.
            place = image.resolve_file() if place is not None and image.is_npy_of(source) else place
            places[name] = ImageSource(place, form=image.array_form, frames=frames)
    return places


def list_image_paths(images: Images, source: DataSource) -> tuple[Path, ...]:
    """Returns the .npy files and the roots that images name besides their source; patterns are not expanded."""
    if source.is_encoded:
        return tuple(image.root for image in images.values() if image.root is not None)
    return tuple(Path(image.resolve_file()) for image in images.values() if image.is_npy_of(source))


def build_image_spec(
    name: str, images: Images, normalize: str | MeanStd, stored: StoredSizes | None = None
) -> ImageSpec:
    """Returns the form of an image as trainers see it; `stored` has the (height, width) of arrays by image."""
    image = images[name]
    shown = image if image.like is None else images[image.like]
    # The size that is written, or else that of the stored array of the image, or of the one that it follows.
    size = image.size if isinstance(image.size, tuple) else shown.size
    height, width = size if isinstance(size, tuple) else (stored or {})[image.like or name]
    # The image's own normalize, or that of the stream where it fits the channels; never for class numbers.
    wanted = image.normalize or normalize
    fits = image.normalize is not None or not any(list_normalize_rules(wanted, image))
    if image.mode == "index" or not fits:
        wanted = "none"
    # Size, crop, views and frames are those of the image that is followed; numbers are the image's own.
    mode: ImageMode = image.mode
    dtype: PixelType = image.dtype
    return ImageSpec(
        height,
        width,
        image.channel_count,
        shown.resize,
        image.exact,
        shown.scale,
        shown.ratio,
        mode,
        dtype,
        image.like,
        image.filled_with,
        wanted if isinstance(wanted, str) else wanted.as_lists(),
        image.range,
        shown.views or 0,
        0 if shown.frames is None else len(shown.frames.offsets),
    )


def list_normalize_rules(normalize: str | MeanStd, image: ImageConfig) -> Iterator[BrokenRule]:
    """Yields the broken rules of a `normalize` that has to fit an image; the keys are below the image or the stream."""
    mode, channels = image.mode, image.channel_count
    if mode == "index":  # nothing normalizes class numbers
        return
    if not isinstance(normalize, MeanStd):
        if normalize == "imagenet" and channels != CHANNELS_OF_MODE["RGB"]:
            yield ("normalize",), f"imagenet has 3 channels, but mode {mode} has {channels}; use unit or numbers"
        return
    levels_of = normalize.as_lists()
    wanted = f"but mode {mode} has {format_count(channels, 'channel')}; give one number for each channel"
    for key, levels in levels_of.items():
        if len(levels) != channels:
            yield ("normalize", key), f"has {format_count(len(levels), 'number')}, {wanted}"
    # In mode raw any numbers will do; elsewhere they are of pixels from 0 to 255.
    if mode != "raw" and all(len(levels) == channels for levels in levels_of.values()):
        for key, levels in levels_of.items():
            found, is_level = format_yaml_value(levels), all(0 <= level <= _MAX_LEVEL for level in levels)
            # What to write for levels that are meant for pixels from 0 to 1.
            scaled = ", ".join(f"{level * _MAX_LEVEL:.6g}" for level in levels)
            name = next((name for name, known in _FRACTIONS.items() if tuple(levels) in known), None)
            if name is not None:
                remedy = f"normalize: {name}, or [{scaled}]"
            else:
                remedy = f"[{scaled}]; if the images really are that dark, use normalize: none and a layer of your own"
            if not is_level:
                yield ("normalize", key), f"found {found}; use a list of one number per channel, each from 0 to 255"
            if is_level and max(levels) <= 1 and any(0 < level < 1 for level in levels):
                yield (
                    ("normalize", key),
                    f"found {found}, which is for pixels from 0 to 1; pixels here are from 0 to 255: write {remedy}",
                )
