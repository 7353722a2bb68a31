"""Labels of type tags: any number of classes a sample, as packed bits. Pure.

A column is uint8 (n, ceil(K / 8)), `numpy.packbits` of the 0 and 1 that a batch carries for each of the K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from streamd.core.spec import LabelSpec
from streamd.dataset.labels.encode import ClassValue, lookup_class_numbers, order_classes
from streamd.dataset.manifest.types import Int64s, LocationFormatter
from streamd.errors import ConfigError

PackedTags = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class SampleTags:
    """The tags of `samples` samples. `texts` are the distinct tags, and sample `rows[i]` has the tag `codes[i]`."""

    samples: int
    texts: Sequence[str]
    rows: Int64s
    codes: Int64s


def build_tags_label(
    name: str, tagged: SampleTags, fixed: tuple[ClassValue, ...] | None, format_location: LocationFormatter, key: str
) -> tuple[PackedTags, LabelSpec]:
    """Numbers the tags of a label, and returns them packed, with the spec. `fixed` are the configured classes.

    Raises ConfigError for a tag that is not among these, and where no sample has any tag.
    """

    def format_code_location(code: int) -> str:
        return f" ({format_location(int(tagged.rows[np.argmax(tagged.codes == code)]))})"

    if not (tagged.texts or fixed):
        raise ConfigError(
            f"{key}: no sample has a tag, so there are no classes; add tags to the data, or list the classes under "
            "classes"
        )
    classes = order_classes(tagged.texts) if fixed is None else fixed
    numbers = lookup_class_numbers(tagged.texts, classes, format_code_location, key)[tagged.codes]
    packed = _make_empty_tags(tagged.samples, len(classes))
    # A sample may have several tags in one byte. `at` sets every bit, where an indexed `|=` would keep only one of
    # them.
    np.bitwise_or.at(packed, (tagged.rows, numbers >> 3), _compute_bit_mask(numbers))
    return packed, add_tag_counts_to_spec(LabelSpec(name, "tags", width=len(classes), classes=classes), packed)


def renumber_tags(packed: PackedTags, numbers: Int64s, width: int) -> PackedTags:
    """Returns the same tags after class k has become class `numbers[k]` of `width`."""
    moved = _make_empty_tags(len(packed), width)
    for old, new in enumerate(numbers.tolist()):
        moved[_find_samples_with_tag(packed, old), new >> 3] |= _compute_bit_mask(np.int64(new))
    return moved


def add_tag_counts_to_spec(spec: LabelSpec, packed: PackedTags) -> LabelSpec:
    """Returns `spec` with the number of samples of each tag."""
    return replace(spec, counts=tuple(int(_find_samples_with_tag(packed, tag).sum()) for tag in range(spec.width)))


def _make_empty_tags(samples: int, width: int) -> PackedTags:
    return np.zeros((samples, -(-width // 8)), dtype=np.uint8)


def _compute_bit_mask(numbers: npt.NDArray[np.int64] | np.int64) -> PackedTags:
    # The order of `numpy.packbits`: the first class of a byte is its highest bit.
    return np.asarray(128 >> (numbers & 7), dtype=np.uint8)


def _find_samples_with_tag(packed: PackedTags, tag: int) -> npt.NDArray[np.bool_]:
    """Returns which samples have the tag, (n,)."""
    having: npt.NDArray[np.bool_] = packed[:, tag >> 3] & _compute_bit_mask(np.int64(tag)) != 0
    return having
