"""The record of a sample in a cache: its images and geometries come back as they were."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from support.sample_specs import some_spec

from streamd.core.spec import ImageSpec, LabelSpec, StreamSpec
from streamd.dataset.cache import RecordLayout, lock_file_name
from streamd.decode.geometry import Geometry

PHOTO = ImageSpec(5, 7, 3)
IMAGES = {
    "photo": PHOTO,
    "mask": ImageSpec(5, 7, 1, mode="index", like="photo"),
    "band": ImageSpec(3, 2, 5, mode="raw", dtype="float32"),
    "deep": ImageSpec(4, 4, 1, mode="index", dtype="uint16"),
}
BOXES = {"boxes": LabelSpec("boxes", "boxes", width=5, rows=3, image="mask")}


def stream_of(images: dict[str, ImageSpec], labels: dict[str, LabelSpec] | None = None) -> StreamSpec:
    return replace(some_spec(), images=images, labels=labels or {})


def test_a_record_of_one_image_is_its_pixels() -> None:
    layout = RecordLayout.from_stream_spec(stream_of({"image": PHOTO}))
    assert layout.is_one_image
    assert layout.nbytes == PHOTO.row_bytes


def test_images_of_every_kind_and_their_geometries_come_back_as_they_were() -> None:
    layout = RecordLayout.from_stream_spec(stream_of(IMAGES, BOXES))
    rng = np.random.default_rng(1)
    rows = {name: (rng.random(image.shape) * 60000).astype(image.dtype) for name, image in IMAGES.items()}
    landed = {
        name: Geometry(
            (50 + place, 70),
            (0.1, 1 / 3, 50, 49.5),
            (image.height, image.width),
            (0, 1, 2, 3),
            is_cut=place == 1,
            orientation=place + 5,
        )
        for place, (name, image) in enumerate(IMAGES.items())
    }
    record = layout.pack_record(rows, landed)
    assert record.shape == (layout.nbytes,)
    found = {name: np.zeros(image.shape, image.dtype) for name, image in IMAGES.items()}
    layout.unpack_images(record, found)
    for name, row in rows.items():
        assert np.array_equal(found[name], row)
    assert layout.unpack_geometries(record) == landed


def test_no_geometry_is_kept_where_no_label_follows_a_picture() -> None:
    layout = RecordLayout.from_stream_spec(stream_of(IMAGES))
    assert layout.nbytes == sum(np.empty(image.shape, image.dtype).nbytes for image in IMAGES.values())
    assert layout.unpack_geometries(np.zeros(layout.nbytes, np.uint8)) == {}
    assert not RecordLayout.from_stream_spec(stream_of({"image": PHOTO}, BOXES)).is_one_image


def test_each_set_of_images_has_a_lock_of_its_own() -> None:
    streams = [stream_of(IMAGES), stream_of({"photo": PHOTO}), stream_of({**IMAGES, "deep": PHOTO})]
    assert len({lock_file_name(each) for each in streams}) == 3
    assert lock_file_name(streams[1]) == lock_file_name(stream_of({"image": PHOTO}))
