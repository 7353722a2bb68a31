"""Labels of boxes and points: which keys go together with the source and the images. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from streamd.config.image_rules import KeyProblem
from streamd.config.schema_sections import ImageConfig, LabelConfig
from streamd.dataset.sources import DataSource
from streamd.errors import suggest_name

Labels = Mapping[str, LabelConfig] | None


def find_box_problems(labels: Labels, source: DataSource, *, has_split: bool) -> Iterator[KeyProblem]:
    """Yields keys that a source with boxes or parts of its own does not take."""
    for name, label in (labels or {}).items():
        for key in ("format", "unit", "classes"):
            if source.has_own_boxes and getattr(label, key) is not None:
                yield ("labels", name, key), f"kind {source.kind} brings the {key} of its boxes along; remove it"
    if source.has_own_parts and has_split:
        yield ("split",), f"kind {source.kind} has parts of its own; remove it, and choose one by part"


def find_box_image_problems(labels: Labels, images: Mapping[str, ImageConfig]) -> Iterator[KeyProblem]:
    """Yields labels that follow an image which the stream does not have."""
    for name, label in (labels or {}).items():
        if label.image is not None and label.image not in images:
            near = suggest_name(label.image, images)
            why = f"found {label.image!r}, which is no image of this stream; it has {', '.join(images)}{near}"
            yield ("labels", name, "of"), why
