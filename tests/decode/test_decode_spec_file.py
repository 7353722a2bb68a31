"""The specification of the stream that a model was trained on, in a file beside the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.stream_fake import ANGLE, KIND, make_spec

from streamd.core.spec import ImageSpec, LabelSpec
from streamd.decode.inference import read_spec, spec_file_path, write_spec
from streamd.errors import ConfigError

NUMBERED = LabelSpec("digit", "category", classes=(0, 5, 9), counts=(1, 1, 1))
CROPPED = ImageSpec(8, 16, 1, "random_crop", exact=True, scale=(0.5, 1.0))


def test_the_spec_file_is_beside_the_model() -> None:
    assert spec_file_path(Path("runs/model.keras")) == Path("runs/model.streamd.json")


@pytest.mark.parametrize("normalize", ["imagenet", {"mean": [1.0, 2.0, 3.0], "std": [4.0, 5.0, 6.0]}], ids=type)
def test_a_written_spec_reads_back_equal(tmp_path: Path, normalize: object) -> None:
    spec = make_spec(ANGLE, KIND, NUMBERED, normalize=normalize, images={"image": CROPPED}, weighted=True)
    write_spec(tmp_path / "m.streamd.json", spec)
    assert read_spec(tmp_path / "m.streamd.json") == spec


def test_the_spec_file_is_plain_json(tmp_path: Path) -> None:
    write_spec(tmp_path / "m.streamd.json", make_spec(KIND))
    facts = json.loads((tmp_path / "m.streamd.json").read_text())
    assert facts["labels"]["kind"]["classes"] == ["car", "cat", "dog"]
    assert (facts["images"]["image"]["height"], facts["normalize"]) == (8, "unit")


def test_a_spec_file_of_an_older_version_gets_its_old_defaults(tmp_path: Path) -> None:
    path = tmp_path / "m.streamd.json"
    write_spec(path, make_spec(KIND, weighted=True))
    facts = json.loads(path.read_text())
    del facts["weighted"]
    path.write_text(json.dumps(facts))
    assert read_spec(path) == make_spec(KIND)


def test_a_spec_file_from_before_there_were_several_images_has_the_one(tmp_path: Path) -> None:
    path, image = tmp_path / "m.streamd.json", ImageSpec(8, 16, 1, "crop", normalize="unit")
    write_spec(path, make_spec(KIND, images={"image": image}))
    facts = json.loads(path.read_text())
    only = facts.pop("images")["image"]
    first = {key: only[key] for key in ("height", "width", "channels", "resize", "exact", "scale", "ratio")}
    path.write_text(json.dumps({**facts, "image": first}))
    assert read_spec(path) == make_spec(KIND, images={"image": image})


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"name": 3}', "\x89PNG"])
def test_another_file_is_refused_and_the_error_names_the_right_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.keras"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"model.keras does not say how .*: give the  .streamd.json  that"):
        read_spec(path)


def test_a_spec_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.streamd.json"
    write_spec(path, make_spec(KIND))
    path.write_bytes(path.read_bytes().replace(b"cat", b"\xff\xfe"))
    with pytest.raises(ConfigError, match="does not say how a stream makes its images"):
        read_spec(path)
