"""One image for a trained model. tests/system compares it with what a daemon serves of the same files."""

from __future__ import annotations

import sys
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from support.daemon_process import write_images
from support.stream_fake import make_spec

import streamd
from streamd.core import spec_file
from streamd.core.spec import ImageSpec, PixelId
from streamd.decode import inference
from streamd.decode.decoders import decode_image
from streamd.decode.pixel_id import compute_pixel_id, compute_stored_pixel_id
from streamd.errors import ConfigError, MissingExtraError

IMAGE = ImageSpec(16, 24, 3)
SPEC = make_spec(images={"image": IMAGE}, pixel_id=compute_pixel_id(IMAGE))


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    return write_images(tmp_path, {"a": 1}) / "a" / "0000.jpg"


def decoded(path: Path, image: ImageSpec) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    row = np.empty(image.shape, np.uint8)
    decode_image(path.read_bytes(), row, image)
    return row


def test_a_path_bytes_and_an_open_file_give_the_pixels_that_are_decoded(photograph: Path) -> None:
    wanted = decoded(photograph, IMAGE)
    for file in (photograph, str(photograph), photograph.read_bytes(), BytesIO(photograph.read_bytes())):
        pixels = streamd.load_image(file, SPEC)
        np.testing.assert_array_equal(pixels, wanted)
        assert (pixels.shape, pixels.dtype.name) == ((16, 24, 3), "uint8")


def test_the_spec_file_beside_a_model_can_stand_for_the_stream(photograph: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.streamd.json"
    spec_file.write_spec(path, SPEC)
    for known in (path, str(path)):
        np.testing.assert_array_equal(streamd.load_image(photograph, known), streamd.load_image(photograph, SPEC))


def test_a_random_crop_shows_the_middle(photograph: Path) -> None:
    random = replace(IMAGE, resize="random_crop")
    pixels = streamd.load_image(photograph, make_spec(images={"image": random}, pixel_id=compute_pixel_id(random)))
    np.testing.assert_array_equal(pixels, decoded(photograph, replace(IMAGE, resize="crop")))


def test_an_image_with_views_gives_one_picture_of_the_middle(photograph: Path) -> None:
    viewed = replace(IMAGE, resize="random_crop", views=3)
    pixels = streamd.load_image(photograph, make_spec(images={"image": viewed}, pixel_id=compute_pixel_id(viewed)))
    assert np.array_equal(pixels, decoded(photograph, replace(IMAGE, resize="crop")))


def test_pixels_that_differ_from_those_of_the_stream_cause_a_warning(photograph: Path) -> None:
    with pytest.warns(
        UserWarning, match="'train' differ from those that load_image makes: the stream has a transform"
    ) as told:
        pixels = streamd.load_image(photograph, replace(SPEC, pixel_id=PixelId("other")))
    assert told[0].filename == __file__
    np.testing.assert_array_equal(pixels, decoded(photograph, IMAGE))


def test_a_stream_of_arrays_is_refused(photograph: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"served from arrays.*this file to a uint8 array of shape \(16, 24, 3\) in the same way"
    ):
        streamd.load_image(photograph, replace(SPEC, pixel_id=compute_stored_pixel_id(IMAGE)))


def test_a_damaged_image_is_named_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(bytes(7))
    with path.open("rb") as opened:
        files: list[tuple[inference.File, str]] = [
            (path, "x.jpg"),
            (bytes(7), "an image of 7 bytes"),
            (opened, "x.jpg"),
        ]
        for file, name in files:
            with pytest.raises(ConfigError, match=f"{name}: 7 zero bytes: a copy or"):
                streamd.load_image(file, SPEC)


def test_without_the_decoders_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[:2] == ["streamd", "decode"]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    with pytest.raises(MissingExtraError, match=r"load_image needs simplejpeg.*pip install 'streamd-loader\[serve\]'"):
        streamd.load_image(b"", SPEC)


def test_a_file_that_is_no_spec_is_refused(photograph: Path) -> None:
    with pytest.raises(ConfigError, match=r"0000.jpg does not say how a stream makes its images"):
        streamd.load_image(photograph, photograph)


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(
    photograph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with photograph.open("rb") as finished, photograph.open() as text:
        finished.read()
        faults: dict[object, str] = {
            "none.jpg": f"^none.jpg: there is no such file in {tmp_path}; load_image takes one image file$",
            tmp_path / "none.jpg": f"^{tmp_path}/none.jpg: there is no such file; load_image",
            tmp_path: f"^{tmp_path} is a folder; load_image takes one image file$",
            "": "^the path is empty; load_image",
            "x" * 300: "xxx: File name too long; load_image",
            b"": "^an image of 0 bytes: an empty file$",
            finished: r"0000.jpg: nothing is left to read; call seek\(0\) on the file first$",
            text: "a file opened with 'rb', not a file opened as text$",
            None: "^load_image takes a path, the bytes of a file, or a file opened with 'rb', not a NoneType$",
        }
        for file, fault in faults.items():
            with pytest.raises(ConfigError, match=fault):
                streamd.load_image(cast("inference.File", file), SPEC)


def test_a_spec_that_cannot_be_read_is_refused_with_the_reason(photograph: Path, tmp_path: Path) -> None:
    wanted = "; give the  .streamd.json  that streamd-train wrote next to the model, or stream.spec$"
    for spec, fault in {
        tmp_path / "model.streamd.json": f"^{tmp_path}/model.streamd.json: there is no such file{wanted}",
        tmp_path: f"^{tmp_path} is a folder{wanted}",
        None: f"^load_image cannot use a NoneType as spec: {wanted[2:]}",
    }.items():
        with pytest.raises(ConfigError, match=fault):
            streamd.load_image(photograph, cast("Path", spec))
