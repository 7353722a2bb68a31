"""Several images a sample from arrays: resized as files are, one geometry for all that follow, bad as a whole."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filled_rows import Filled, Unfilled
from PIL import Image
from support.array_records import BANDS, BOXES, COUNT, KINDS, MASKS, PHOTOS, build_array_stream, write_arrays
from support.record_readers import open_records

from streamd.core.sampler import PAD_ID
from streamd.decode.decoders import decode_sample
from streamd.decode.geometry import compute_sample_draws
from streamd.decode.pixel_id import compute_sample_pixel_id, compute_stored_pixel_id
from streamd.errors import ConfigError, DataAwayError
from streamd.ipc.slots import WorkerPhase
from streamd.worker import array_records
from streamd.worker.array_records import ArrayRecords, place_stored_pictures
from streamd.worker.stream_reader import FILE_CHANGED, StreamReader

PHOTO: dict[str, Any] = {"size": [24, 32], "resize": "random_crop"}
MASK: dict[str, Any] = {"like": "photo", "mode": "index"}
BAND: dict[str, Any] = {"size": [5, 6], "mode": "raw", "channels": 4, "dtype": "uint16"}
ALL: dict[str, Any] = {"photo": PHOTO, "mask": MASK, "band": BAND}
STORED: dict[str, Any] = {"photo": {}, "mask": {"mode": "index"}, "band": {**BAND, "size": "stored"}}
BOXED: dict[str, Any] = {"boxes": {"type": "boxes", "max": 2, "of": "mask"}}


def png(numbers: Any) -> bytes:
    file = BytesIO()
    Image.fromarray(numbers).save(file, "PNG")
    return file.getvalue()


def npy(numbers: Any) -> bytes:
    file = BytesIO()
    np.save(file, numbers)
    return file.getvalue()


def decode_files(reader: StreamReader, sample_id: int, epoch: int) -> dict[str, Any]:
    """What files of the same numbers give."""
    images = reader.spec.images
    blobs = [png(PHOTOS[sample_id]), png(MASKS[sample_id].astype(np.uint8)), npy(BANDS[sample_id])]
    rows = {name: np.empty(image.shape, image.dtype) for name, image in images.items()}
    draws = compute_sample_draws(images, reader.spec.seed, epoch, np.array([sample_id]))
    decode_sample(blobs, rows, images, {name: each[0] for name, each in draws.items()})
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_images_of_arrays_are_cropped_and_resized_as_files_of_the_same_numbers(kind: str, tmp_path: Path) -> None:
    with open_records(build_array_stream(tmp_path, kind, ALL), tmp_path) as reader:
        batch = Filled(reader, [4, 0, PAD_ID, 3], [1, 0, 2, 7], epoch=5)
        assert batch.bad == []
        for sample_id, row in ((4, 1), (0, 0), (3, 7)):
            for name, expected in decode_files(reader, sample_id, epoch=5).items():
                assert np.array_equal(batch.arrays[name][row], expected)
        assert not batch.arrays["photo"][2].any()
        assert (batch.arrays["mask"][2] == 255).all()
        assert batch.weights[:3].tolist() == [1, 1, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_views_of_arrays_are_those_of_files_of_the_same_numbers(kind: str, tmp_path: Path) -> None:
    images = {**ALL, "photo": {**PHOTO, "views": 3}}
    with open_records(build_array_stream(tmp_path, kind, images), tmp_path) as reader:
        batch = Filled(reader, [4, 0], epoch=5)
        assert batch.bad == []
        assert batch.arrays["photo"].shape[1:] == (3, 24, 32, 3)
        assert batch.arrays["mask"].shape[1:] == (3, 24, 32)
        for row, sample_id in enumerate((4, 0)):
            for name, expected in decode_files(reader, sample_id, epoch=5).items():
                assert np.array_equal(batch.arrays[name][row], expected)
            assert not np.array_equal(batch.arrays["photo"][row, 0], batch.arrays["photo"][row, 1])


def test_views_of_the_only_array_are_copies_for_a_transform(tmp_path: Path) -> None:
    (tmp_path / "augment.py").write_text(
        "def number(image, labels, rng):\n    image[:, 0, 0, 0] = range(len(image))\n    return image, labels\n"
    )
    source = write_arrays(tmp_path / "data", "npy")
    stream = {"source": source, "labels": {}, "image": {"views": 2}, "transform": "augment:number", "batch_size": 3}
    with open_records(stream, tmp_path) as reader:
        batch = Filled(reader, [1, 4])
    assert batch.images.shape[1:] == (2, *PHOTOS.shape[1:])
    assert np.array_equal(batch.plain[0, 1], PHOTOS[1])
    assert batch.images[:2, :, 0, 0, 0].tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize("kind", KINDS)
def test_images_without_a_size_are_served_as_they_are_stored(kind: str, tmp_path: Path) -> None:
    with open_records(build_array_stream(tmp_path, kind, STORED), tmp_path) as reader:
        batch = Filled(reader, [5, 2])
        assert [image.shape for image in reader.spec.images.values()] == [(40, 60, 3), (20, 30), (8, 10, 4)]
    for name, stored in (("photo", PHOTOS), ("mask", MASKS), ("band", BANDS)):
        assert np.array_equal(batch.arrays[name][:2], stored[[5, 2]])


@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
def test_each_resize_is_that_of_files(resize: str, tmp_path: Path) -> None:
    images = {"photo": {**PHOTO, "resize": resize}, "mask": MASK, "band": {**BAND, "resize": resize}}
    with open_records(build_array_stream(tmp_path, "npy", images), tmp_path) as reader:
        batch = Filled(reader, [1])
        for name, expected in decode_files(reader, 1, 0).items():
            assert np.array_equal(batch.arrays[name][0], expected)


@pytest.mark.parametrize("mode", ["index", "RGB"])
def test_one_image_under_images_may_have_a_size(mode: str, tmp_path: Path) -> None:
    source = write_arrays(tmp_path, "npy", photo=MASKS if mode == "index" else PHOTOS)
    stream = {"source": source, "labels": {}, "images": {"only": {"size": [10, 15], "mode": mode}}, "batch_size": 3}
    with open_records(stream, tmp_path) as reader:
        found = Filled(reader, [2]).images[0]
        assert reader.pixel_id not in {
            compute_sample_pixel_id(reader.spec.images),
            compute_stored_pixel_id(reader.spec.image),
        }
    picture = Image.fromarray(MASKS[2].astype(np.uint8) if mode == "index" else PHOTOS[2])
    how = Image.Resampling.NEAREST if mode == "index" else Image.Resampling.BILINEAR
    assert np.array_equal(found, np.asarray(picture.resize((15, 10), how)))


@pytest.mark.parametrize("kind", KINDS)
def test_boxes_follow_the_geometry_of_their_image(kind: str, tmp_path: Path) -> None:
    stream = build_array_stream(
        tmp_path, kind, {"photo": {**PHOTO, "resize": "stretch", "size": [20, 30]}, "mask": MASK}
    )
    where = str(tmp_path / "boxes.npy") if kind == "npy" else "boxes"
    for image, scale in (("photo", 0.5), ("mask", 1)):  # the mask is stored in the size that is served
        labels = {"boxes": {"type": "boxes", "max": 2, "of": image, "from": where}}
        with open_records(stream | {"labels": labels}, tmp_path) as reader:
            found = Filled(reader, [3, PAD_ID]).labels("boxes")
        assert found[0].tolist() == [[*(np.clip(BOXES[3, 0, :4] * scale, 0, [30, 20, 30, 20])), 3], [-1] * 5]
        assert (found[1] == -1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_number_that_the_dtype_does_not_hold_makes_its_sample_bad_and_names_the_image(
    kind: str, tmp_path: Path
) -> None:
    masks = MASKS.copy()
    masks[2, 3, 3], masks[4, 0, 0] = 300, -1
    with open_records(build_array_stream(tmp_path, kind, ALL, arrays={"mask": masks}), tmp_path) as reader:
        batch = Filled(reader, list(range(COUNT)))
        assert [(bad.sample_id, bad.lasting) for bad in batch.bad] == [(2, True), (4, True)]
        assert [bad.reason for bad in batch.bad] == [
            "mask: it holds the class number 300, and uint8 holds 0 to 255; use dtype: uint16",
            "mask: it holds the class number -1, and uint8 holds 0 to 255; correct the mask",
        ]
    wide = {**ALL, "mask": {**MASK, "dtype": "uint16"}}
    with open_records(build_array_stream(tmp_path, kind, wide, arrays={"mask": masks}), tmp_path) as reader:
        assert [bad.sample_id for bad in Filled(reader, list(range(COUNT))).bad] == [4]


def test_a_pixel_that_is_no_number_makes_its_sample_bad_and_names_the_image(tmp_path: Path) -> None:
    photos = (PHOTOS / 255).astype(np.float32)
    photos[1, 0, 0, 0] = np.nan
    stream = build_array_stream(tmp_path, "npy", ALL, arrays={"photo": photos})
    stream["source"]["range"] = [0, 1]  # the mask and the band have none
    with open_records(stream, tmp_path) as reader:
        batch = Filled(reader, [0, 1])
        assert [(bad.sample_id, bad.reason) for bad in batch.bad] == [(1, "photo: a pixel is not a number (NaN)")]
        assert np.array_equal(batch.arrays["photo"][0], decode_files(reader, 0, 0)["photo"])


def test_grey_and_alpha_images_of_arrays_have_one_and_four_channels(tmp_path: Path) -> None:
    alpha = np.concatenate([PHOTOS, PHOTOS[..., :1]], axis=3)
    images = {"photo": {"size": [20, 30], "mode": "L"}, "cut": {"size": [20, 30], "mode": "RGBA"}}
    stream = build_array_stream(tmp_path, "npy", images, arrays={"photo": PHOTOS[..., 0], "cut": alpha})
    with open_records(stream, tmp_path) as reader:
        found = Filled(reader, [0]).arrays
    grey = Image.fromarray(PHOTOS[0, ..., 0]).resize((30, 20), Image.Resampling.BILINEAR)
    assert np.array_equal(found["photo"][0, ..., 0], np.asarray(grey))
    assert np.array_equal(
        found["cut"][0], np.asarray(Image.fromarray(alpha[0]).resize((30, 20), Image.Resampling.BILINEAR))
    )


def test_a_part_of_a_split_has_the_images_of_its_rows(tmp_path: Path) -> None:
    stream = build_array_stream(tmp_path, "npy", STORED, split={"validation": 0.5, "seed": 3})
    stream["source"]["part"] = "validation"
    with open_records(stream, tmp_path) as reader:
        rows = reader.manifest.lookup_rows(np.arange(reader.spec.samples))
        assert 0 < rows.size < COUNT
        assert np.array_equal(Filled(reader, list(range(rows.size))).arrays["mask"][: rows.size], MASKS[rows])


def test_rows_beyond_the_buffer_are_gathered_in_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = build_array_stream(tmp_path, "npy", ALL)
    with open_records(stream, tmp_path) as reader:
        whole = Filled(reader, list(range(COUNT)), epoch=1).arrays
        assert isinstance(reader.store, ArrayRecords)
        monkeypatch.setattr(reader.store, "_rows_at_once", 2)
        parts = Filled(reader, list(range(COUNT)), epoch=1).arrays
    for name, rows in whole.items():
        assert np.array_equal(parts[name], rows)


def test_no_sample_is_gathered_once_a_file_of_any_image_has_changed(tmp_path: Path) -> None:
    with open_records(build_array_stream(tmp_path, "npy", ALL), tmp_path) as reader:
        ids = np.arange(3)
        assert reader.find_samples_to_decode(ids).tolist() == [False] * 3
        os.utime(tmp_path / "band.npy")
        assert reader.find_samples_to_decode(ids).tolist() == [True] * 3
        bad = Filled(reader, [0, 1]).bad
        assert {(each.reason, each.lasting) for each in bad} == {(FILE_CHANGED, False)}


def test_an_image_whose_file_is_gone_is_away_and_not_bad(tmp_path: Path) -> None:
    elsewhere, moved = tmp_path / "elsewhere", tmp_path / "moved"
    stream = build_array_stream(tmp_path / "data", "npy", ALL)
    write_arrays(elsewhere, "npy")
    stream["images"]["mask"] = {**MASK, "from": "mask.npy", "root": str(elsewhere)}
    with open_records(stream, tmp_path) as reader:
        (elsewhere / "mask.npy").rename(tmp_path / "mask.npy")
        (found,) = Filled(reader, [0]).bad
        assert (found.away, found.lasting) == (True, False)
        assert "'mask.npy' is not in " in found.reason
        elsewhere.rename(moved)
        (found,) = Filled(reader, [0]).bad
        assert found.away
        with pytest.raises(DataAwayError, match="elsewhere"):
            StreamReader.open(reader.spec, reader.manifest.path)
        moved.rename(elsewhere)
        (tmp_path / "mask.npy").rename(elsewhere / "mask.npy")
        assert Filled(reader, [0]).bad == []


def test_arrays_of_another_number_of_rows_are_refused_with_the_key(tmp_path: Path) -> None:
    refused = pytest.raises(ConfigError, match=r"images\.mask\.from: .* has 5 rows, but there are 6 images")
    for kind in KINDS[:2]:
        stream = build_array_stream(tmp_path / kind, kind, ALL, arrays={"mask": MASKS[:5]})
        with refused, open_records(stream, tmp_path):
            pass


def test_the_row_at_work_is_on_the_progress_page_while_its_images_are_resized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, WorkerPhase]] = []
    with open_records(build_array_stream(tmp_path, "npy", ALL), tmp_path) as reader:
        task = Unfilled(reader, [4, 0, 2])

        def place(*arguments: Any) -> Any:
            progress = task.track.read_row_progress()
            told.append((progress.place, progress.phase))
            return place_stored_pictures(*arguments)

        monkeypatch.setattr(array_records, "place_stored_pictures", place)
        assert task.filling.gather_stored_rows()
        assert told[::3] == [(place, WorkerPhase.DECODING) for place in range(3)]  # photo, mask and band
        assert task.track.read_row_progress().phase is WorkerPhase.IDLE
