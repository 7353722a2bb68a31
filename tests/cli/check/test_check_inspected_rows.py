"""What a worker reports of each file that it inspects, and the faults of a transform."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image
from support.array_records import MASKS, build_array_stream, write_arrays
from support.driven_frames import clip_config, write_drives
from support.faulty_data import animals, inspected, picture, spoil
from support.record_readers import open_records
from support.served_folder import file_of, serve
from support.stored_numbers import build_png_chunk, encode_png
from support.transform_programs import Write

from streamd.dataset.transform_source import find_transform_source
from streamd.ipc.worker_messages import FaultEffect, GroupResult, OpenStream
from streamd.worker.stream_reader import StreamReader, open_reader


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return animals(tmp_path)


def read_folder(folder: Path, state: Path, **changes: Any) -> GroupResult:
    """What is seen of a whole folder."""
    stream = serve(folder, state, **changes)
    with closing(StreamReader.open(stream.spec, stream.manifest_path)) as reader:
        return inspected(reader, range(stream.spec.samples))


def test_good_files_have_a_format_a_size_and_the_digest_of_their_content(folder: Path, tmp_path: Path) -> None:
    seen = read_folder(folder, tmp_path / "state")
    files = [file_of(serve(folder, tmp_path / "state"), sample_id) for sample_id in seen.ids]
    assert (seen.formats, seen.sizes, seen.faults) == ({"JPEG": 8}, {"40x50": 8}, [])
    assert seen.digests == [hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() for path in files]
    assert 0 < seen.read_s < 60
    assert 0 < seen.decode_s < 60


def test_files_that_are_not_images_are_reported_by_id_with_the_decoders_reason(folder: Path, tmp_path: Path) -> None:
    reasons = spoil(folder)
    seen = read_folder(folder, tmp_path / "state")
    stream = serve(folder, tmp_path / "state")
    found = {stream.format_file_name(fault.sample_id): fault for fault in seen.faults}
    assert found.keys() == reasons.keys()
    for name, reason in reasons.items():
        assert reason in found[name].reason
        assert found[name].effect == "verdict"
    assert len(seen.digests) == len(seen.ids) - len(reasons)


def test_a_file_with_a_wrong_suffix_is_counted_by_its_content(folder: Path, tmp_path: Path) -> None:
    picture((20, 10), 1).save(folder / "cat" / "lie.jpg", "PNG")
    assert read_folder(folder, tmp_path / "state").formats == {"JPEG": 8, "PNG": 1}


def test_a_rotated_jpeg_is_counted_upright(folder: Path, tmp_path: Path) -> None:
    turned = picture((70, 30), 1)
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(folder / "cat" / "turned.jpg", exif=exif)
    assert read_folder(folder, tmp_path / "state").sizes == {"40x50": 8, "70x30": 1}


@pytest.mark.parametrize(
    ("resize", "size", "enlarged"),
    [
        ("stretch", [40, 50], 0),
        ("stretch", [41, 20], 8),
        ("crop", [10, 51], 8),
        ("pad", [41, 50], 0),
        ("pad", [41, 52], 8),
    ],
)
def test_only_images_with_too_few_pixels_for_the_rule_count_as_enlarged(
    folder: Path, tmp_path: Path, resize: str, size: list[int], enlarged: int
) -> None:
    seen = read_folder(folder, tmp_path / "state", image={"size": size, "resize": resize})
    assert seen.enlarged == enlarged


def test_a_missing_file_gets_a_verdict(folder: Path, tmp_path: Path) -> None:
    serve(folder, tmp_path / "state")
    (folder / "cat" / "0001.jpg").unlink()
    (fault,) = read_folder(folder, tmp_path / "state").faults
    assert (fault.sample_id, fault.reason, fault.effect) == (1, "No such file or directory", "verdict")


def test_chunks_that_were_decompressed_are_counted_and_timed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((9, 4, 5, 3), np.uint8), chunks=(2, 4, 5, 3), compression="gzip")
    source = {"kind": "hdf5", "path": str(tmp_path / "x.h5"), "images": "x"}
    seen = read_folder(tmp_path, tmp_path / "state", source=source, image={}, labels={})
    assert seen.unpacked == 5
    assert 0 < seen.unpack_s < seen.read_s


def test_array_rows_get_a_digest_of_their_pixels(tmp_path: Path) -> None:
    rows = np.arange(3 * 60, dtype=np.uint8).reshape(3, 4, 5, 3)
    rows[2] = rows[0]
    np.save(tmp_path / "x.npy", rows)
    source = {"kind": "npy", "path": str(tmp_path / "x.npy")}
    seen = read_folder(tmp_path, tmp_path / "state", source=source, image={})
    assert (seen.formats, seen.sizes, seen.faults, seen.enlarged) == ({}, {"4x5": 3}, [], 0)
    assert seen.digests == [hashlib.blake2b(row.tobytes(), digest_size=16).hexdigest() for row in rows]


def test_pictures_with_alpha_or_a_transparent_colour_are_counted(folder: Path, tmp_path: Path) -> None:
    picture((50, 40), 1).convert("RGBA").save(folder / "cat" / "alpha.png")
    picture((50, 40), 1).convert("L").convert("LA").save(folder / "cat" / "grey.png")
    picture((50, 40), 1).convert("P").save(folder / "cat" / "palette.png", transparency=3)
    picture((50, 40), 1).convert("P").save(folder / "cat" / "opaque.png")
    assert read_folder(folder, tmp_path / "state").transparent == 3


def test_pictures_that_show_nothing_or_may_lie_on_a_side_are_counted(folder: Path, tmp_path: Path) -> None:
    levels = np.arange(50 * 40, dtype=np.uint16).reshape(50, 40)
    for name, of_file in {
        "seen.png": Image.fromarray(np.dstack([levels % 251] * 3 + [levels == 77]).astype(np.uint8)),
        "unseen.png": Image.fromarray(np.dstack([levels % 251] * 3 + [levels * 0]).astype(np.uint8)),
        "unseen.webp": Image.fromarray(np.dstack([levels % 251] * 3 + [levels * 0]).astype(np.uint8)),
        "dark.png": Image.fromarray(levels % 256),
        "deep.png": Image.fromarray(levels * 32),
        "turned.jpg": Image.fromarray(np.dstack([levels % 251] * 3).astype(np.uint8)),
    }.items():
        options: dict[str, Any] = {"exif": b"Exif\0\0what is this"} if name == "turned.jpg" else {}
        of_file.save(folder / "cat" / name, **options)
    stream = serve(folder, tmp_path / "state")
    seen = read_folder(folder, tmp_path / "state")
    odd = {oddity: [stream.format_file_name(each) for each in ids] for oddity, ids in seen.odd_pictures.items()}
    assert odd == {
        "dark": ["cat/dark.png"],
        "invisible": ["cat/unseen.png", "cat/unseen.webp"],
        "unturned": ["cat/turned.jpg"],
    }
    assert seen.faults == []
    keeping_alpha = read_folder(folder, tmp_path / "other", image={"size": [8, 8], "mode": "RGBA"})
    assert keeping_alpha.odd_pictures == {}


def test_files_whose_metadata_pillow_refuses_are_counted_as_others(folder: Path, tmp_path: Path) -> None:
    remark = build_png_chunk(b"zTXt", b"remark\0\0" + zlib.compress(bytes(3 << 20)))
    (folder / "cat" / "remark.png").write_bytes(encode_png(np.zeros((50, 40, 3), np.uint8), remark))
    seen = read_folder(folder, tmp_path / "state")
    assert (seen.formats, seen.faults) == ({"JPEG": 8, "PNG": 1}, [])


TEXT = """
    def f(image, labels, rng):
        if (image == 1).all():
            raise ValueError("too dark")
        return image[: 16 if (image == 2).all() else 32], labels
    """


@pytest.fixture
def transformed(tmp_path: Path, program: Write) -> Callable[..., GroupResult]:
    """Reads pictures of one colour each, in a row, with a transform that raises on 1, and halves those that are 2."""
    place = find_transform_source("augment:f", program("augment", TEXT).parent)

    def read_colours(*colours: int) -> GroupResult:
        (tmp_path / "colours" / "cat").mkdir(parents=True)
        for number, colour in enumerate(colours):
            Image.new("RGB", (32, 32), (colour,) * 3).save(tmp_path / "colours" / "cat" / f"{number}.png")
        stream = serve(tmp_path / "colours", tmp_path / "state", image={"size": [32, 32]})
        reader, _ = open_reader(OpenStream(0, str(stream.manifest_path), stream.spec, None, place))
        with closing(reader):
            return inspected(reader, range(len(colours)))

    return read_colours


@pytest.mark.parametrize(
    ("colour", "effect", "reason"),
    [
        (1, "transform", "transform raised ValueError at augment.py:4: too dark"),
        (
            2,
            "stop",
            "transform at augment.py:2: it returns an image of uint8 (16, 32, 3); it must return uint8 (32, 32, 3)",
        ),
    ],
)
def test_a_transform_fault_says_what_a_worker_would_do(
    transformed: Callable[..., GroupResult], colour: int, effect: FaultEffect, reason: str
) -> None:
    seen = transformed(3, colour, 4)
    (fault,) = seen.faults
    assert (fault.sample_id, fault.effect, fault.reason) == (1, effect, reason)
    assert (len(seen.digests), seen.formats) == (2, {"PNG": 2})


def test_rows_of_several_arrays_are_read_together_and_a_fault_names_its_image(tmp_path: Path) -> None:
    masks = MASKS.copy()
    masks[4, 0, 0] = 400
    images = {"photo": {"size": [20, 30]}, "mask": {"like": "photo", "mode": "index"}}
    stream = build_array_stream(tmp_path, "hdf5 compressed", images, arrays={"mask": masks})
    with open_records(stream, tmp_path) as reader:
        seen = inspected(reader, range(6))
    (fault,) = seen.faults
    assert (fault.sample_id, fault.effect) == (4, "verdict")
    assert fault.reason.startswith("mask: it holds the class number 400")
    assert len(set(seen.digests)) == 5
    assert (seen.formats, seen.sizes) == ({}, {"20x30": 5})
    assert seen.unpacked == 6  # chunks of two rows, of both arrays


def test_views_of_arrays_are_read_though_they_have_no_size(tmp_path: Path) -> None:
    (tmp_path / "augment.py").write_text(
        "def number(image, labels, rng):\n    image[:, 0, 0, 0] = range(len(image))\n    return image, labels\n"
    )
    source = write_arrays(tmp_path / "data", "npy")
    stream = {"source": source, "labels": {}, "image": {"views": 2}, "transform": "augment:number", "batch_size": 3}
    with open_records(stream, tmp_path) as reader:
        seen = inspected(reader, range(6))
    assert (len(seen.digests), seen.faults, seen.odd_sizes) == (6, [], {})


def test_clips_are_counted_by_their_first_frame_and_a_bad_frame_is_named(tmp_path: Path) -> None:
    write_drives(tmp_path / "data")
    path = tmp_path / "data" / "7.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    images = {"clip": clip_config(tmp_path / "data")["images"]["clip"], "mask": {"like": "clip", "mode": "index"}}
    with open_records(clip_config(tmp_path / "data", images=images), tmp_path) as reader:
        seen = inspected(reader, range(8), counted=range(8))
    shown = {fault.sample_id: fault.reason for fault in seen.faults}
    assert len(shown) == 3
    assert all(reason.startswith("clip 7.png: ") for reason in shown.values())
    assert seen.sizes == {"24x32": 5}
    assert seen.class_pixels["mask"].masks == 3 * 5
