"""One image for a trained model. tests/system compares it with what a daemon serves of the same files."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, cast
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.daemon_process import write_images
from support.stored_numbers import encode_npy
from support.stream_fake import make_spec

import streamd
from streamd.core.spec import ImageSpec, PixelId, Resize
from streamd.decode import inference, pixel_id
from streamd.decode.decoders import decode_image, decode_sample
from streamd.decode.geometry import Size
from streamd.decode.inference import write_spec
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
    write_spec(path, SPEC)
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


def encode_noise(size: Size, image: ImageSpec, kind: str, orientation: int = 1, seed: int = 0) -> bytes:
    """A file of upright `size` that holds noise in the form that `image` reads."""
    height, width = size if orientation < 5 else size[::-1]
    rng = np.random.default_rng(seed)
    if image.mode == "raw":
        return bytes(encode_npy(rng.integers(0, 60000, (height, width, image.channels)).astype(image.dtype)))
    layers = () if image.mode in {"index", "L"} else (image.channels,)
    exif, out = Image.Exif(), BytesIO()
    exif[0x112] = orientation
    pixels = Image.fromarray(rng.integers(0, 255, (height, width, *layers), dtype=np.uint8))
    (pixels.convert("RGB") if kind == "JPEG" else pixels).save(out, kind, exif=exif)
    return out.getvalue()


SIZES = st.tuples(st.integers(1, 90), st.integers(1, 90))


@st.composite
def image_specs(draw: st.DrawFn, modes: tuple[Literal["RGB", "L", "RGBA", "index", "raw"], ...]) -> ImageSpec:
    mode = draw(st.sampled_from(modes))
    channels = {"RGB": 3, "RGBA": 4, "raw": 2}.get(mode, 1)
    dtype: Any = "uint16" if mode == "raw" else "uint8"
    resize: Resize = draw(st.sampled_from(["stretch", "crop", "pad", "random_crop"]))
    height, width = draw(st.tuples(st.integers(1, 24), st.integers(1, 24)))
    return ImageSpec(height, width, channels, resize, draw(st.booleans()), mode=mode, dtype=dtype, fill=7)


@settings(max_examples=60, deadline=None)
@given(
    photo=image_specs(("RGB", "L", "RGBA")),
    other=image_specs(("RGB", "L", "RGBA", "index", "raw")),
    size=SIZES,
    own=st.none() | SIZES,
    kinds=st.tuples(st.sampled_from(["JPEG", "PNG"]), st.sampled_from(["JPEG", "PNG"])),
    turns=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    is_like=st.booleans(),
)
def test_every_image_is_what_the_stream_shows_of_its_sample_or_refused(
    photo: ImageSpec,
    other: ImageSpec,
    size: Size,
    own: Size | None,
    kinds: tuple[str, str],
    turns: tuple[int, int],
    is_like: bool,
) -> None:
    images = {"photo": photo, "other": replace(other, like="photo" if is_like else None)}
    kind = "PNG" if other.mode == "index" else kinds[1]
    led = encode_noise(size, photo, kinds[0], turns[0])
    # Arrays of numbers say nothing of how they were turned.
    file = encode_noise(own or size, other, kind, 1 if other.mode == "raw" else turns[1], seed=1)
    rows = {name: np.empty(each.shape, each.dtype) for name, each in images.items()}
    decode_sample((led, file), rows, images, dict.fromkeys(images))
    spec = make_spec(images=images)
    with mock.patch.object(pixel_id, "compute_sample_pixel_id", return_value=spec.pixel_id):
        assert np.array_equal(streamd.load_image(led, spec), rows["photo"])
        leader = led if is_like else None
        assert np.array_equal(streamd.load_image(file, spec, "other", leader=leader), rows["other"])
        if not is_like:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for known in (size, None) if own is None else (size,):
                try:
                    assert np.array_equal(streamd.load_image(file, spec, "other", leader=known), rows["other"])
                except ConfigError as error:
                    assert "give leader=FILE, the file of photo" in str(error)  # noqa: PT017 - raised or right
                    assert not photo.exact


def test_the_size_of_the_leader_is_assumed_with_a_warning_only_where_it_matters(
    recwarn: pytest.WarningsRecorder,
) -> None:
    for resize, expected in (("stretch", 0), ("crop", 1), ("pad", 1)):
        photo = ImageSpec(8, 8, 3, cast("Any", resize))
        images = {"photo": photo, "mask": ImageSpec(8, 8, 1, mode="index", like="photo")}
        spec = make_spec(images=images, pixel_id=pixel_id.compute_sample_pixel_id(images))
        file = encode_noise((6, 10), images["mask"], "PNG")
        streamd.load_image(file, spec, "mask")
        told = [str(each.message) for each in recwarn.list]
        assert len(told) == expected, told
        assert all("takes photo to be as large as this file, 6x10, height x width" in each for each in told)
        recwarn.clear()
        streamd.load_image(file, spec, "mask", leader=(6, 10))
        assert not recwarn.list


def test_a_frame_of_a_clip_shows_the_part_that_its_first_frame_shows() -> None:
    clip = ImageSpec(8, 8, 3, "crop", frames=2)
    files = [encode_noise((20, 30), clip, "PNG"), encode_noise((30, 20), clip, "PNG", seed=1)]
    row = np.empty(clip.shape, np.uint8)
    decode_sample((tuple(files),), {"clip": row}, {"clip": clip}, {"clip": None})
    spec = make_spec(images={"clip": clip}, pixel_id=compute_pixel_id(clip))
    assert np.array_equal(streamd.load_image(files[0], spec), row[0])
    assert np.array_equal(streamd.load_image(files[1], spec, leader=files[0]), row[1])
    assert not np.array_equal(streamd.load_image(files[1], spec), row[1])


def test_a_leader_that_cannot_be_one_is_refused(photograph: Path) -> None:
    images = {"photo": IMAGE, "mask": ImageSpec(8, 8, 1, mode="index", like="photo")}
    spec = make_spec(images=images, pixel_id=pixel_id.compute_sample_pixel_id(images))
    mask = encode_noise((6, 10), images["mask"], "PNG")
    with pytest.raises(ConfigError, match="this image follows no other one; leave leader out"):
        streamd.load_image(photograph, spec, leader=(6, 10))
    for size in ((6,), (0, 10), (6.0, 10)):
        with pytest.raises(ConfigError, match=r"found leader=\(.*; use a file, or \(height, width\) in whole pixels"):
            streamd.load_image(mask, spec, "mask", leader=cast("tuple[int, int]", size))
    with pytest.raises(ConfigError, match=r"none.jpg: there is no such file"):
        streamd.load_image(mask, spec, "mask", leader="none.jpg")
