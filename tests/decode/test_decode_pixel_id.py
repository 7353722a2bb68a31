"""Pixel ids: equal for equal pipelines, different for others, and pinned."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import numpy as np
import pytest

from streamd.core.spec import ImageSpec
from streamd.decode import pixel_id as identity
from streamd.decode.decoders import decode_into_rows
from streamd.decode.geometry import Draw
from streamd.decode.pixel_id import compute_pixel_id, decode_probe_images, decode_probe_samples
from streamd.decode.resize import Row

# Made with the simplejpeg, OpenCV and Pillow that requirements/test.txt pins. They may change with a new version of one
# of them, or with our own rules, and with nothing else: tokens and caches made before then note the change.
GOLDEN = {
    ImageSpec(32, 32, 3): "0ca5da8e9d5d7c56c3ee400eb9ab4eaf",
    ImageSpec(128, 128, 3): "433cabcf67686c1060d4005a9f9d5150",
    ImageSpec(48, 64, 3, "crop"): "16156209fbd14c6052dde3096ca07db9",
    ImageSpec(48, 64, 1, "pad"): "aa8f6047008e4764bf321a3892734283",
    ImageSpec(224, 224, 3, "stretch", exact=True): "ed63d48e4b1af32a2bcebec735fb9611",
    ImageSpec(48, 64, 3, "random_crop"): "19f94d5e157c44eb56de22d51f854d5f",
    ImageSpec(48, 64, 1, "random_crop", exact=True, scale=(0.5, 1.0)): "9923058210eefd6e68f35132a944b073",
}
PINNED = {"simplejpeg": "1.9.0", "opencv-python-headless": "5.0.0.93", "pillow": "13.0.0"}


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    """Ids made under a patched decoder must reach no other test."""
    compute_pixel_id.cache_clear()
    yield
    compute_pixel_id.cache_clear()


@pytest.mark.parametrize("image", GOLDEN, ids=str)
def test_pixel_ids_are_pinned(image: ImageSpec) -> None:
    found = {name: version(name) for name in PINNED}
    assert compute_pixel_id(image) == GOLDEN[image], f"pinned with {PINNED}, made with {found}"


def test_every_setting_changes_the_id() -> None:
    images = [
        ImageSpec(16, 24, 3),
        ImageSpec(24, 16, 3),
        ImageSpec(16, 24, 1),
        ImageSpec(16, 24, 3, "crop"),
        ImageSpec(16, 24, 3, "pad"),
        ImageSpec(16, 24, 3, "random_crop"),
        ImageSpec(16, 24, 3, "random_crop", scale=(0.5, 1.0)),
        ImageSpec(16, 24, 3, "random_crop", ratio=(1.0, 1.0)),
        ImageSpec(16, 24, 3, "stretch", exact=True),
    ]
    assert len({compute_pixel_id(image) for image in images}) == len(images)


def test_one_grey_level_of_one_pixel_changes_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    image = ImageSpec(16, 24, 3)
    before = compute_pixel_id(image)
    compute_pixel_id.cache_clear()

    def drifted(data: bytes, rows: list[Row], spec: ImageSpec, draws: list[Draw | None]) -> None:
        decode_into_rows(data, rows, spec, draws)
        rows[0][3, 5, 1] ^= np.uint8(1)

    monkeypatch.setattr(identity, "decode_into_rows", drifted)
    assert compute_pixel_id(image) != before


def test_an_id_does_not_depend_on_what_was_decoded_before(monkeypatch: pytest.MonkeyPatch) -> None:
    image = ImageSpec(16, 24, 3, "pad")
    before = compute_pixel_id(image)
    compute_pixel_id.cache_clear()
    monkeypatch.setattr(np, "empty", lambda shape, dtype: np.full(shape, 123, dtype))
    assert compute_pixel_id(image) == before


def test_probes_of_several_images_are_as_many_as_those_of_the_image_with_most() -> None:
    band = ImageSpec(4, 5, 2, mode="raw", dtype="uint16")
    images = {"photo": ImageSpec(8, 9, 3), "band": band}
    photos, bands = ([row.copy() for row in decode_probe_images(image)] for image in images.values())
    found = [{name: row.copy() for name, row in rows.items()} for rows in decode_probe_samples(images)]
    assert len(found) == len(photos) > len(bands)
    for number, rows in enumerate(found):
        assert np.array_equal(rows["photo"], photos[number])
        assert np.array_equal(rows["band"], bands[number % len(bands)])
