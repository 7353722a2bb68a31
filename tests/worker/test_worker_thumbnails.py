"""Thumbnails of bad samples, drawn in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile
from support.array_records import PHOTOS, build_array_stream
from support.daemon_process import write_images
from support.driven_frames import build_frame, clip_config, list_rows, write_drives
from support.record_readers import open_records
from support.served_folder import file_of, serve

from streamd.daemon.streams.served_stream import ServedStream
from streamd.worker.inspect_rows import draw_thumbnail
from streamd.worker.stream_reader import StreamReader


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[ServedStream]:
    folder = write_images(tmp_path / "data", {"cat": 4}, size=(200, 400))
    whole = (folder / "cat" / "0001.jpg").read_bytes()
    (folder / "cat" / "0001.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "cat" / "0002.jpg").write_bytes(b"<html>")
    served = serve(folder, tmp_path / "state")
    yield served
    served.manifest.close()


def drawn(stream: ServedStream, *ids: int) -> list[bytes]:
    with contextlib.closing(StreamReader.open(stream.spec, stream.manifest_path)) as reader:
        return [draw_thumbnail(reader, each) for each in ids]


def test_the_thumbnail_of_a_truncated_file_shows_its_decodable_part(stream: ServedStream) -> None:
    whole, half = (Image.open(BytesIO(each)) for each in drawn(stream, 0, 1))
    assert whole.size == half.size == (160, 80)
    assert np.asarray(half)[:20].std() > 1  # the upper part has a picture
    assert np.asarray(half)[-20:].std() < 1  # below there is nothing


def test_a_file_that_is_no_image_has_an_empty_thumbnail(stream: ServedStream) -> None:
    assert drawn(stream, 2) == [b""]


def test_a_changed_file_has_an_empty_thumbnail(stream: ServedStream) -> None:
    file_of(stream, 3).write_bytes(file_of(stream, 0).read_bytes())
    assert drawn(stream, 3) == [b""]


def test_what_is_decoded_afterwards_is_not_made_up(stream: ServedStream) -> None:
    cut = file_of(stream, 1).read_bytes()
    drawn(stream, 0, 1, 2)
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    with pytest.raises(OSError, match="truncated"):
        Image.open(BytesIO(cut)).load()


def test_a_sample_of_several_arrays_is_shown_by_its_first_image(tmp_path: Path) -> None:
    images = {"photo": {"size": [20, 30], "resize": "random_crop"}, "mask": {"like": "photo", "mode": "index"}}
    with open_records(build_array_stream(tmp_path, "npy", images), tmp_path) as reader:
        found = draw_thumbnail(reader, 2)
    shown = np.asarray(Image.open(BytesIO(found)).convert("RGB"), int)
    expected = Image.fromarray(PHOTOS[2]).resize((30, 20), Image.Resampling.BILINEAR)
    assert np.abs(shown - np.asarray(expected)).mean() < 6


def test_the_first_frame_of_a_clip_and_the_first_view_of_an_array_stand_for_the_sample(tmp_path: Path) -> None:
    write_drives(tmp_path / "data")
    viewed = {"photo": {"size": [40, 60], "resize": "random_crop", "views": 2}}
    for stream, expected in (
        (clip_config(tmp_path / "data"), build_frame(list_rows("south")[0])),  # repeated at the beginning
        (build_array_stream(tmp_path / "arrays", "npy", viewed), PHOTOS[3]),
    ):
        with open_records(stream, tmp_path) as reader:
            sample = 3 if reader.manifest.arrays is not None else list_rows("south")[0]
            thumbnail = draw_thumbnail(reader, sample)
        shown = np.asarray(Image.open(BytesIO(thumbnail)), np.int64)
        assert shown.shape == expected.shape
        assert np.abs(shown - expected).mean() < 6
