"""Captions for the rows of a batch, for contact sheets and notebooks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from streamd.core.bad_samples import BadRow
from streamd.core.sampler import PAD_ID
from streamd.core.spec import ImageSpec, LabelSpec, StreamSpec
from streamd.core.text import format_count, format_number

_SHOWN_NUMBERS: Final = 3  # of a vector: more would not fit below a small picture
_SHOWN_LABELS: Final = 6
_LINE_CHARS: Final = 120  # more than any contact sheet or notebook shows


class CaptionedBatch(Protocol):
    """The part of `client.batch.Batch` that captions need."""

    @property
    def arrays(self) -> Mapping[str, npt.NDArray[Any]]: ...
    @property
    def labels(self) -> Mapping[str, npt.NDArray[Any]]: ...
    @property
    def weights(self) -> npt.NDArray[np.float32]: ...
    @property
    def sample_ids(self) -> npt.NDArray[np.int64]: ...
    @property
    def bad(self) -> tuple[BadRow, ...]: ...
    @property
    def epoch(self) -> int: ...
    @property
    def index(self) -> int: ...
    @property
    def spec(self) -> StreamSpec: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Caption:
    """One row: a line for each of its first labels, the sample that was delivered, -1 for none, and a mark.

    `mark` is "substituted", "masked", "no sample", "weight 0" or empty; `bad` is the verdict behind the first two.
    """

    sample_id: int
    labels: tuple[str, ...]
    weight: float
    mark: str
    bad: BadRow | None


def build_captions(batch: CaptionedBatch, rows: int) -> list[Caption]:
    """Returns the captions of the first `rows` rows."""
    verdicts = {verdict.row: verdict for verdict in batch.bad}
    return [_build_caption(batch, row, verdicts.get(row)) for row in range(min(rows, len(batch)))]


def format_batch_heading(batch: CaptionedBatch) -> str:
    """Returns a heading such as `train 0:12 · 32 samples · 128x128 RGB`."""
    return format_heading_with_count(batch, int(np.count_nonzero(batch.sample_ids != PAD_ID)))


def format_heading_with_count(batch: CaptionedBatch, samples: int) -> str:
    """Returns the heading of a batch with `samples` samples, of which `batch` may be only the beginning."""
    return (
        f"{batch.spec.name} {batch.epoch}:{batch.index} · {samples:,} sample{'' if samples == 1 else 's'} · "
        f"{format_stream_images(batch.spec)}"
    )


def format_stream_images(spec: StreamSpec) -> str:
    """Returns the form of a stream's images: `128x96 RGB`, or `photo 512x512 RGB, mask 512x512 index` of several."""
    forms = {name: format_image_form(image) for name, image in spec.images.items()}
    if len(forms) == 1:
        return next(iter(forms.values()))
    return ", ".join(f"{name} {form}" for name, form in forms.items())


def format_image_form(image: ImageSpec) -> str:
    """Returns an image's shape and mode, height first as in the configuration: `256x256 raw, 4 channels uint16`."""
    form = f"{image.height}x{image.width} {image.mode}"
    if image.mode == "raw":
        form += f", {format_count(image.channels, 'channel')} {image.dtype}"
    elif image.dtype != "uint8":
        form += f" {image.dtype}"
    if image.frames:
        return f"{form}, {format_count(image.frames, 'frame')}"
    return f"{form}, {format_count(image.views, 'view')}" if image.views else form


def _build_caption(batch: CaptionedBatch, row: int, bad_row: BadRow | None) -> Caption:
    sample_id, weight = int(batch.sample_ids[row]), float(batch.weights[row])
    # The labels of a row without a sample are zeros, which would be shown as the first class.
    labels = {} if sample_id == PAD_ID else {name: values[row] for name, values in batch.labels.items()}
    return Caption(
        sample_id,
        _format_label_lines(batch.spec.labels, labels),
        weight,
        _format_row_remark(sample_id, weight, bad_row),
        bad_row,
    )


def _format_row_remark(sample_id: int, weight: float, bad_row: BadRow | None) -> str:
    if bad_row is not None:
        return bad_row.action
    if weight:
        return ""
    return "no sample" if sample_id == PAD_ID else "weight 0"


def _format_label_lines(specs: Mapping[str, LabelSpec], values: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns a line for each label, six at most. The only label, if a class or a text, is shown without its name."""
    said = {name: format_label(specs[name], value) for name, value in values.items()}
    if len(said) == 1 and specs[next(iter(said))].type in {"category", "string"}:
        lines = list(said.values())
    else:
        lines = [f"{name} {words}" for name, words in said.items()]
    if len(lines) > _SHOWN_LABELS:
        lines[_SHOWN_LABELS - 1 :] = [f"and {len(lines) - _SHOWN_LABELS + 1} more labels"]
    return tuple(line if len(line) <= _LINE_CHARS else f"{line[: _LINE_CHARS - 1]}…" for line in lines)


def format_label(label: LabelSpec, value: Any) -> str:
    """Returns one sample's label as text: the class, tags, the text, how many boxes, or numbers with three digits."""
    if label.type == "tags":
        return ", ".join(str(label.classes[place]) for place in np.flatnonzero(value)) or "no tags"
    if label.type == "string":
        return str(value)
    if label.is_ragged:
        return _format_box_count(label, value)
    if label.type == "category" and not label.width:
        return format_class_name(label, int(value))
    numbers = np.atleast_1d(value)
    more = " …" if numbers.size > _SHOWN_NUMBERS else ""
    return " ".join(format_number(each) for each in numbers[:_SHOWN_NUMBERS].tolist()) + more


def _format_box_count(label: LabelSpec, rows: Any) -> str:
    """Returns how many boxes of each class, or points, a sample has: `3 (2 car, dog)`. Those left out are -1."""
    there = rows[(rows >= 0).any(axis=1)]
    if label.type == "points" or not len(there):
        return str(len(there))
    codes, counts = np.unique(there[:, -1].astype(np.int64), return_counts=True)
    each = [
        f"{f'{count} ' if count > 1 else ''}{format_class_name(label, code)}"
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True)
    ]
    more = ", …" if len(each) > _SHOWN_LABELS else ""
    return f"{len(there)} ({', '.join(each[:_SHOWN_LABELS])}{more})"


def format_class_name(label: LabelSpec, code: int) -> str:
    """Returns the name of a class, or `class 3` for one without a name."""
    return str(label.classes[code]) if 0 <= code < len(label.classes) else f"class {code}"
