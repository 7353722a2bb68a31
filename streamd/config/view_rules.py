"""Images of several pictures, which are views or frames: what they need, and what does not go with them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from streamd.config.array_images import find_frame_rule
from streamd.config.image_rules import KeyProblem
from streamd.config.schema_sections import BOX_TYPES, ImageConfig, LabelConfig
from streamd.dataset.sources import DataSource

Images = Mapping[str, ImageConfig]


def find_view_problems(
    images: Images,
    source: DataSource,
    labels: Mapping[str, LabelConfig] | None,
    place: tuple[str, ...],
    *,
    has_transform: bool,
) -> Iterator[KeyProblem]:
    """Yields what is wrong with views and frames, each with the keys below the stream.

    `place` has the keys of the images: that of `images`, below which they have names, or `image` for the only one.
    """
    viewed = frozenset(name for name, image in images.items() if has_views(image, images))
    clips = frozenset(name for name, image in images.items() if find_frame_rule(image, images) is not None)
    for name, image in images.items():
        own = place if place == ("image",) else (*place, name)
        if name in clips:
            yield from _find_frame_problems(own, image, source)
        if image.views is None:
            continue
        if image.resize != "random_crop" and not has_transform:
            yield (*own, "views"), "makes equal views; add resize: random_crop, or a transform that draws from its rng"
    several = dict.fromkeys(clips, "frames") | dict.fromkeys(viewed, "views")
    yield from _find_box_problems(images, source, labels, several)


def has_views(image: ImageConfig, images: Images) -> bool:
    """Whether an image has views, its own or those of the image that it follows."""
    shown = image if image.like is None else images.get(image.like, image)
    return shown.views is not None


def _find_frame_problems(key: tuple[str, ...], image: ImageConfig, source: DataSource) -> Iterator[KeyProblem]:
    frames = (*key, "frames")
    if source.kind == "npy" and getattr(source, "table", None) is None:
        why = "no table says which rows follow each other; add table: FILE under source"
        yield frames, f"{why}, with a column for {_describe_frame_columns(image)}"
    elif source.kind not in {"table", "npy"}:
        why = f"a {source.kind} has no columns that say which pictures follow each other"
        yield frames, f"{why}; use kind table, with a column for {_describe_frame_columns(image)}"
    elif image.is_pattern:
        why = "the frames of a clip are files that a column names, and a pattern is not a column"
        yield (*key, "from"), f"{why}; write the file names into a column"
    if image.views is not None:
        yield (*key, "views"), "an image has views or frames, and not both; remove one of them"


def _describe_frame_columns(image: ImageConfig) -> str:
    by, order = ("the sequence", "the order") if image.frames is None else (image.frames.by, image.frames.order)
    return f"{by} and one for {order}"


def _find_box_problems(
    images: Images, source: DataSource, labels: Mapping[str, LabelConfig] | None, several: Mapping[str, str]
) -> Iterator[KeyProblem]:
    """Yields boxes and points of images that have views or frames, which `several` names for each."""
    first = next(iter(images))
    if labels is None and source.has_own_boxes and first in several:
        why = f"the boxes of kind {source.kind} lie in one picture, but {first} has {several[first]}"
        yield ("labels",), f"{why}; write labels: {{}}, or remove {several[first]}"
    for name, label in (labels or {}).items():
        followed = label.image or first
        if label.type in BOX_TYPES and followed in several:
            has = several[followed]
            why = f"{followed} has {has}, and {label.type} lie in one picture"
            yield ("labels", name, "of"), f"{why}; name an image without {has}, or leave the label out"
