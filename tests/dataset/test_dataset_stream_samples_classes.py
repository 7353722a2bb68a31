"""Labels of one name have the same classes in every stream of a configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.source_configs import bits
from test_labels_tags import place, tags_in

from streamd.core.spec import LabelSpec
from streamd.dataset.labels.encode import LabelPlace, build_category_label, build_tags_label
from streamd.dataset.manifest.types import ListedValues, ScannedSamples
from streamd.dataset.scan import share_classes
from streamd.errors import ConfigError

Classes = tuple[int | str, ...] | None


def listed(label: tuple[ListedValues, LabelSpec], samples: int, fixed: Classes) -> ScannedSamples:
    """Samples with the label `animal`."""
    empty = np.zeros(samples, dtype=np.int64)
    names = frozenset(["animal"] if fixed else [])
    return ScannedSamples(Path("/"), [b"x"] * samples, empty, empty, {"animal": label[0]}, {"animal": label[1]}, names)


def stream_of(*texts: str, fixed: Classes = None) -> ScannedSamples:
    """Samples with one category `animal`, a sample a text."""
    levels = sorted(set(texts))
    codes = np.array([levels.index(text) for text in texts], dtype=np.int64)
    label = build_category_label(LabelPlace("animal", "labels.animal", place), levels, codes, fixed)
    return listed(label, len(texts), fixed)


def test_streams_with_a_category_of_one_name_share_its_classes() -> None:
    shared = share_classes({"train": stream_of("cat", "dog", "dog"), "validation": stream_of("dog", "bee")})
    assert [scanned.specs["animal"].classes for scanned in shared.values()] == [("bee", "cat", "dog")] * 2
    assert shared["train"].labels["animal"].tolist() == [1, 2, 2]
    assert shared["validation"].labels["animal"].tolist() == [2, 0]
    assert shared["train"].specs["animal"].counts == (0, 1, 2)


def test_numbers_that_share_classes_with_names_become_texts_and_stay_in_front_in_their_order() -> None:
    shared = share_classes({"a": stream_of("2", "10"), "b": stream_of("x")})
    assert shared["a"].specs["animal"].classes == ("2", "10", "x")
    assert shared["a"].labels["animal"].tolist() == [0, 1]


def test_a_whole_number_is_the_same_class_in_streams_with_and_without_fractions() -> None:
    shared = share_classes({"a": stream_of("1.0", "2.0"), "b": stream_of("1.0", "1.5")})
    assert shared["a"].specs["animal"].classes == ("1", "1.5", "2")
    assert [shared[name].labels["animal"].tolist() for name in "ab"] == [[0, 2], [0, 1]]


def test_a_configured_class_list_holds_for_the_streams_without_one() -> None:
    shared = share_classes({"a": stream_of("cat"), "b": stream_of("dog", fixed=("dog", "cat", "ant"))})
    assert shared["a"].specs["animal"].classes == ("dog", "cat", "ant")
    assert shared["a"].labels["animal"].tolist() == [1]


def test_a_class_that_the_configured_list_lacks_is_refused_with_both_streams() -> None:
    with pytest.raises(ConfigError, match=r"streams\.a\.labels\.animal: .*'dgo'.*streams\.b.*did you mean 'dog'"):
        share_classes({"a": stream_of("dgo"), "b": stream_of("dog", fixed=("dog", "cat"))})


def test_configured_lists_that_differ_are_refused() -> None:
    one, other = stream_of("cat", fixed=("cat", "dog")), stream_of("cat", fixed=("dog", "cat"))
    with pytest.raises(ConfigError, match=r"cat, dog.*differ|differ.*cat, dog"):
        share_classes({"a": one, "b": other})


def test_streams_that_agree_keep_their_labels() -> None:
    one = stream_of("cat", "dog")
    shared = share_classes({"a": one, "b": replace(one)})
    assert shared["a"].labels["animal"] is one.labels["animal"]


def tagged(*cells: str) -> ScannedSamples:
    """Samples with tags `animal`, a sample a cell."""
    tags = tags_in([cell.split() for cell in cells])
    return listed(build_tags_label(LabelPlace("animal", "labels.animal", place), tags, None), len(cells), None)


def test_tags_are_shared_like_categories() -> None:
    shared = share_classes({"a": tagged("dog cat", "", "cat"), "b": tagged("bee dog")})
    assert [scanned.specs["animal"].classes for scanned in shared.values()] == [("bee", "cat", "dog")] * 2
    assert shared["a"].specs["animal"].counts == (0, 2, 1)
    assert shared["a"].specs["animal"].width == 3
    assert bits(shared["a"].labels["animal"], 3) == [[0, 1, 1], [0, 0, 0], [0, 1, 0]]
    assert bits(shared["b"].labels["animal"], 3) == [[1, 0, 1]]


def test_more_than_eight_tags_keep_their_meaning_when_new_tags_are_inserted() -> None:
    many = [f"t{number:02}" for number in range(0, 40, 2)]
    shared = share_classes({"a": tagged(*many), "b": tagged(*(f"t{number:02}" for number in range(1, 40, 2)))})
    rows = bits(shared["a"].labels["animal"], 40)
    assert [np.flatnonzero(row).tolist() for row in rows] == [[number] for number in range(0, 40, 2)]


def test_a_category_and_tags_of_one_name_share_their_classes() -> None:
    shared = share_classes({"a": stream_of("cat", "dog"), "b": tagged("ant dog")})
    assert shared["a"].labels["animal"].tolist() == [1, 2]
    assert shared["b"].specs["animal"].classes == ("ant", "cat", "dog")


def test_a_name_in_one_stream_moves_no_number_of_another_and_they_have_classes_in_common(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shared = share_classes({"a": stream_of("0", "1", "2", "10"), "b": stream_of("0", "10", "unknown")})
    assert shared["a"].labels["animal"].tolist() == [0, 1, 2, 3]
    assert shared["b"].labels["animal"].tolist() == [0, 3, 4]
    assert caplog.messages == []


def test_streams_that_share_a_label_but_no_class_cause_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    share_classes({"train": stream_of("cat", "dog"), "validation": stream_of("dog"), "digits": stream_of("0", "1")})
    (warning,) = caplog.messages
    assert "streams train and digits have no class of label 'animal' in common" in warning
    assert "labels: {kind: category}" in warning
    caplog.clear()
    share_classes({"train": stream_of("cat", "dog"), "validation": stream_of("dog", "bee")})
    assert caplog.messages == []
