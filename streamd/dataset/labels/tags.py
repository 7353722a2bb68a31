"""Labels of type tags: any number of classes a sample, as packed bits. Pure.

A column is uint8 (n, ceil(K / 8)), `numpy.packbits` of the 0 and 1 that a batch carries for each of the K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from streamd.core.spec import LabelSpec
from streamd.dataset.labels.encode import Class, in_order, numbered
from streamd.dataset.manifest.types import Int64s, Place
from streamd.errors import ConfigError

Packed = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Tagged:
    """The tags of `samples` samples: `texts` are the distinct ones; sample `rows[i]` has the one at `codes[i]`."""

    samples: int
    texts: Sequence[str]
    rows: Int64s
    codes: Int64s


def tags(
    name: str, tagged: Tagged, fixed: tuple[Class, ...] | None, place: Place, where: str
) -> tuple[Packed, LabelSpec]:
    """Numbers the tags of a label; `fixed` are the configured classes.

    Raises ConfigError for a tag that is not among these, and where no sample has any tag.
    """

    def found(code: int) -> str:
        return f" ({place(int(tagged.rows[np.argmax(tagged.codes == code)]))})"

    if not (tagged.texts or fixed):
        raise ConfigError(f"{where}: no sample has a tag, so there are no classes; fill them in, or list the classes")
    classes = in_order(tagged.texts) if fixed is None else fixed
    numbers = numbered(tagged.texts, classes, found, where)[tagged.codes]
    packed = _empty(tagged.samples, len(classes))
    np.bitwise_or.at(packed, (tagged.rows, numbers >> 3), _bit(numbers))
    return packed, with_tag_counts(LabelSpec(name, "tags", width=len(classes), classes=classes), packed)


def renumbered_tags(packed: Packed, numbers: Int64s, width: int) -> Packed:
    """The same tags, where class k has become class `numbers[k]` of `width`."""
    moved = _empty(len(packed), width)
    for old, new in enumerate(numbers.tolist()):
        moved[_having(packed, old), new >> 3] |= _bit(np.int64(new))
    return moved


def with_tag_counts(spec: LabelSpec, packed: Packed) -> LabelSpec:
    """`spec` with the samples of each tag counted."""
    return replace(spec, counts=tuple(int(_having(packed, tag).sum()) for tag in range(spec.width)))


def _empty(samples: int, width: int) -> Packed:
    return np.zeros((samples, -(-width // 8)), dtype=np.uint8)


def _bit(numbers: npt.NDArray[np.int64] | np.int64) -> Packed:
    return np.asarray(128 >> (numbers & 7), dtype=np.uint8)


def _having(packed: Packed, tag: int) -> npt.NDArray[np.bool_]:
    """Which samples have the tag, (n,)."""
    having: npt.NDArray[np.bool_] = packed[:, tag >> 3] & _bit(np.int64(tag)) != 0
    return having
