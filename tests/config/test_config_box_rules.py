"""Which keys go together with boxes and points, and which do not."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.config.load import load_config
from streamd.config.schema import StreamConfig
from streamd.dataset.sources import BoxRule
from streamd.errors import ConfigError

TABLE = {"kind": "table", "path": "t.csv", "image": "file"}
COCO = {"kind": "coco", "path": "a.json", "root": "images"}
YOLO = {"kind": "yolo", "path": "data.yaml", "part": "train"}


def stream(source: dict[str, Any], label: dict[str, Any] | None = None, **keys: Any) -> StreamConfig:
    labels = {} if label is None else {"labels": {"b": {"type": "boxes", "max": 9, **label}}}
    return load_config({"streams": {"s": {"source": source, "image": {"size": [8, 8]}, **labels, **keys}}}).streams["s"]


def refusal(source: dict[str, Any], label: dict[str, Any] | None = None, **keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        stream(source, label, **keys)
    return str(caught.value).removeprefix("configuration: streams.s.")


def rule(label: dict[str, Any]) -> BoxRule | None:
    labels = stream(TABLE, label).listing_request.labels
    assert labels is not None
    return labels["b"].boxes


def test_the_defaults_are_those_of_the_contract() -> None:
    assert rule({}) == BoxRule(9, "xyxy", "pixel", 0.0, "")
    given = {"format": "cxcywh", "unit": "fraction", "min_visible": 0.5, "of": "image"}
    assert rule(given) == BoxRule(9, "cxcywh", "fraction", 0.5, "image")


@pytest.mark.parametrize(
    ("label", "says"),
    [
        (
            {"max": None},
            "labels.b.max: is missing; a label of type boxes needs the most that a sample may have: max: 100",
        ),
        ({"max": 0}, "labels.b.max: found 0; use a whole number from 1 to 16384"),
        ({"format": "xyhw"}, "labels.b.format: found 'xyhw'; use xyxy, xywh or cxcywh; did you mean 'xywh'?"),
        ({"unit": "px"}, "labels.b.unit: found 'px'; use pixel or fraction"),
        (
            {"min_visible": 20},
            "labels.b.min_visible: found 20; use a number from 0 to 1, the part of a box's area; did",
        ),
        ({"of": "foto"}, "labels.b.of: found 'foto', which is no image of this stream; it has image"),
        ({"type": "points", "format": "xyxy"}, "labels.b.format: does not belong to a label of type points; remove it"),
        ({"type": "points", "classes": ["a"]}, "labels.b.classes: a label of type points has no classes"),
        ({"type": "int"}, "labels.b.max: does not belong to a label of type int; remove it, or change the type"),
    ],
)
def test_a_wrong_key_is_refused_with_what_is_allowed(label: dict[str, Any], says: str) -> None:
    assert refusal(TABLE, label).startswith(says)


@pytest.mark.parametrize("key", [{"format": "xyxy"}, {"unit": "pixel"}, {"classes": ["a"]}])
@pytest.mark.parametrize("source", [COCO, YOLO])
def test_a_source_with_boxes_of_its_own_takes_no_form_of_them(source: dict[str, Any], key: dict[str, Any]) -> None:
    (name,) = key
    assert (
        refusal(source, key)
        == f"labels.b.{name}: kind {source['kind']} brings the {name} of its boxes along; remove it"
    )


def test_a_yolo_data_set_has_parts_and_no_split() -> None:
    assert stream(YOLO).split is None
    assert stream({**YOLO, "part": "test"}).listing_request.split is None
    assert refusal(YOLO, split={"validation": 0.2}) == (
        "split: kind yolo has parts of its own; remove it, and choose one by part"
    )
    assert refusal({**YOLO, "part": "all"}) == "source.part: found 'all'; use train, validation or test"
    assert refusal({key: YOLO[key] for key in ("kind", "path")}) == "source.part: is missing"


def test_a_coco_file_is_split_like_any_list() -> None:
    assert stream({**COCO, "part": "validation"}).split is not None


@pytest.mark.parametrize(("source", "label"), [(TABLE, {}), (COCO, {}), (COCO, None), (YOLO, None)])
def test_pictures_with_boxes_may_have_a_cache(source: dict[str, Any], label: dict[str, Any] | None) -> None:
    assert stream(source, label, cache={"path": "c"}).cache is not None


def test_the_keys_of_boxes_do_not_change_the_names_of_other_manifests() -> None:
    """Manifests are found by the repr of the labels."""
    labels = stream(TABLE, labels={"a": {"type": "float", "from": "b"}}).labels
    assert repr(labels) == "{'a': LabelConfig(type='float', source='b', classes=None)}"
    assert "min_visible=0.5" in repr(stream(TABLE, {"min_visible": 0.5}).labels)
