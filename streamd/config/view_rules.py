"""Views of an image: what they need, and what does not go with them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
    has_cache: bool,
) -> Iterator[KeyProblem]:
    """Yields what is wrong with views, each with the keys below the stream.

    `place` has the keys of the images: that of `images`, below which they have names, or `image` for the only one.
    """
    viewed = frozenset(name for name, image in images.items() if has_views(image, images))
    for name, image in images.items():
        key = (*(place if place == ("image",) else (*place, name)), "views")
        if image.views is None:
            continue
        if not source.is_encoded:
            why = f"images of kind {source.kind} have no views in this version"
            yield key, f"{why}; remove it, or let the trainer's model make them"
        elif image.resize != "random_crop" and not has_transform:
            yield key, "makes equal views; add resize: random_crop, or a transform that draws from its rng"
    if viewed and has_cache:
        yield ("cache",), "a cache of views is not in this version; remove it"
    yield from _find_box_problems(images, source, labels, viewed)


def has_views(image: ImageConfig, images: Images) -> bool:
    """Whether an image has views, its own or those of the image that it follows."""
    shown = image if image.like is None else images.get(image.like, image)
    return shown.views is not None


def _find_box_problems(
    images: Images, source: DataSource, labels: Mapping[str, LabelConfig] | None, viewed: frozenset[str]
) -> Iterator[KeyProblem]:
    first = next(iter(images))
    if labels is None and source.has_own_boxes and first in viewed:
        why = f"the boxes of kind {source.kind} lie in one picture, but {first} has views"
        yield ("labels",), f"{why}; write labels: {{}}, or remove views"
    for name, label in (labels or {}).items():
        followed = label.image or first
        if label.type in BOX_TYPES and followed in viewed:
            why = f"{followed} has views, and {label.type} lie in one picture"
            yield ("labels", name, "of"), f"{why}; name an image without views, or leave the label out"
