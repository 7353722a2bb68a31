"""The shuffle score: 1 for a full shuffle, 0 for batches of one label, and the advice in between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
from support.sample_specs import some_spec

from streamd.core.sampler import Ids
from streamd.core.spec import LabelSpec, StreamSpec
from streamd.daemon.streams.shuffle_score import MixingScore, score_shuffle_mixing, score_stored_order_mixing
from streamd.limits import MIXING_BATCHES, MIXING_ROWS, POORLY_MIXED

KIND: Final = LabelSpec("kind", "category", classes=tuple("abcdefghij"))
ANGLE: Final = LabelSpec("angle", "float")
SAMPLES: Final = 64_000
SORTED: Final = np.repeat(np.arange(10), SAMPLES // 10)
MIXED: Final = np.arange(SAMPLES) * 7 % 10

Values = npt.NDArray[Any]


class Data:
    """Labels with their values; `asked` are the samples that somebody wanted to see."""

    def __init__(self, **labels: tuple[LabelSpec, Values]) -> None:
        self.labels = {name: spec for name, (spec, _) in labels.items()}
        self.values = {name: values for name, (_, values) in labels.items()}
        self.asked: list[Ids] = []

    def rows(self, name: str, ids: Ids) -> Values:
        self.asked.append(ids)
        return self.values[name][ids]

    def spec(self, batch_size: int = 32, **changes: Any) -> StreamSpec:
        samples = len(next(iter(self.values.values())))
        batches = -(-samples // batch_size)
        return some_spec(samples=samples, batch_size=batch_size, batches=batches, labels=self.labels, **changes)

    def mixing(self, **changes: Any) -> MixingScore:
        found = score_shuffle_mixing(self.spec(**changes), self.rows)
        assert found is not None
        return found


def chunks(chunk: int, buffer: int) -> dict[str, Any]:
    return {"shuffle": "chunk", "chunk": chunk, "buffer": buffer}


def test_a_full_shuffle_scores_one_and_the_stored_order_of_classes_zero() -> None:
    data = Data(kind=(KIND, SORTED))
    assert data.mixing().score == pytest.approx(1, abs=0.01)
    assert data.mixing(shuffle="none").score == pytest.approx(0, abs=0.02)
    assert score_stored_order_mixing(data.spec(), data.rows) == data.mixing(shuffle="none")


def test_the_stored_order_scores_one_where_it_is_mixed_already() -> None:
    assert Data(kind=(KIND, MIXED)).mixing(shuffle="none").score == 1


@pytest.mark.parametrize("buffer", [1, 2, 4, 8])
def test_the_score_of_single_class_chunks_follows_the_buffer(buffer: int) -> None:
    """Of b chunks, each other one is of another class as often as in all: 1 - 1/b of the pairs are mixed."""
    score = Data(kind=(KIND, SORTED)).mixing(**chunks(640, buffer)).score
    assert score == pytest.approx(1 - 1 / buffer, abs=0.06)


def test_sorted_numbers_score_zero_at_any_scale() -> None:
    climbing = np.arange(SAMPLES, dtype=np.float32)
    for values in (climbing, np.exp(climbing / 9000), -climbing):
        data = Data(angle=(ANGLE, values.astype(np.float32)))
        assert data.mixing(shuffle="none").score < 0.02
        assert data.mixing().score > 0.98
    assert Data(angle=(LabelSpec("angle", "int"), SORTED)).mixing(shuffle="none").score < 0.02


def test_the_worst_column_of_a_vector_label_counts() -> None:
    values = np.stack([MIXED, MIXED, SORTED], axis=1).astype(np.float32)
    box = replace(ANGLE, name="box", width=3)
    assert Data(box=(box, values)).mixing(shuffle="none").score < 0.02


def test_tags_score_like_classes() -> None:
    one_hot = np.eye(10, dtype=np.uint8)[SORTED]
    tags = LabelSpec("kind", "tags", width=10, classes=KIND.classes)
    for order in ({"shuffle": "none"}, {}, chunks(640, 4)):
        as_tags, as_classes = Data(kind=(tags, one_hot)).mixing(**order), Data(kind=(KIND, SORTED)).mixing(**order)
        assert as_tags.score == pytest.approx(as_classes.score)
        assert as_tags.error == pytest.approx(as_classes.error)


def test_the_worst_label_counts_and_strings_do_not() -> None:
    names = np.array([b"x"] * SAMPLES)
    data = Data(good=(KIND, MIXED), kind=(KIND, SORTED), name=(LabelSpec("name", "string"), names))
    found = data.mixing(shuffle="none")
    assert (found.label, found.is_poorly_mixed) == ("kind", True)


@pytest.mark.parametrize("seed", range(4))
def test_a_rare_class_that_is_mixed_is_not_taken_for_a_poor_mix(seed: int) -> None:
    rare = np.random.default_rng(seed).permutation(SAMPLES) < SAMPLES // 500
    found = Data(kind=(KIND, rare.astype(np.int64))).mixing(seed=seed)
    assert found.score > 0.95
    assert not found.is_poorly_mixed


@pytest.mark.parametrize(
    "data",
    [
        Data(kind=(KIND, np.zeros(100, dtype=np.int64))),
        Data(angle=(ANGLE, np.full(100, np.nan, dtype=np.float32))),
        Data(tags=(LabelSpec("t", "tags", width=2, classes=("a", "b")), np.zeros((100, 2), dtype=np.uint8))),
    ],
    ids=["one class", "one number", "no tag"],
)
def test_where_all_labels_are_the_same_there_is_nothing_to_mix(data: Data) -> None:
    assert score_shuffle_mixing(data.spec(), data.rows) is None


def test_without_labels_or_with_one_sample_a_batch_there_is_nothing_to_mix() -> None:
    data = Data(kind=(KIND, SORTED))
    assert score_shuffle_mixing(data.spec(batch_size=1), data.rows) is None
    assert score_shuffle_mixing(replace(data.spec(), labels={}), data.rows) is None


@pytest.mark.parametrize(("remainder", "batches", "samples"), [("keep", 2, 40), ("pad", 2, 40), ("drop", 1, 32)])
def test_a_batch_that_is_not_full_counts_by_its_samples(remainder: str, batches: int, samples: int) -> None:
    data = Data(kind=(KIND, SORTED[:: SAMPLES // 40]))
    score_shuffle_mixing(replace(data.spec(remainder=remainder), batches=batches), data.rows)
    assert [np.unique(ids).size for ids in data.asked] == [samples]


@pytest.mark.parametrize("batch_size", [2, 100, 30_000])
def test_only_as_many_samples_are_read_as_needed(batch_size: int) -> None:
    data = Data(kind=(KIND, np.arange(10**6) % 10))
    data.mixing(batch_size=batch_size)
    (ids,) = data.asked
    assert ids.size <= min(MIXING_BATCHES * batch_size, max(MIXING_ROWS, 2 * batch_size))
    assert ids.size >= 2 * batch_size


# --- what is to be done


def test_a_poor_mix_is_advised_the_smallest_sufficient_buffer() -> None:
    found = Data(kind=(KIND, SORTED)).mixing(**chunks(640, 2))
    assert found.score < POORLY_MIXED
    assert found.advice == (
        f"batches are poorly mixed: their shuffle score is {found.score:.2f}, and that of a full shuffle is 1; the "
        "stored order follows the label 'kind', and mixing 2 chunks of 640 samples at a time is not enough; write "
        "shuffle: {kind: chunk, chunk: 640, buffer: 32} or shuffle: full, or shuffle the data once: streamd pack train "
        "DEST --shuffle"
    )
    assert Data(kind=(KIND, SORTED)).mixing(**chunks(640, 32)).score >= 0.95


def test_where_no_buffer_suffices_a_full_shuffle_is_advised() -> None:
    advice = Data(kind=(KIND, SORTED)).mixing(**chunks(12_800, 3)).advice
    assert advice is not None
    assert "; write shuffle: full, or shuffle" in advice


def test_poorly_mixed_compressed_chunks_are_advised_to_be_packed() -> None:
    data = Data(kind=(KIND, SORTED))
    found = score_shuffle_mixing(data.spec(**chunks(640, 2)), data.rows, is_packed=True)
    assert found is not None
    assert found.advice is not None
    assert (
        "is not enough; shuffle the data once: streamd pack train DEST --shuffle; a larger buffer, or" in found.advice
    )


@pytest.mark.parametrize(
    "order", [{}, {"shuffle": "none"}, chunks(640, 16), chunks(640, 100), chunks(10**6, 1)], ids=str
)
def test_a_good_mix_a_kept_order_and_a_single_buffer_get_no_advice(order: dict[str, Any]) -> None:
    assert Data(kind=(KIND, SORTED)).mixing(**order).advice is None


def test_chance_in_a_few_batches_is_not_a_poor_mix() -> None:
    assert MixingScore("kind", 0.5, 0.1).is_poorly_mixed
    assert not MixingScore("kind", 0.5, 0.25).is_poorly_mixed
    few = Data(kind=(KIND, np.arange(12) % 2))
    poor = [seed for seed in range(50) if few.mixing(batch_size=4, seed=seed).is_poorly_mixed]
    assert len(poor) < 3
