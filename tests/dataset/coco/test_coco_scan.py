"""`kind: coco`: the pictures of the file in its order, with their boxes, also pictures without any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from support.boxed_pictures import boxes, points, write_coco
from support.source_configs import Label, Stream

from streamd.dataset.coco import CocoSource
from streamd.dataset.manifest.manifest import Manifest, write_manifest
from streamd.dataset.manifest.types import ScannedSamples
from streamd.dataset.scan import scan_source, select_part_samples, share_classes
from streamd.dataset.sources import LabelSource, Part, SplitRule
from streamd.errors import ConfigError

PARTS: Final[tuple[Part, ...]] = ("train", "validation")
DOG = {"image_id": 11, "category_id": 18, "bbox": [10, 20, 30, 15]}


def scan(path: Path, labels: dict[str, LabelSource] | None = None, **changes: Any) -> ScannedSamples:
    return scan_source(Stream(CocoSource(path, path.parent / "images", **changes), labels), lambda _: None)


def refusal(path: Path, labels: dict[str, LabelSource] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        scan(path, labels)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_without_labels_in_the_configuration_there_are_boxes_with_the_files_classes(tmp_path: Path) -> None:
    found = scan(write_coco(tmp_path, [DOG]))
    assert list(found.files) == [b"0.png", b"1.png", b"2.png"]
    assert found.root == tmp_path / "images"
    assert found.labels["boxes"].tolist() == [[], [[10, 20, 40, 35, 1]], []]
    spec = found.specs["boxes"]
    assert (spec.type, spec.rows, spec.unit, spec.classes, spec.counts) == (
        "boxes",
        100,
        "pixel",
        ("car", "dog"),
        (0, 1),
    )


def test_labels_have_any_name_and_may_be_left_out(tmp_path: Path) -> None:
    path = write_coco(tmp_path, [{**DOG, "keypoints": [1, 2, 2]}])
    assert scan(path, {}).labels == {}
    found = scan(path, {"objects": boxes(1), "joints": points(17)})
    assert found.labels["objects"].tolist()[1] == [[10, 20, 40, 35, 1]]
    assert found.labels["joints"].tolist() == [[], [[1, 2]], []]


def test_a_part_has_the_boxes_of_its_pictures_and_counts_only_those(tmp_path: Path) -> None:
    path = write_coco(tmp_path, [{**DOG, "image_id": 10 + number} for number in range(40)], pictures=40)
    split = SplitRule(0.5)
    streams = [Stream(CocoSource(path, tmp_path / "images", part=part), None, split) for part in PARTS]
    found = [select_part_samples(stream, scan_source(stream, lambda _: None)) for stream in streams]
    assert sum(each.samples for each in found) == 40
    for each in found:
        assert each.specs["boxes"].counts == (0, each.samples)
        assert each.labels["boxes"].tolist() == [[[10, 20, 40, 35, 1]]] * each.samples


def test_sizes_that_boxes_were_drawn_on_are_listed_with_their_pictures(tmp_path: Path) -> None:
    given: list[Any] = [None, 0, 640, 640.0, -1, True, "640", 1e300, [640], 640.4]
    images = [
        {"id": 10 + number, "file_name": f"{number}.png", "width": width, "height": 480}
        for number, width in enumerate(given)
    ]
    path = write_coco(tmp_path, [], pictures=len(given), images=images)
    listed: dict[bytes, tuple[int, int] | None] = {}
    for part in PARTS:
        stream = Stream(CocoSource(path, tmp_path / "images", part=part), None, SplitRule(0.5))
        found = select_part_samples(stream, scan_source(stream, lambda _: None))
        write_manifest(tmp_path / part, found, config_id="x")
        manifest = Manifest.open(tmp_path / part)
        listed |= {manifest.file_name(each): manifest.lookup_drawn_size(each) for each in range(manifest.samples)}
        # A list of other sizes has other verdicts, and the same order.
        other = replace(found, extra={name: values + 1 for name, values in found.extra.items()})
        write_manifest(tmp_path / f"{part}-other", other, config_id="x")
        there = Manifest.open(tmp_path / f"{part}-other")
        assert (there.content_id, there.list_id == manifest.list_id) == (manifest.content_id, False)
    known = {b"2.png", b"3.png", b"9.png"}
    assert listed == {b"%d.png" % row: (480, 640) if b"%d.png" % row in known else None for row in range(len(given))}
    assert scan(write_coco(tmp_path, [])).extra == {}
    assert scan(path, {}).extra == {}


def test_streams_whose_files_number_classes_differently_are_refused(tmp_path: Path) -> None:
    one = scan(write_coco(tmp_path / "one", []))
    other = scan(write_coco(tmp_path / "other", [], categories=[{"id": 1, "name": "dog"}]))
    assert share_classes({"train": one, "validation": one})["train"] is not None
    with pytest.raises(
        ConfigError, match=r"streams\.validation\.labels\.boxes: the classes of its boxes, \[dog\], diff"
    ):
        share_classes({"train": one, "validation": other})


def test_other_labels_and_too_many_boxes_are_refused(tmp_path: Path) -> None:
    path = write_coco(tmp_path, [DOG, DOG])
    assert refusal(path, {"kind": Label()}) == (
        "streams.train.labels.kind: a COCO file gives each picture boxes and points, not 'kind' of type category; use "
        "type boxes or points and leave `from` out, or kind table"
    )
    assert refusal(path, {"boxes": boxes(1)}) == (
        "streams.train.labels.boxes.max: 'instances.json', image '1.png' has 2 boxes, the most of all samples, but max "
        "is 1; write max: 2, or remove boxes from the data"
    )


def test_a_box_of_negative_width_is_refused_without_advice_on_keys_that_a_coco_has_not(tmp_path: Path) -> None:
    told = refusal(write_coco(tmp_path, [{**DOG, "bbox": [1, 2, -3, 4]}]))
    assert told.endswith("holds the box [1, 2, -3, 4], which has a width or height below 0; correct it in the data")


def test_missing_pictures_and_an_empty_list_are_refused(tmp_path: Path) -> None:
    path = write_coco(tmp_path, [])
    (tmp_path / "images" / "1.png").unlink()
    assert "1 of 3 files named in instances.json is not in 'images': 'instances.json', image '1.png'" in refusal(path)
    assert "instances.json lists no images; name a file of" in refusal(write_coco(tmp_path, [], images=[]))
