"""The mean and std of each form of `normalize`, or an error that names the stream."""

from __future__ import annotations

from typing import Any

import pytest
from support.normalize_forms import FORMS
from support.stream_fake import make_spec

from streamd.core.spec import ImageSpec, PixelType
from streamd.errors import ConfigError
from streamd.frameworks.model_inputs import compute_pixel_scaling


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


@pytest.mark.parametrize(
    ("dtype", "bounds", "black", "white"),
    [
        ("uint8", None, 0, 255),
        ("uint16", None, 0, 65535),
        ("uint16", (200.0, 10000.0), 200, 10000),
        ("float32", None, 0, 1),
        ("float32", (-1.0, 3.0), -1, 3),
    ],
)
def test_the_range_of_raw_numbers_is_what_unit_maps_to_0_and_1(
    dtype: PixelType, bounds: tuple[float, float] | None, black: float, white: float
) -> None:
    image = ImageSpec(8, 8, 3, mode="raw", dtype=dtype, range=bounds)
    for normalize, low, high in (("unit", 0, 1), ("minus_one_one", -1, 1), ("none", black, white)):
        numbers = compute_pixel_scaling(make_spec(normalize=normalize, images={"image": image}))
        assert (black - numbers.mean[0]) / numbers.std[0] == pytest.approx(low)
        assert (white - numbers.mean[2]) / numbers.std[2] == pytest.approx(high)
    imagenet = compute_pixel_scaling(make_spec(normalize="imagenet", images={"image": image}))
    assert (black - imagenet.mean[0]) / imagenet.std[0] == pytest.approx(-0.485 / 0.229)


def test_each_image_of_a_sample_has_its_own_normalize() -> None:
    images = {
        "photo": ImageSpec(8, 8, 3, normalize="unit"),
        "bands": ImageSpec(8, 8, 4, mode="raw", dtype="uint16", normalize={"mean": [1.0] * 4, "std": [9000.0] * 4}),
        "mask": ImageSpec(8, 8, 1, mode="index"),
    }
    spec = make_spec(images=images)
    assert compute_pixel_scaling(spec).std == (255, 255, 255)
    assert compute_pixel_scaling(spec, "bands").std == (9000.0,) * 4
    with pytest.raises(ConfigError, match="'mask' holds class numbers"):
        compute_pixel_scaling(spec, "mask")
    with pytest.raises(ConfigError, match="no image 'fotos'; its images are photo, bands, mask"):
        compute_pixel_scaling(spec, "fotos")


def test_a_normalization_that_changes_nothing_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    bare = {"first": ImageSpec(8, 8, 3), "other": ImageSpec(8, 8, 4, mode="raw", dtype="float32")}
    spec = make_spec(name="bare", normalize="none", images=bare)
    for _ in range(2):
        assert compute_pixel_scaling(spec).std == (1.0,) * 3
        compute_pixel_scaling(spec, "other")
    first, other = capsys.readouterr().err.splitlines()
    assert first.startswith(
        "streamd: normalization changes nothing: stream 'bare' has  normalize: none  for 'first', so"
    )
    assert "0 to 255; write  normalize: unit" in first
    assert "for 'other'" in other
    compute_pixel_scaling(make_spec(name="scaled"))
    assert capsys.readouterr().err == ""
