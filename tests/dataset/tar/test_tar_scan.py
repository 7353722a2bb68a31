"""Listing samples of shards: their order, their labels, splits, and faults by name."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import webdataset
from support.daemon_process import write_images
from support.source_configs import Folder, Label, Split, Stream, Tar, part_of, scanned
from support.tar_shards import pack, pack_folder

from streamd.dataset.scan import scan_source
from streamd.dataset.tar import scan as tar
from streamd.errors import ConfigError


def shards(folder: Path, **files: Mapping[str, bytes]) -> str:
    """The path of shards that hold these files."""
    for name, each in files.items():
        pack(folder / f"{name}.tar", each)
    return str(folder / "*.tar")


def refusal(path: str, labels: Mapping[str, Label] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        scan_source(Stream(Tar(path), labels), lambda _: None)
    return str(caught.value)


def test_samples_are_in_byte_order_of_shard_and_image(tmp_path: Path) -> None:
    one, two = {"b.jpg": b"bb", "b.cls": b"1", "a.png": b"a", "a.cls": b"0"}, {"a.jpg": b"cccc", "a.cls": b"1"}
    found = scanned(Tar(shards(tmp_path, s1=two, s0=one)))
    assert found.files == [b"s0.tar/a.png", b"s0.tar/b.jpg", b"s1.tar/a.jpg"]
    assert (found.sizes.tolist(), found.mtimes_ns.size, found.arrays) == ([1, 2, 4], 0, None)
    assert (found.labels["label"].tolist(), found.specs["label"].classes) == ([0, 1, 1], (0, 1))
    assert found.shards is not None
    assert found.shards.names == (b"s0.tar", b"s1.tar")
    for row, data in enumerate([b"a", b"bb", b"cccc"]):
        path = tmp_path / os.fsdecode(found.shards.names[found.extra["shard"][row]])
        offset = found.extra["offset"][row]
        assert path.read_bytes()[offset : offset + found.sizes[row]] == data
        assert path.stat().st_mtime_ns == found.shards.mtimes_ns[found.extra["shard"][row]]


def test_shards_that_webdataset_wrote_give_each_kind_of_label(tmp_path: Path) -> None:
    with webdataset.ShardWriter(str(tmp_path / "s-%03d.tar"), maxcount=3, verbose=0) as writer:
        for row in range(7):
            meta = {"angle": row / 8, "at": [row, -row], "tags": ["odd"] * (row % 2)}
            key = f"{row:05}"
            writer.write({"__key__": key, "jpg": b"%d" % row, "cls": row % 3, "txt": f"nr {row}", "json": meta})
    found = scanned(
        Tar(str(tmp_path)),
        label=Label(),
        text=Label("string", "txt"),
        angle=Label("float", "json:angle"),
        at=Label("int", "json:at"),
        both=Label("float", ("json:angle", "cls")),
        tags=Label("tags", "json:tags"),
    )
    assert (found.samples, len(found.shards.names if found.shards else ())) == (7, 3)
    assert found.labels["label"].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert found.labels["text"].tolist() == [b"nr %d" % row for row in range(7)]
    assert found.labels["angle"].tolist() == [row / 8 for row in range(7)]
    assert found.labels["at"].tolist() == [[row, -row] for row in range(7)]
    assert found.labels["both"].tolist() == [[row / 8, row % 3] for row in range(7)]
    assert (found.specs["tags"].classes, found.specs["tags"].counts) == (("odd",), (3,))


def test_a_packed_folder_has_the_classes_that_the_folder_has(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"dog": 3, "cat": 2})
    pack_folder(tmp_path / "s.tar", folder)
    packed, loose = scanned(Tar(str(tmp_path / "s.tar"))), scanned(Folder(folder))
    assert [name.removeprefix(b"s.tar/") for name in packed.files] == loose.files
    assert packed.specs == loose.specs
    assert packed.labels["label"].tolist() == loose.labels["label"].tolist()
    assert packed.sizes.tolist() == loose.sizes.tolist()


def test_a_split_goes_by_name_and_each_part_has_the_offsets_of_its_images(tmp_path: Path) -> None:
    path = shards(
        tmp_path, a={f"{row}.jpg": b"x" * row for row in range(60)}, b={f"{row}.jpg": b"" for row in range(60)}
    )
    train, held_out = (part_of(Tar(path, part=part), Split(0.3)) for part in ("train", "validation"))
    assert sorted([*train.files, *held_out.files]) == sorted(scanned(Tar(path)).files)
    assert 10 < held_out.samples < 60
    for found in (train, held_out):
        assert found.shards is not None
        assert [len(column) for column in found.extra.values()] == [found.samples] * 2
        for row, name in enumerate(found.files):
            shard, image = name.split(b"/")
            assert found.shards.names[found.extra["shard"][row]] == shard
            data = (tmp_path / os.fsdecode(shard)).read_bytes()
            assert data[found.extra["offset"][row] - 512 :].startswith(image + b"\0")


def test_shards_read_by_several_threads_give_the_same_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shards(tmp_path, **{f"s{number:02}": {f"{number}.jpg": b"x", f"{number}.cls": b"1"} for number in range(30)})
    alone = scanned(Tar(path))
    monkeypatch.setattr(tar, "_QUICK_SAMPLE_S", -1.0)
    together = scanned(Tar(path))
    assert (together.files, together.labels["label"].tolist()) == (alone.files, alone.labels["label"].tolist())
    assert together.extra["shard"].tolist() == list(range(30))


def test_a_truncated_shard_is_refused_by_name(tmp_path: Path) -> None:
    path = shards(tmp_path, a={"1.jpg": b"x" * 900}, b={"2.jpg": b"x" * 900, "3.jpg": b"x" * 900})
    os.truncate(tmp_path / "b.tar", 2200)
    assert refusal(path) == (
        "streams.train.source.path: 'b.tar': it is truncated at byte 2,200, in '3.jpg', which should end at byte "
        "2,948; copy it again, or keep its 1 whole image with truncate -s 1536"
    )
    os.truncate(tmp_path / "b.tar", 1536)
    assert scanned(Tar(path)).files == [b"a.tar/1.jpg", b"b.tar/2.jpg"]


def test_a_shard_without_its_end_mark_or_without_images_causes_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = shards(tmp_path, a={"1.jpg": b"x", "README.txt": b""}, b={"LICENSE": b""})
    os.truncate(tmp_path / "a.tar", 1536)
    with caplog.at_level(logging.INFO):
        assert scanned(Tar(path)).files == [b"a.tar/1.jpg"]
    assert [record.message for record in caplog.records] == [
        "streams.train.source.path: 'a.tar' has no end marker: if it is truncated, samples are missing",
        "streams.train.source.path: 'b.tar' holds no image, only 1 without one",
        "streams.train.source.path: skipped files that belong to no image: 1 .txt, 1 without one, the first 'README'",
    ]


def test_shards_without_any_image_say_what_they_hold(tmp_path: Path) -> None:
    path = shards(tmp_path, a={"1.npy": b"", "1.cls": b""}, b={"2.wav": b""})
    assert "no images in 2 shards of " in refusal(path)
    assert "but there is 1 .npy, 1 .cls, 1 .wav; correct the path, or pack images" in refusal(path)


def test_a_label_without_its_image_is_refused_by_name(tmp_path: Path) -> None:
    message = refusal(shards(tmp_path, a={"1.jpg": b"", "1.cls": b"0", "2.cls": b"1"}))
    assert "'a.tar' has labels without an image, of the samples '2'; it has 2 .cls, 1 .jpg" in message


def test_shards_that_disagree_on_their_default_label_are_refused(tmp_path: Path) -> None:
    path = shards(tmp_path, a={"1.jpg": b"", "1.cls": b"0"}, b={"2.jpg": b""}, c={"x/3.jpg": b""})
    message = refusal(path)
    assert "'b.tar', which has 1 .jpg, differs from the shards before it in whether its images have a class" in message
    assert scan_source(Stream(Tar(path), {}), lambda _: None).samples == 3


def test_values_that_fit_no_label_are_reported_by_image(tmp_path: Path) -> None:
    path = shards(tmp_path, a={"1.jpg": b"", "1.json": json.dumps({"n": "seven"}).encode()})
    assert refusal(path, {"n": Label("int", "json:n")}) == (
        "streams.train.labels.n: 'a.tar/1.jpg': 'n' in its .json holds 'seven', which is not a number; correct it, or "
        "use type category"
    )


def test_a_shard_that_is_written_while_it_is_listed_is_refused(tmp_path: Path) -> None:
    path = shards(tmp_path, a={"1.txt": b"", "1.jpg": b""})

    def write(seen: int) -> None:
        del seen
        os.utime(tmp_path / "a.tar", ns=(1, 1))

    with pytest.raises(ConfigError, match=r"path: 'a\.tar' is still being written; list it once it is complete$"):
        scan_source(Stream(Tar(path), {}), write)


def test_progress_counts_the_images(tmp_path: Path) -> None:
    seen: list[int] = []
    scan_source(Stream(Tar(shards(tmp_path, a={"1.jpg": b"", "2.jpg": b""}, b={"1.jpg": b""}))), seen.append)
    assert seen[-1] == 3
    assert np.all(np.diff(seen) >= 0)
