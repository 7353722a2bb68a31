"""What docs/operations.md says of settings: all are there, and a reload takes them as it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
from operations_settings import ADVICE, AGAIN, ANEW, ENVIRONMENT, NONE, UNNOTICED
from operations_table import PAGE, ROOT, prose
from PIL import Image

from streamd.cli.pack.run import PackWorkdir
from streamd.config.load import load_config
from streamd.core.spec import PixelId
from streamd.daemon.reload_plan import plan_stream_changes
from streamd.daemon.streams import catalog
from streamd.daemon.streams.catalog import open_streams, write_sample_manifests
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.cache import CacheLayout

SOURCE: Final = {"kind": "table", "path": "all.csv", "image": "image"}
STREAM: Final[dict[str, Any]] = {"source": SOURCE, "labels": {"label": "category"}, "image": {"size": [8, 8]}}
TRAIN: Final = {"source": {**SOURCE, "part": "train"}}
CROP: Final = {"size": [8, 8], "resize": "random_crop"}
RAW: Final = {"size": [8, 8], "mode": "raw", "channels": 3}
MASK: Final = {"size": [8, 8], "mode": "index"}
CLIP: Final[dict[str, Any]] = {"by": "other", "order": "weight", "offsets": [-1, 0]}
BOXES: Final[dict[str, Any]] = {"labels": {"boxes": {"type": "boxes", "max": 3}}}
CHUNK: Final = {"shuffle": {"kind": "chunk", "chunk": 4, "buffer": 2}}

# key: what a stream says before, and after
CHANGES: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "split.validation": (TRAIN, {**TRAIN, "split": {"validation": 0.5}}),
    "split.seed": (TRAIN, {**TRAIN, "split": {"seed": 5}}),
    "split.by": (TRAIN, {**TRAIN, "split": {"by": "other"}}),
    "labels": ({}, {"labels": {}}),
    "labels.NAME.type": ({}, {"labels": {"label": "string"}}),
    "labels.NAME.from": ({}, {"labels": {"label": {"type": "category", "from": "other"}}}),
    "labels.NAME.classes": ({}, {"labels": {"label": {"type": "category", "classes": ["dog", "cat"]}}}),
    **{
        f"labels.NAME.{key}": (BOXES, {"labels": {"boxes": {**BOXES["labels"]["boxes"], key: value}}})
        for key, value in (("max", 4), ("of", "image"), ("format", "xywh"), ("unit", "fraction"), ("min_visible", 0.5))
    },
    "weights.from": ({}, {"weights": "weight"}),
    "image.size": ({}, {"image": {"size": [8, 9]}}),
    "image.mode": ({}, {"image": {"size": [8, 8], "mode": "L"}}),
    "image.resize": ({}, {"image": {"size": [8, 8], "resize": "crop"}}),
    "image.views": ({"image": CROP}, {"image": {**CROP, "views": 2}}),
    **{
        f"image.frames.{key}": (
            {"image": {"size": [8, 8], "frames": CLIP}},
            {"image": {"size": [8, 8], "frames": {**CLIP, key: value}}},
        )
        for key, value in (("by", "label"), ("order", "image"), ("offsets", [-2, 0]), ("edge", "drop"))
    },
    "image.exact": ({}, {"image": {"size": [8, 8], "exact": True}}),
    "image.scale": ({"image": CROP}, {"image": {**CROP, "scale": [0.5, 1.0]}}),
    "image.ratio": ({"image": CROP}, {"image": {**CROP, "ratio": [1.0, 1.0]}}),
    "image.channels": ({"image": RAW}, {"image": {**RAW, "channels": 1}}),
    "image.range": ({"image": RAW}, {"image": {**RAW, "range": [0, 100]}}),
    "image.dtype": ({"image": MASK}, {"image": {**MASK, "dtype": "uint16"}}),
    "image.fill": ({}, {"image": {"size": [8, 8], "fill": 3}}),
    "image.normalize": ({}, {"image": {"size": [8, 8], "normalize": "unit"}}),
    "image.normalize.mean": ({}, {"image": {"size": [8, 8], "normalize": {"mean": [1, 2, 3], "std": [1, 1, 1]}}}),
    "image.normalize.std": ({}, {"image": {"size": [8, 8], "normalize": {"mean": [1, 2, 3], "std": [2, 2, 2]}}}),
    "batch_size": ({}, {"batch_size": 3}),
    "drop_remainder": ({}, {"drop_remainder": "pad"}),
    "shuffle.kind": ({}, {"shuffle": "none"}),
    "shuffle.seed": ({}, {"shuffle": {"seed": 1}}),
    "shuffle.chunk": (CHUNK, {"shuffle": {**CHUNK["shuffle"], "chunk": 5}}),
    "shuffle.buffer": (CHUNK, {"shuffle": {**CHUNK["shuffle"], "buffer": 3}}),
    "normalize": ({}, {"normalize": "unit"}),
    "normalize.mean": ({}, {"normalize": {"mean": [1, 2, 3], "std": [1, 1, 1]}}),
    "normalize.std": ({}, {"normalize": {"mean": [1, 2, 3], "std": [2, 2, 2]}}),
    "transform": ({}, {"transform": "augment:same"}),
    "bad_samples.policy": ({}, {"bad_samples": {"policy": "fail"}}),
    "bad_samples.max_fraction": ({}, {"bad_samples": {"max_fraction": 0.5}}),
    "cache.path": ({}, {"cache": {"path": "kept"}}),
    "cache.max": ({"cache": {"path": "kept"}}, {"cache": {"path": "kept", "max": "1MiB"}}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("operations")
    rows = [
        f'{number}.png,{"cat" if number % 2 else "dog"},{number % 3},{number},"[[1, 1, 2, 2]]"' for number in range(18)
    ]
    for number in range(18):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
    (folder / "all.csv").write_text("\n".join(["image,label,other,weight,boxes", *rows, ""]))
    (folder / "augment.py").write_text("def same(image, labels, rng):\n    return image, labels\n")
    return folder


def test_every_setting_that_a_reload_may_take_is_tried() -> None:
    assert set(CHANGES) == {key for key, (_, effect) in ADVICE.items() if effect in {UNNOTICED, AGAIN, ANEW}}


@pytest.mark.parametrize("key", CHANGES)
def test_a_changed_setting_takes_effect_as_the_page_says(
    key: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    was, now = (served({**STREAM, "batch_size": 4, **said}, folder / "state") for said in CHANGES[key])
    transformed = ["train"] if was.transform != now.transform else []
    kept = plan_stream_changes({"train": was.spec}, {"train": now.spec}, (), transformed).kept
    effect = UNNOTICED if kept else AGAIN if was.spec.order_id == now.spec.order_id else ANEW
    assert ADVICE[key][1] == effect


def served(stream: dict[str, Any], state: Path) -> ServedStream:
    config = load_config({"streams": {"train": stream}})
    write_sample_manifests(config, state, lambda *_: None)
    (found,) = open_streams(config, state)
    return found


def test_what_is_not_served_yet_is_what_is_refused_by_name() -> None:
    refused = {key for key, (_, effect) in ADVICE.items() if effect == NONE}
    assert refused == {"pace.lockstep"}


def test_every_variable_that_is_read_is_there() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "streamd").rglob("*.py") if path.name != "ranks.py")
    read = r'environ(?:ment)?(?:\.get|\.setdefault|\.pop)?[\[(]"([A-Z_]+)"'
    lists = re.findall(r"^_[A-Z_]*VARIABLES: Final = \((.*)\)$", sources, re.MULTILINE)
    names = {*re.findall(read, sources), *re.findall(r'"([A-Z_]+)"', " ".join(lists))}
    assert names == set(ENVIRONMENT)


def test_what_lies_on_the_disk_is_called_as_the_page_says(tmp_path: Path) -> None:
    names = [
        f"….{list_of(tmp_path).suffix.removeprefix('.')}",
        f"….{catalog._VERDICTS_SUFFIX.removeprefix('.')}",
        f"….{CacheLayout('', PixelId(''), 1, 1).cache_file_name.rpartition('.')[2]}",
        PackWorkdir(tmp_path / "NAME").folder.name,
    ]
    assert [name for name in names if name not in prose(PAGE.read_text(encoding="utf-8"))] == []


def list_of(state: Path) -> Path:
    (path,) = catalog.build_manifest_paths(
        load_config({"streams": {"train": {**STREAM, "batch_size": 4}}}), state
    ).values()
    return path
