"""The images of a stream: which there are, where each lies, and what does not go together. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from streamd.config.array_images import (
    build_array_sources,
    find_array_image_problems,
    find_frame_rule,
    names_array_of_source,
)
from streamd.config.schema_sections import CHANNELS_OF_MODE, ImageConfig, MeanStd
from streamd.config.units import format_yaml_value
from streamd.core.spec import ImageMode, ImageSpec, PixelType
from streamd.core.text import format_count
from streamd.dataset.sources import DataSource, ImageSource
from streamd.errors import suggest_name

KeyProblem = tuple[tuple[str, ...], str]
StoredSizes = Mapping[str, tuple[int, int]]

_MAX_LEVEL: Final = 255.0  # the brightest value of a pixel
_FRACTIONS: Final = {  # means and stds of other tools, for pixels in 0-1, by their name here
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "minus_one_one": ((0.5,), (0.5, 0.5, 0.5)),
}
_PARTS: Final = frozenset({"dir", "stem", "name"})
_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PICTURE_KINDS: Final = frozenset(
    {"folder", "filelist", "coco", "yolo"}
)  # each of their samples is a picture of its own
_COLUMN_KINDS: Final = frozenset({"table", "tar"})


def find_image_problems(
    images: Mapping[str, ImageConfig], source: DataSource, labels: frozenset[str]
) -> Iterator[KeyProblem]:
    """Yields what is wrong with the key `images` of a stream, each with the keys below the stream."""
    if not images:
        yield ("images",), "there are none; write images: {photo: {size: [height, width]}}"
    for name, image in images.items():
        if not _NAME.fullmatch(name):
            yield ("images", name), "the name of an image has 1 to 64 characters from A-Z a-z 0-9 _ . -"
        if name in labels:
            yield ("images", name), "a label has the same name; rename one of them"
        yield from _find_like_problems(name, image, images)
        if source.is_encoded:
            yield from _find_size_problems(name, image)
            yield from _find_from_problems(name, image, source)
    own = [name for name, image in images.items() if takes_own_picture(image, source)]
    for name in own[1:]:
        yield ("images", name, "from"), f"is missing, and {own[0]} is the source's own picture already; add from"
    if not source.is_encoded:
        yield from find_array_image_problems(images, source)
    if source.kind in _COLUMN_KINDS and images and not own and all(image.is_pattern for image in images.values()):
        yield ("images",), f"all are patterns, but a sample of kind {source.kind} needs a file; take one from its name"


def takes_own_picture(image: ImageConfig, source: DataSource) -> bool:
    """Whether an entry without `from` is the picture that the source gives each sample."""
    if not source.is_encoded:
        return names_array_of_source(image, source)
    has_own = source.kind in _PICTURE_KINDS or getattr(source, "image", None) is not None
    return image.source is None and has_own


def _find_like_problems(name: str, image: ImageConfig, images: Mapping[str, ImageConfig]) -> Iterator[KeyProblem]:
    place = ("images", name, "like")
    if image.like is None:
        return
    other = images.get(image.like)
    if image.like == name:
        yield place, "an image cannot follow itself; remove it, or name another image"
    elif other is None:
        yield place, f"found {image.like!r}, which is no image of this stream{suggest_name(image.like, images)}"
    elif other.like is not None:
        yield place, f"{image.like} itself follows {other.like}; write like: {other.like}"
    if image.size == "stored":
        yield ("images", name, "size"), "found 'stored', but it has the size of the other image; remove it"


def _find_size_problems(name: str, image: ImageConfig) -> Iterator[KeyProblem]:
    if image.size is None and image.like is None:
        yield ("images", name, "size"), "is missing; add size: [height, width], or like: another image"
    elif image.size == "stored" and image.like is None:
        yield ("images", name, "size"), "found 'stored', which is for arrays; use [height, width]"


def _find_from_problems(name: str, image: ImageConfig, source: DataSource) -> Iterator[KeyProblem]:
    place, text = ("images", name, "from"), image.source
    if image.is_pattern and source.kind == "tar":
        yield place, "a tar has no files beside it; use a suffix, such as mask.png for 7.mask.png"
    elif image.is_pattern:
        wrong = [part for part in _BRACES.findall(str(text)) if part not in _PARTS]
        rest = _BRACES.sub("", str(text))
        if wrong or "{" in rest or "}" in rest:
            yield place, f"found {text!r}; a pattern has {{dir}}, {{stem}} and {{name}} of the sample's own file"
        elif str(text)[:1] == "/" or ".." in rest.split("/"):
            yield place, f"found {text!r}; a pattern is relative to root: set root to the folder of these files"
    elif text is not None and source.kind in _PICTURE_KINDS:
        yield place, f"a {source.kind} has no column {text!r}; use a pattern, such as masks/{{stem}}.png"
    if image.root is not None and not image.is_pattern and source.kind != "table":
        yield ("images", name, "root"), "is for patterns and columns of file names; remove it"


def build_image_sources(images: Mapping[str, ImageConfig], source: DataSource) -> dict[str, ImageSource]:
    """Returns where each image lies, in the form that dataset formats read."""
    if not source.is_encoded:
        return build_array_sources(images, source)
    return {
        name: ImageSource(
            None if takes_own_picture(image, source) else image.source or name,
            None if image.root is None else image.root,
            is_pattern=image.is_pattern,
            frames=find_frame_rule(image, images),
        )
        for name, image in images.items()
    }


def build_image_spec(
    name: str, images: Mapping[str, ImageConfig], normalize: str | MeanStd, stored: StoredSizes | None = None
) -> ImageSpec:
    """Returns the form of an image as trainers see it; `stored` has the (height, width) of arrays by image."""
    image = images[name]
    shown = image if image.like is None else images[image.like]
    height, width = _choose_size(name, image, shown, stored or {})
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
        _choose_normalize(image, normalize),
        image.range,
        shown.views or 0,
        0 if shown.frames is None else len(shown.frames.offsets),
    )


def _choose_size(name: str, image: ImageConfig, shown: ImageConfig, stored: StoredSizes) -> tuple[int, int]:
    """Returns the size that is written, or that of the stored array of the image, or of the one that it follows."""
    size = image.size if isinstance(image.size, tuple) else shown.size
    return size if isinstance(size, tuple) else stored[image.like or name]


def _choose_normalize(image: ImageConfig, normalize: str | MeanStd) -> str | dict[str, list[float]]:
    """Returns the image's own normalize, or that of the stream where it fits the channels; never for class numbers."""
    if image.mode == "index":
        return "none"
    wanted = image.normalize or normalize
    fits = image.normalize is not None or not find_normalize_problems(wanted, image)
    if not fits:
        return "none"
    return wanted if isinstance(wanted, str) else wanted.as_lists()


def find_normalize_problems(normalize: str | MeanStd, image: ImageConfig) -> list[KeyProblem]:
    """Returns why `normalize` does not fit an image; the keys are below the one of the image or the stream."""
    mode, channels = image.mode, image.channel_count
    if mode == "index":  # nothing normalizes class numbers
        return []
    if isinstance(normalize, MeanStd):
        wanted = f"but mode {mode} has {format_count(channels, 'channel')}; give one number for each channel"
        levels_of = normalize.as_lists()
        miscounted: list[KeyProblem] = [
            (("normalize", key), f"has {format_count(len(levels), 'number')}, {wanted}")
            for key, levels in levels_of.items()
            if len(levels) != channels
        ]
        if miscounted or mode == "raw":
            return miscounted
        found = ((key, find_level_mistake(levels)) for key, levels in levels_of.items())
        return [(("normalize", key), mistake) for key, mistake in found if mistake]
    if normalize == "imagenet" and channels != CHANNELS_OF_MODE["RGB"]:
        return [(("normalize",), f"imagenet has 3 channels, but mode {mode} has {channels}; use unit or numbers")]
    return []


def find_level_mistake(levels: Sequence[float]) -> str | None:
    """Returns why `levels` are not of pixels from 0 to 255, or None if they are; in mode raw any will do."""
    if not all(0 <= level <= _MAX_LEVEL for level in levels):
        return f"found {format_yaml_value(list(levels))}; use a list of one number per channel, each from 0 to 255"
    if max(levels) <= 1 and any(0 < level < 1 for level in levels):
        return (
            f"found {format_yaml_value(list(levels))}, which is for pixels from 0 to 1; pixels here are from 0 to 255: "
            f"write {_suggest_levels(levels)}"
        )
    return None


def _suggest_levels(levels: Sequence[float]) -> str:
    """Returns what to write for `levels` that are meant for pixels in 0-1."""
    scaled = ", ".join(f"{level * _MAX_LEVEL:.6g}" for level in levels)
    name = next((name for name, known in _FRACTIONS.items() if tuple(levels) in known), None)
    if name is not None:
        return f"normalize: {name}, or [{scaled}]"
    return f"[{scaled}]; if the images really are that dark, use normalize: none and a layer of your own"
