"""Clips: a sample's frames are the pictures of several rows, all cropped alike, each read once a task."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filled_rows import Filled
from PIL import Image
from support.driven_frames import HEIGHT, OFFSETS, WIDTH, build_frame, clip_config, list_rows, write_drives
from support.record_readers import open_records
from test_worker_sample_files import arrays, reading

from streamd.core.sampler import PAD_ID
from streamd.core.spec import ImageSpec
from streamd.dataset.paths.open_beneath import read_file
from streamd.decode import pillow
from streamd.decode.pixel_id import compute_pixel_id
from streamd.worker import stream_reader


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_drives(tmp_path / "data")


def expected_rows(sample: int) -> list[int]:
    """The rows of the clip of a sample, where an end of its drive repeats its nearest row."""
    rows = next(each for each in map(list_rows, ("north", "south")) if sample in each)
    place = rows.index(sample)
    return [rows[min(max(place + offset, 0), len(rows) - 1)] for offset in OFFSETS]


def test_each_frame_is_the_picture_of_its_row(folder: Path, tmp_path: Path) -> None:
    with reading(clip_config(folder), tmp_path / "state") as reader:
        assert reader.spec.images["clip"].shape == (3, HEIGHT, WIDTH, 3)
        assert reader.spec.samples == 8
        batch = Filled(reader, [*range(7), PAD_ID])
        assert batch.bad == []
        for sample in range(7):
            for frame, row in enumerate(expected_rows(sample)):
                assert np.array_equal(batch.images[sample, frame], build_frame(row)), (sample, frame)
        assert not batch.images[7].any()
        assert batch.labels("angle")[:7].tolist() == pytest.approx([number / 10 for number in range(7)])


def test_an_edge_that_drops_leaves_samples_out_and_keeps_their_pictures(folder: Path, tmp_path: Path) -> None:
    with reading(clip_config(folder, {"edge": "drop"}), tmp_path / "state") as reader:
        whole = sorted([*list_rows("north")[2:], *list_rows("south")[2:]])
        assert reader.spec.samples == len(whole) == 4
        assert [reader.manifest.file_name(sample) for sample in range(4)] == [b"%d.png" % row for row in whole]
        batch = Filled(reader, [0, 1, 2, 3])
        for sample, row in enumerate(whole):
            for frame, shown in enumerate(expected_rows(row)):
                assert np.array_equal(batch.images[sample, frame], build_frame(shown))
        assert batch.labels("angle")[:4].tolist() == pytest.approx([row / 10 for row in whole])


def test_neighbours_come_from_all_rows_of_other_parts_and_only_from_those_that_where_keeps(
    folder: Path, tmp_path: Path
) -> None:
    source = {"kind": "table", "path": str(folder / "frames.csv"), "part": "validation"}
    split = {"validation": 0.5, "seed": 1}
    with reading(clip_config(folder, source=source, split=split), tmp_path / "part") as reader:
        names = [int(reader.manifest.file_name(sample).split(b".")[0]) for sample in range(reader.spec.samples)]
        assert 0 < len(names) < 8
        batch = Filled(reader, [*range(len(names))])
        for sample, row in enumerate(names):
            for frame, shown in enumerate(expected_rows(row)):
                assert np.array_equal(batch.images[sample, frame], build_frame(shown))
        listed = reader.manifest.images["clip"]
        used = {shown for row in names for shown in expected_rows(row)}
        assert set(listed.file_names()) == {b"%d.png" % row for row in used}
    kept = {"kind": "table", "path": str(folder / "frames.csv"), "where": {"part": "kept"}}
    with reading(clip_config(folder, source=kept), tmp_path / "kept") as reader:
        batch = Filled(reader, [*range(7)])
        assert not any(np.array_equal(picture, build_frame(6)) for clip in batch.images for picture in clip)


def test_a_picture_is_read_once_for_all_clips_of_a_task(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[bytes] = []

    def count(root: int, name: bytes, *facts: int) -> bytes:
        names.append(name)
        return read_file(root, name, *facts)

    monkeypatch.setattr(stream_reader, "read_file", count)
    with reading(clip_config(folder), tmp_path / "state") as reader:
        Filled(reader, [*range(8)])
    assert sorted(names) == [b"%d.png" % number for number in range(8)]


def test_a_picture_is_decoded_again_only_for_another_part(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    load = pillow.load_upright_with_pillow

    def count(data: bytes, *how: Any) -> Any:
        decoded.append(id(data))
        return load(data, *how)

    monkeypatch.setattr(pillow, "load_upright_with_pillow", count)
    clip = clip_config(folder)["images"]["clip"] | {"size": [9, 10], "resize": "crop"}
    with reading(clip_config(folder, images={"clip": clip}), tmp_path / "state") as reader:
        whole = Filled(reader, [*range(8)])
        assert len(decoded) <= 2 * 8  # as the first frame of a clip, and as one that follows
        for sample in range(8):
            assert np.array_equal(whole.images[sample], Filled(reader, [sample]).images[0])
    decoded.clear()
    clip["resize"] = "random_crop"
    with reading(clip_config(folder, images={"clip": clip}), tmp_path / "crops") as reader:
        Filled(reader, [*range(8)])
    assert len(decoded) == 3 * 8


def test_all_frames_of_a_clip_and_of_its_mask_show_the_same_part(folder: Path, tmp_path: Path) -> None:
    clip = clip_config(folder)["images"]["clip"] | {"size": [9, 10], "resize": "random_crop"}
    images: dict[str, Any] = {"clip": clip, "mask": {"like": "clip", "mode": "index"}}
    with reading(clip_config(folder, images=images), tmp_path / "state") as reader:
        found = arrays(Filled(reader, [*range(8)], epoch=2))
        assert found["mask"].shape == (8, 3, 9, 10)
        for sample in range(8):
            rows = expected_rows(sample)
            assert [np.unique(mask).tolist() for mask in found["mask"][sample]] == [[row] for row in rows]
            # Two frames of one part differ by the numbers of their rows alone, less what rounding adds.
            shift = found["clip"][sample, 0, :, :, 0].astype(int) - found["clip"][sample, 2, :, :, 0]
            assert np.abs(shift - (rows[0] - rows[2])).max() <= 1
        other = arrays(Filled(reader, [*range(8)], epoch=3))
        assert not np.array_equal(found["clip"], other["clip"])
        again = arrays(Filled(reader, [5], epoch=2))
        assert np.array_equal(again["clip"][0], found["clip"][5])


def test_a_frame_of_another_size_shows_the_part_in_proportion(folder: Path, tmp_path: Path) -> None:
    rows = list_rows("south")
    Image.fromarray(build_frame(rows[1])).resize((2 * WIDTH, 2 * HEIGHT), Image.Resampling.NEAREST).save(
        folder / f"{rows[1]}.png"
    )
    clip = clip_config(folder)["images"]["clip"] | {"size": [9, 10], "resize": "random_crop"}
    with reading(clip_config(folder, images={"clip": clip}), tmp_path / "state") as reader:
        shown = Filled(reader, [rows[2]], epoch=1).images[0].astype(int)
        assert np.abs(shown[1] - shown[0] - (rows[1] - rows[0])).max(axis=(0, 1))[:2].max() <= 8


def test_a_bad_frame_makes_each_clip_that_shows_it_bad_and_is_named(folder: Path, tmp_path: Path) -> None:
    with reading(clip_config(folder), tmp_path / "state") as reader:
        north, south = list_rows("north"), list_rows("south")
        path = folder / f"{north[0]}.png"
        before = path.stat()
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(before.st_size - 8))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        (folder / f"{south[0]}.png").unlink()
        batch = Filled(reader, [*range(8)])
        reasons = {row.sample_id: row.reason for row in batch.bad}
        assert set(reasons) == {*north[:3], *south}
        assert reasons[north[1]].startswith(f"clip {north[0]}.png: ")
        assert reasons[south[2]] == f"clip {south[0]}.png: No such file or directory"


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a picture with boxes"])
def test_a_cache_keeps_whole_clips(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool) -> None:
    stream = clip_config(folder, cache={"path": "kept"})
    if beside:
        stream["images"]["still"] = {"from": "photo", "size": [9, 10]}
        stream["labels"] = {"boxes": {"type": "boxes", "max": 1, "of": "still"}}
        text = (folder / "frames.csv").read_text().splitlines()
        boxed = [f'{line},"[[{row}, 0, 30, 20]]"' for row, line in enumerate(text[1:])]
        (folder / "frames.csv").write_text("\n".join([f"{text[0]},boxes", *boxed, ""]))
    with open_records(stream, tmp_path) as reader:
        first = Filled(reader, [*range(8)])
        assert reader.cache is not None
        reader.cache.publish_rows()
    monkeypatch.setattr(stream_reader, "read_file", None)
    with open_records(stream, tmp_path, is_listed=True) as reader:
        again = Filled(reader, [*range(8)])
        assert again.bad == []
        assert again.memory == first.memory
        assert again.filling.count_of_gathered_rows == 8


def test_a_changed_frame_is_decoded_again(folder: Path, tmp_path: Path) -> None:
    stream, rows = clip_config(folder, cache={"path": "kept"}), list_rows("south")
    with open_records(stream, tmp_path) as reader:
        Filled(reader, [*range(8)])
    Image.fromarray(build_frame(77)).save(folder / f"{rows[0]}.png")
    with open_records(stream, tmp_path) as reader:
        batch = Filled(reader, [*range(8)])
        assert batch.filling.count_of_gathered_rows in {0, 5}  # as a file's size belongs to the samples that are listed
        assert np.array_equal(batch.images[rows[2], 0], build_frame(77))


def test_frames_count_in_the_identity_of_pixels_only_where_they_are_given() -> None:
    plain = ImageSpec(8, 8, 3)
    ids = {compute_pixel_id(ImageSpec(8, 8, 3, frames=frames)) for frames in (0, 1, 2)}
    assert len(ids) == 3
    assert "frames" not in plain.describe_pixels()
    assert ImageSpec(8, 8, 3, frames=2).row_bytes == 2 * plain.row_bytes


def npy_config(folder: Path, rule: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The stream of `clip_config` over arrays of the same pictures and masks."""
    np.save(folder / "photo.npy", np.stack([build_frame(row) for row in range(8)]))
    np.save(folder / "masks.npy", np.stack([np.full((HEIGHT, WIDTH), row, np.uint8) for row in range(8)]))
    source = {"kind": "npy", "path": str(folder / "photo.npy"), "table": str(folder / "frames.csv")}
    config = clip_config(folder, rule, source=source)
    del config["images"]["clip"]["from"]
    return config | changes


@pytest.mark.parametrize("rule", [{}, {"edge": "drop"}], ids=["repeat", "drop"])
def test_rows_of_arrays_are_frames_as_files_are(folder: Path, tmp_path: Path, rule: dict[str, Any]) -> None:
    with (
        reading(clip_config(folder, rule), tmp_path / "files") as files,
        reading(npy_config(folder, rule), tmp_path / "rows") as rows,
    ):
        assert files.spec.samples == rows.spec.samples
        ids = [*range(min(7, files.spec.samples)), PAD_ID]
        expected, found = Filled(files, ids), Filled(rows, ids)
        assert found.bad == []
        assert np.array_equal(found.images[: len(ids)], expected.images[: len(ids)])
        assert np.array_equal(found.labels("angle"), expected.labels("angle"))


def test_clips_of_arrays_are_cropped_with_their_masks_as_those_of_files(folder: Path, tmp_path: Path) -> None:
    crop = {"size": [9, 10], "resize": "random_crop"}
    mask = {"like": "clip", "mode": "index"}
    source = {"kind": "table", "path": str(folder / "frames.csv"), "where": {"part": "kept"}}
    of_files = clip_config(folder, source=source)
    of_files["images"] = {"clip": of_files["images"]["clip"] | crop, "mask": mask}
    of_rows = npy_config(folder)
    of_rows["source"]["where"] = {"part": "kept"}
    of_rows["images"] = {"clip": of_rows["images"]["clip"] | crop, "mask": {**mask, "from": str(folder / "masks.npy")}}
    with reading(of_files, tmp_path / "files") as files, reading(of_rows, tmp_path / "rows") as rows:
        expected, found = (arrays(Filled(each, [*range(7)], epoch=4)) for each in (files, rows))
        for name in ("clip", "mask"):
            assert np.array_equal(found[name][:7], expected[name][:7])
    source["part"] = of_rows["source"]["part"] = "validation"
    split = {"split": {"validation": 0.5, "by": "drive", "seed": 2}}
    with reading(of_files | split, tmp_path / "f2") as files, reading(of_rows | split, tmp_path / "r2") as rows:
        expected, found = (arrays(Filled(each, [0, 1])) for each in (files, rows))
        assert np.array_equal(found["clip"][:2], expected["clip"][:2])


def test_a_bad_row_of_an_array_is_named_alike_by_all_clips_that_show_it(folder: Path, tmp_path: Path) -> None:
    config = npy_config(folder)
    masks = np.load(folder / "masks.npy").astype(np.int16)
    masks[list_rows("north")[2]] = 300
    np.save(folder / "masks.npy", masks)
    mask = {"like": "clip", "mode": "index", "from": str(folder / "masks.npy")}
    config["images"]["mask"] = mask
    with reading(config, tmp_path / "state") as reader:
        bad = {each.sample_id: each.reason for each in Filled(reader, [*range(8)]).bad}
    row = list_rows("north")[2]
    assert set(bad) == {sample for sample in range(8) if row in expected_rows(sample)}
    assert len(bad) == 3
    (reason,) = set(bad.values())
    assert reason.startswith(f"mask masks.npy[{row}]: it holds the class number 300")
