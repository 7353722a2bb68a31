"""Labels from the files beside the images of the first shard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tar_shards import pack

from streamd.daemon.starter.survey import DataSurvey
from streamd.daemon.starter.survey_labels import survey_shards
from streamd.errors import ConfigError


def survey(path: Path) -> DataSurvey:
    return survey_shards(path, {"train": path})


def write_shard(folder: Path, beside: dict[str, list[bytes]], *, image: str = "{}.jpg") -> Path:
    """Six images, and for each suffix a file beside each."""
    files = {image.format(number): b"" for number in range(6)}
    for suffix, contents in beside.items():
        files |= {f"{number}.{suffix}": content for number, content in enumerate(contents)}
    return pack(folder / "0.tar", files)


def test_class_files_are_the_labels_and_a_note_names_other_files(tmp_path: Path) -> None:
    found = survey(write_shard(tmp_path, {"cls": [b"1"] * 6, "txt": [b"a cat"] * 6}))
    assert found.labels is None
    assert found.notes[0].startswith("next to the images are .txt: labels:")


def test_folders_in_a_tar_are_classes(tmp_path: Path) -> None:
    assert survey(write_shard(tmp_path, {}, image="cat/{}.jpg")).labels is None


def test_json_fields_become_labels_and_unusable_fields_are_left_out(tmp_path: Path) -> None:
    records = [{"angle": number / 4, "place": "ab"[number % 2], "key": f"k{number}", "box": [1]} for number in range(6)]
    found = survey(write_shard(tmp_path, {"json": [json.dumps(each).encode() for each in records]}))
    assert found.labels == {
        "angle": {"from": "json:angle", "type": "float"},
        "place": {"from": "json:place", "type": "category"},
    }
    assert found.left_out == {"json:key": "6 different texts in 6 rows"}
    assert found.notes == ("the labels and their types were guessed from '0.tar' alone",)


@pytest.mark.parametrize(
    ("texts", "labels"),
    [
        ([b"0.5", b"1.5\n"] * 3, {"label": {"from": "txt", "type": "float"}}),
        ([b"cat", b"dog"] * 3, {"label": {"from": "txt", "type": "category"}}),
        ([b"a %d" % number for number in range(6)], {}),
    ],
)
def test_texts_are_numbers_classes_or_captions(tmp_path: Path, texts: list[bytes], labels: dict[str, object]) -> None:
    assert survey(write_shard(tmp_path, {"txt": texts})).labels == labels


def test_json_files_without_objects_give_no_labels(tmp_path: Path) -> None:
    assert survey(write_shard(tmp_path, {"json": [b"[1]"] * 6})).labels == {}


def test_a_tar_that_is_truncated_is_named(tmp_path: Path) -> None:
    path = write_shard(tmp_path, {"cls": [b"1" * 600] * 6})
    path.write_bytes(path.read_bytes()[:1500])
    with pytest.raises(ConfigError, match=r"PATH: '0.tar': it is truncated"):
        survey(path)
