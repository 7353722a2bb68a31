"""A COCO file: its categories by id, its crowds, and what is said of one that contradicts itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.boxed_pictures import write_coco

from streamd.dataset.coco.scan import CocoFile
from streamd.errors import ConfigError


def read(path: Path, *, keep_crowds: bool = False) -> CocoFile:
    return CocoFile.read(path, "source.path", keep_crowds=keep_crowds)


def box(image: int, category: int | None = 3, **more: Any) -> dict[str, Any]:
    return {"image_id": image, "category_id": category, "bbox": [1, 2, 10.5, 20], **more}


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read(path).collect_boxes()
    return str(caught.value).replace(f"{path.parent}/", "")


def test_classes_are_numbered_by_sorted_category_id_and_boxes_keep_their_order(tmp_path: Path) -> None:
    file = read(write_coco(tmp_path, [box(12, 18), box(10, 18), box(12, 3), box(10, 3, segmentation=[[1, 2, 3, 4]])]))
    found = file.collect_boxes()
    assert file.classes == ("car", "dog")
    assert found.counts.tolist() == [2, 0, 2]
    assert found.values.tolist() == [1, 0, 1, 0]
    assert found.numbers.tolist() == [[1, 2, 10.5, 20]] * 4


def test_crowds_are_left_out_unless_they_are_kept(tmp_path: Path) -> None:
    path = write_coco(tmp_path, [box(10, iscrowd=1), box(10, iscrowd=0), box(11, iscrowd=1)])
    assert read(path).collect_boxes().counts.tolist() == [1, 0, 0]
    assert read(path, keep_crowds=True).collect_boxes().counts.tolist() == [2, 1, 0]


def test_points_of_all_objects_follow_each_other_and_unlabelled_ones_are_hidden(tmp_path: Path) -> None:
    seen: dict[str, Any] = {"keypoints": [1, 2, 2, 3, 4, 0]}
    found = read(write_coco(tmp_path, [box(11, **seen), box(11), box(10, keypoints=[5, 6, 1])])).collect_points()
    assert found.counts.tolist() == [1, 2, 0]
    assert found.numbers.tolist() == [[5, 6], [1, 2], [3, 4]]
    assert found.values.tolist() == [True, True, False]


def test_a_file_without_points_is_refused_where_points_are_wanted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no keypoints, but a label of type points is asked for; name a file"):
        read(write_coco(tmp_path, [box(10)])).collect_points()
    path = write_coco(tmp_path, [box(10, keypoints=[1, 2])])
    with pytest.raises(ConfigError, match=r"annotation 100 has keypoints of 2 numbers; each point is x, y and its"):
        read(path).collect_points()


def test_ids_may_be_texts(tmp_path: Path) -> None:
    images = [{"id": "a", "file_name": "0.png"}, {"id": "b", "file_name": "1.png"}]
    file = read(write_coco(tmp_path, [{**box(0), "image_id": "b"}], images=images))
    assert file.collect_boxes().counts.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"annotations": [box(99)]}, "an annotation refers to image 99, which is not under images; correct it"),
        ({"annotations": [box(10, 4, id=7)]}, "annotation 7 refers to category 4, which is not under categories;"),
        ({"annotations": [box(10, None, id=7)]}, "annotation 7 refers to category None, which is not under"),
        (
            {"annotations": [box(10, bbox=[1, 2, 3])]},
            "an annotation has the bbox [1.0, 2.0, 3.0]; a bbox is [left, top",
        ),
        ({"annotations": [{"image_id": 10, "category_id": 3}]}, "an annotation has no bbox; a bbox is [left, top"),
        ({"images": [{"id": 1, "file_name": "a"}] * 2}, "has two pictures with id 1; give each an id of its own"),
        ({"categories": [{"id": 1, "name": "a"}] * 2}, "has two categories with id 1; give each an id of its own"),
        ({"categories": [{"id": 1, "name": "a"}, {"id": "2", "name": "b"}]}, "whose ids are numbers and others whose"),
        ({"images": 3}, "is not a COCO file of boxes: Expected `array`, got `int` - at `$.images`; it needs images"),
    ],
)
def test_a_contradiction_is_refused_with_the_file_and_the_annotation(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    told = refusal(write_coco(tmp_path, [], **changes))
    assert told.startswith("source.path: 'instances.json'")
    assert says in told


def test_other_files_and_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text("{")
    assert "'a.json' is not a COCO file of boxes" in refusal(path)
    assert "is a folder; name the file of annotations in it" in refusal(tmp_path)
    assert "there is no" in refusal(tmp_path / "gone.json")
    monkeypatch.setattr("streamd.dataset.coco.scan.MAX_ANNOTATION_BYTES", 0)
    assert "'a.json' has 1 bytes, and at most 0 GiB are read" in refusal(path)
