"""The stand-in for a data set, called as Keras calls it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.keras_recorder import ids_of, steps
from support.stream_fake import ANGLE, FakeStream, make_spec

from streamd.errors import ConfigError
from streamd.frameworks.keras import fit_data

pytestmark = pytest.mark.train


def numbers_of(batches: Any) -> list[int]:
    return [number for images, _ in batches for number in np.asarray(images)[:, 0, 0, 0].tolist()]


def test_each_iterator_takes_one_more_epoch_and_nothing_before_it_is_asked() -> None:
    stream = FakeStream(make_spec(ANGLE))
    epochs = fit_data(stream).get_jax_iterator()
    first, second = iter(epochs), iter(epochs)
    assert stream.taken == []
    assert numbers_of(first) + numbers_of(second) == ids_of(stream, *steps(0, 6))


def test_a_part_of_a_batch_keeps_its_structure() -> None:
    from streamd.frameworks.keras.adapter import convert_arrays  # noqa: PLC0415 - imports Keras

    parts = {"images": np.zeros(2), "angle": np.ones(2)}, None, np.arange(3)
    assert convert_arrays(parts, np.max) == ({"images": 0, "angle": 1}, None, 2)


def test_a_strategy_that_shares_no_batches_is_refused_when_it_asks_for_a_dataset_of_tensorflow() -> None:
    with pytest.raises(
        ConfigError, match=r"start one trainer per device, each with its own subscribe\(rank=\"auto\"\)"
    ):
        fit_data(FakeStream(make_spec(ANGLE))).get_jax_iterator()._variant_tensor  # noqa: B018 - as tf.data asks
