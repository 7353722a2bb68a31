"""Tags: any number of classes for each sample, one bit for each class."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.source_configs import bits

from streamd.core.spec import LabelSpec
from streamd.dataset.labels.encode import LabelPlace, SampleTags, build_tags_label, measure_label, renumber_tags
from streamd.errors import ConfigError


def place(row: int) -> str:
    return f"line {row + 2}"


LABEL = LabelPlace("t", "labels.t", place)


def tags_in(cells: list[list[str]]) -> SampleTags:
    pairs = [(row, tag) for row, cell in enumerate(cells) for tag in cell]
    levels = sorted({tag for _, tag in pairs})
    rows = np.array([row for row, _ in pairs], dtype=np.int64)
    return SampleTags(len(cells), levels, rows, np.array([levels.index(tag) for _, tag in pairs], dtype=np.int64))


def test_each_tag_is_a_bit_and_counted_once_a_sample() -> None:
    packed, spec = build_tags_label(LABEL, tags_in([["red", "round"], [], ["red", "red"]]), None)
    assert (spec.type, spec.classes, spec.counts, spec.width) == ("tags", ("red", "round"), (2, 1), 2)
    assert bits(packed, spec.width) == [[1, 1], [0, 0], [1, 0]]


def test_numbered_tags_sort_as_numbers() -> None:
    _, spec = build_tags_label(LABEL, tags_in([["10", "9"], ["0"]]), None)
    assert spec.classes == (0, 9, 10)


@pytest.mark.long
@given(st.lists(st.sets(st.integers(0, 30).map(str)), min_size=1).filter(any))
def test_packed_tags_keep_their_meaning_when_classes_are_renumbered(cells: list[set[str]]) -> None:
    packed, spec = build_tags_label(LABEL, tags_in([sorted(cell) for cell in cells]), None)
    assert packed.shape == (len(cells), -(-spec.width // 8))
    moved = np.random.default_rng(len(cells)).permutation(spec.width + 5)[: spec.width]
    wider = renumber_tags(packed, moved, spec.width + 5)
    there = np.unpackbits(wider, axis=1, count=spec.width + 5)
    names = {int(new): str(value) for new, value in zip(moved, spec.classes, strict=True)}
    assert [{names[int(bit)] for bit in np.flatnonzero(row)} for row in there] == cells
    assert measure_label(LabelSpec("t", "tags", width=spec.width + 5), wider).counts == tuple(there.sum(axis=0))


def test_an_unknown_tag_is_named_with_its_line_and_the_near_one() -> None:
    says = (
        r"labels\.t: 'rde' \(line 4\) is not one of .* red, blue; "
        r"add it to classes, or correct it in the data; did you mean 'red'"
    )
    with pytest.raises(ConfigError, match=says):
        build_tags_label(LABEL, tags_in([["red"], [], ["blue", "rde"]]), ("red", "blue"))


def test_configured_classes_keep_their_order_and_may_be_without_samples() -> None:
    packed, spec = build_tags_label(LABEL, tags_in([["b"], []]), ("b", "a", "c"))
    assert (spec.classes, spec.counts) == (("b", "a", "c"), (1, 0, 0))
    assert bits(packed, spec.width) == [[1, 0, 0], [0, 0, 0]]


def test_samples_without_any_tag_need_configured_classes() -> None:
    with pytest.raises(ConfigError, match=r"labels\.t: no sample has a tag, so there are no classes"):
        build_tags_label(LABEL, tags_in([[], []]), None)
    assert build_tags_label(LABEL, tags_in([[], []]), ("a",))[1].counts == (0,)
