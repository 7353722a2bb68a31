"""A whole check of real folders finds everything wrong with them and leaves no files."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from support.boxed_pictures import write_coco
from support.daemon_process import stream_config, write_images
from support.driven_frames import clip_config, write_drives
from support.faulty_data import animals, config_of, spoil, surveyed
from support.tar_shards import pack_folder

from streamd.cli.check.findings import ReportOptions, format_report
from streamd.cli.check.labels import BoxSummary
from streamd.cli.check.run import inspect_data
from streamd.cli.terminal import ProgressDisplay
from streamd.errors import ConfigError


def test_good_data_are_read_whole_and_without_trouble(tmp_path: Path) -> None:
    found = surveyed(tmp_path, animals(tmp_path))
    train = found.streams["train"]
    assert (found.troubles, found.warnings) == ([], [])
    assert (train.samples, train.read, train.pictures.formats) == (8, 8, {"JPEG": 8})
    assert train.epoch.seconds > train.epoch.reading_s > 0
    assert train.memory.trainers.at_most > 0


@pytest.mark.long
def test_files_that_train_and_validation_share_are_leakage(tmp_path: Path) -> None:
    train = animals(tmp_path)
    validation = write_images(tmp_path / "held", {"cat": 2, "dog": 2}, seed=9)
    shutil.copy(train / "cat" / "0003.jpg", validation / "cat" / "leak.jpg")
    config = config_of(tmp_path, {"train": stream_config(train), "validation": stream_config(validation)})
    found = inspect_data(config, ProgressDisplay())
    (leak,) = found.leaks
    assert (leak.first, leak.second, leak.files) == ("train", "validation", 1)
    assert leak.example == ("cat/0003.jpg", "cat/leak.jpg")
    assert found.troubles == []
    assert found.together is not None
    assert found.together.at_most <= found.streams["train"].memory.trainers.at_most


@pytest.mark.long
def test_both_identities_are_found_and_each_that_is_not_expected_is_trouble(tmp_path: Path) -> None:
    streams = {"train": stream_config(animals(tmp_path))}
    found = inspect_data(config_of(tmp_path, streams), ProgressDisplay()).streams["train"]
    assert (len(found.order_id), len(found.pixel_id), found.unexpected) == (32, 32, [])
    (tmp_path / "config.yaml").write_text(
        json.dumps({"streams": streams, "expect": {"train": {"order": "0" * 32, "pixels": "1" * 32}}})
    )
    order, pixels = inspect_data(tmp_path / "config.yaml", ProgressDisplay()).troubles
    assert order.startswith(f"expect.train.order: {'0' * 32} is expected")
    assert found.order_id in order
    assert pixels.startswith(f"expect.train.pixels: {'1' * 32} are expected")
    assert found.pixel_id in pixels


@pytest.mark.long
def test_copies_may_differ_in_number_labels_but_not_in_tags(tmp_path: Path) -> None:
    folder = animals(tmp_path)
    table = tmp_path / "all.csv"
    table.write_text(
        "image,angle,x,y,road,seen\n"
        "data/cat/0000.jpg,0.5,0.5,1,a,red;small\n"
        "data/cat/0001.jpg,1,-2,1,b,red\n"
        "data/cat/0000.jpg,0.25,0.5,1,c,\n"
    )
    labels = {"angle": "float", "at": {"from": ["x", "y"], "type": "float"}, "road": "string", "seen": "tags"}
    source = {"kind": "table", "path": str(table), "image": "image"}
    found = surveyed(tmp_path, folder, source=source, labels=labels)
    train = found.streams["train"].labels
    assert (train["angle"].least, train["angle"].most) == (0.25, 1)
    assert (train["at"].least, train["at"].most, train["road"].classes) == (-2, 1, {})
    assert train["seen"].classes == {"red": 2, "small": 1}
    assert {each.label: (each.values, each.trouble) for each in found.contradictions} == {
        "angle": (["0.5", "0.25"], False),
        "seen": (["red and small", "no tag"], True),
    }
    assert len(found.troubles) == 1


@pytest.mark.long
def test_a_stream_that_nobody_can_subscribe_to_is_trouble(tmp_path: Path) -> None:
    found = surveyed(tmp_path, animals(tmp_path), image={"size": [4000, 4000]})
    (trouble,) = found.troubles
    assert "does not fit into memory: one batch takes" in trouble
    assert found.streams["train"].memory.trainers.at_most == 0


@pytest.mark.long
def test_a_sample_of_files_is_evenly_spread_and_progress_counts_it(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"a": 50, "b": 50}, size=(8, 8))
    heard = ProgressDisplay()
    found = inspect_data(config_of(tmp_path, {"train": stream_config(folder)}), heard, max_files=10)
    assert (found.streams["train"].read, found.streams["train"].samples) == (10, 100)
    assert (heard.total, heard.done) == (10, 10)


@pytest.mark.long
def test_a_stream_that_cannot_be_served_is_trouble_and_the_others_are_read(tmp_path: Path) -> None:
    folder = animals(tmp_path)
    store = stream_config(folder, pace={"lockstep": "1s"})
    config = config_of(tmp_path, {"train": stream_config(folder), "store": store}, engine="ray")
    found = inspect_data(config, ProgressDisplay())
    assert list(found.streams) == ["train"]
    assert len(found.troubles) == len(found.refused) > 0
    assert all(trouble.startswith(f"{config}:1: ") for trouble in found.troubles)
    alone = inspect_data(config_of(tmp_path, {"store": store}), ProgressDisplay())
    assert (alone.streams, len(alone.troubles)) == ({}, 1)


def test_check_raises_the_error_with_which_serve_refuses_to_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml:1: streams\.train\.source\.path: there is no"):
        surveyed(tmp_path, tmp_path / "nothing")
    with pytest.raises(ConfigError, match="8 samples cannot fill one batch of 9"):
        surveyed(tmp_path, animals(tmp_path), batch_size=9, drop_remainder=True)


@pytest.mark.long
def test_check_leaves_no_files_and_reads_the_data_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = animals(tmp_path)
    for name in ("tmp", "state"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    assert surveyed(tmp_path, folder).streams["train"].samples == 8
    (folder / "cat" / "0000.jpg").unlink()
    again = surveyed(tmp_path, folder)
    assert (again.streams["train"].samples, again.troubles) == (7, [])
    assert list((tmp_path / "tmp").iterdir()) == list((tmp_path / "state").iterdir()) == []


@pytest.mark.long
def test_the_transform_runs_on_every_sample_and_may_print_and_read_stdin(tmp_path: Path) -> None:
    (tmp_path / "augment.py").write_text(
        "import sys\n"
        "def f(image, labels, rng):\n"
        "    print(sys.stdin.read())\n"
        "    return image, {'label': 1 // (1 - labels['label'])}\n"
    )
    found = surveyed(tmp_path, animals(tmp_path), transform="augment:f").streams["train"]
    assert {each.file.split("/")[0] for each in found.unreadable} == {"dog"}
    assert {each.effect for each in found.unreadable} == {"transform"}
    assert found.unreadable[0].reason.startswith("transform raised ZeroDivisionError at augment.py:4")


@pytest.mark.long
def test_a_transform_that_cannot_be_used_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "augment.py").write_text("def f(image, labels, rng):\n    return image / 255, labels\n")
    with pytest.raises(
        ConfigError,
        match=r"config\.yaml:\d+: streams\.train\.transform: transform at augment\.py:1: "
        "it returns an image of float64",
    ):
        surveyed(tmp_path, animals(tmp_path), transform="augment:f")


@pytest.mark.long
def test_check_reads_shards_like_files_and_finds_copies_across_both(tmp_path: Path) -> None:
    folder = animals(tmp_path)
    reasons = spoil(folder)
    pack_folder(tmp_path / "shards/all.tar", folder)
    packed = stream_config(folder, source={"kind": "tar", "path": str(tmp_path / "shards")})
    found = inspect_data(config_of(tmp_path, {"loose": stream_config(folder), "packed": packed}), ProgressDisplay())
    shards, files = found.streams["packed"], found.streams["loose"]
    assert (shards.samples, shards.read, shards.bytes) == (files.samples, files.read, files.bytes)
    assert (shards.pictures.formats, shards.pictures.sizes) == ({"JPEG": 8}, files.pictures.sizes)
    assert {each.file: each.reason for each in shards.unreadable} == {
        f"all.tar/{each.file}": each.reason for each in files.unreadable
    }
    assert {each.file.removeprefix("all.tar/") for each in shards.unreadable} == reasons.keys()
    assert found.leaks == []
    assert [each for each in found.warnings if each.startswith("loose and packed hold the same files: ")]


@pytest.mark.long
def test_pictures_of_other_sizes_than_their_boxes_were_drawn_on_are_named(tmp_path: Path) -> None:
    objects = [{"image_id": 10 + number, "category_id": 18, "bbox": [20, 10, 20, 20]} for number in range(9)]
    path = write_coco(tmp_path, objects, 9)
    listed = json.loads(path.read_text())
    for image, size in zip(listed["images"], [(160, 120), (80, 60), (0, None), (300, 100)], strict=False):
        image["width"], image["height"] = size
    path.write_text(json.dumps(listed))
    source = {"kind": "coco", "path": str(path), "root": str(tmp_path / "images")}
    bad = {"max_fraction": 0.5}
    found = surveyed(tmp_path, tmp_path, source=source, labels={"boxes": {"type": "boxes", "max": 2}}, bad_samples=bad)
    boxes = found.streams["train"].labels["boxes"].boxes
    assert boxes == BoxSummary(9, 1, 0, scaled=1, filled=8, cornered=8, scaled_file="0.png")
    (bad_file,) = found.streams["train"].unreadable
    assert (bad_file.file, bad_file.effect) == ("3.png", "verdict")
    assert bad_file.reason == (
        "boxes: its labels were drawn on 300x100 pixels, width x height, but the picture has 80x60: the size in the "
        "data has other proportions; correct or remove it"
    )
    said = [each.removeprefix("train: boxes: ") for each in found.warnings if "boxes: the boxes" in each]
    assert said == [
        (
            "the boxes of 1 picture were drawn on another size of it, such as 0.png; they are scaled to the size that "
            "it has"
        ),
        (
            "the boxes of all pictures lie in the top left quarter; if they were drawn on larger pictures, correct "
            "their numbers or unit, or name those pictures"
        ),
    ]


@pytest.mark.long
def test_boxes_are_counted_and_odd_ones_are_named_with_their_file(tmp_path: Path) -> None:
    boxes = [[20, 10, 0, 30], [0, 0, 90, 60], [-20, 0, 10, 10], [5, 5, 10, 10]]
    objects = [{"image_id": 10 + number // 2, "category_id": 18, "bbox": box} for number, box in enumerate(boxes)]
    path = write_coco(tmp_path, objects)
    source = {"kind": "coco", "path": str(path), "root": str(tmp_path / "images")}
    found = surveyed(tmp_path, tmp_path, source=source, labels={"boxes": {"type": "boxes", "max": 2}})
    finding = found.streams["train"].labels["boxes"]
    assert finding.boxes == BoxSummary(4, 2, 1, 1, 2, "0.png", "0.png", filled=2, cornered=1)
    assert finding.classes == {"car": 0, "dog": 4}
    assert found.troubles == [
        "train: boxes: 1 box has no area and will not be delivered, such as in 0.png; correct or remove such boxes",
        (
            "train: boxes: 2 boxes lie partly or wholly outside of the picture, and what is outside is cut at its "
            "edge, such as in 0.png; correct them, or unit and format if they were written for another size"
        ),
    ]
    lines = [line.text for line in format_report(found, ReportOptions())]
    assert "  boxes    4 boxes, at most 2 in a sample; 1 sample has none" in lines


@pytest.mark.long
def test_clips_whose_split_parts_a_sequence_are_worth_knowing(tmp_path: Path) -> None:
    write_drives(tmp_path / "data")
    parted = clip_config(tmp_path / "data")
    parted["source"]["part"] = "train"
    parted["split"] = {"validation": 0.5, "seed": 1}
    whole = {**parted, "split": {"validation": 0.5, "seed": 2, "by": "drive"}}
    (tmp_path / "config.yaml").write_text(json.dumps({"streams": {"parted": parted, "whole": whole}}))
    found = inspect_data(tmp_path / "config.yaml", ProgressDisplay())
    (warning,) = [each for each in found.warnings if "neighbouring rows" in each]
    assert warning == (
        "parted: the clips of 'clip' show neighbouring rows, which the split may have put into the other part, so that "
        "validation looks better than it is; add  by: drive  to split"
    )
