"""The mean and std of each form of `normalize`, or an error that names the stream."""

from __future__ import annotations

from typing import Any

import pytest
from support.normalize_forms import FORMS
from support.stream_fake import make_spec

from streamd.core.spec import ImageSpec
from streamd.errors import ConfigError
from streamd.frameworks.normalize import compute_pixel_scaling


@pytest.mark.parametrize(("normalize", "black", "white"), FORMS, ids=str)
def test_black_and_white_become_what_the_form_says(normalize: Any, black: list[float], white: list[float]) -> None:
    numbers = compute_pixel_scaling(make_spec(normalize=normalize))
    for pixel, expected in ((0, black), (255, white)):
        found = [(pixel - mean) / std for mean, std in zip(numbers.mean, numbers.std, strict=True)]
        assert found == pytest.approx(expected)


def test_greyscale_has_one_pair_of_numbers() -> None:
    numbers = compute_pixel_scaling(make_spec(normalize="minus_one_one", images={"image": ImageSpec(8, 8, 1)}))
    assert (numbers.mean, numbers.std, numbers.even) == ((127.5,), (127.5,), True)


def test_normalize_values_for_another_number_of_channels_are_refused() -> None:
    with pytest.raises(ConfigError, match="stream 'train': normalize has 2 means and 2 deviations for 3 channels"):
        compute_pixel_scaling(make_spec(normalize={"mean": [0, 0], "std": [1, 1]}))
    with pytest.raises(ConfigError, match="3 means and 3 deviations for 1 channel"):
        compute_pixel_scaling(make_spec(normalize="imagenet", images={"image": ImageSpec(8, 8, 1)}))


def test_an_unknown_normalize_form_is_refused_by_name() -> None:
    with pytest.raises(
        ConfigError, match="stream 'train': there is no normalize setting 'imagnet'; did you mean 'imagenet'"
    ):
        compute_pixel_scaling(make_spec(normalize="imagnet"))
