"""A survey of data becomes a configuration that `streamd serve` accepts."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from support.daemon_process import write_images
from support.tar_shards import pack_folder

from streamd.config.load import load_config
from streamd.daemon.starter.starter_config import (
    LoggedProgress,
    build_unwritten_config,
    choose_split_seed,
    make_starter_config,
)
from streamd.dataset.scan import find_validation_samples
from streamd.dataset.sources import SplitRule
from streamd.errors import ConfigError

NO_PROGRESS = LoggedProgress(lambda: 0.0)


def test_one_common_size_is_kept_and_mixed_sizes_become_224(tmp_path: Path) -> None:
    write_images(tmp_path / "pets", {"cat": 12, "dog": 9})
    found = make_starter_config(tmp_path / "pets", None, NO_PROGRESS)
    assert (found.size, found.why_size) == ((40, 50), "the size of all 21 pictures")
    assert sum(each.samples for each in found.samples.values()) == 21
    Image.new("RGB", (9, 9)).save(tmp_path / "pets" / "cat" / "small.png")
    found = make_starter_config(tmp_path / "pets", None, NO_PROGRESS)
    assert (found.size, found.why_size) == ((224, 224), "the pictures are of different sizes")


def test_grey_pictures_and_large_batches_are_noted(tmp_path: Path) -> None:
    for number in range(5):
        Image.new("L", (1300, 1200)).save(tmp_path / f"{number}.png")
    large = "takes 142.8 MiB, but memory is 1 GiB"
    assert make_starter_config(tmp_path, None, NO_PROGRESS).notes == (
        "all pictures are grey: add mode: L next to size to serve one channel instead of three",
        f"a batch of 32 such images {large}: give a smaller size, or set memory: 8GiB in config.yaml",
    )
    assert make_starter_config(tmp_path, (8, 8), NO_PROGRESS).notes == ()


def test_a_size_that_is_given_needs_no_listing(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    for number in range(100):
        (tmp_path / "cat" / f"{number}.jpg").touch()
    path = str(tmp_path)
    assert build_unwritten_config(tmp_path, (66, 200), NO_PROGRESS) == {
        "streams": {
            "train": {
                "source": {"kind": "folder", "path": path, "part": "train"},
                "split": {"validation": 0.2},
                "image": {"size": [66, 200]},
                "normalize": "unit",
                "batch_size": 32,
            },
            "validation": {
                "like": "train",
                "source": {"kind": "folder", "path": path, "part": "validation"},
                "shuffle": "none",
            },
        }
    }


def test_every_kind_of_data_gives_a_valid_configuration(tmp_path: Path) -> None:
    pets = write_images(tmp_path / "pets", {"cat": 12, "dog": 9})
    write_images(tmp_path / "parts" / "train", {"cat": 4})
    write_images(tmp_path / "parts", {"test": 3})
    pack_folder(tmp_path / "shards" / "0.tar", pets)
    (tmp_path / "all.csv").write_text(
        "file,angle\n" + "".join(f"pets/cat/{number:04}.jpg,{number / 7}\n" for number in range(12))
    )
    names = {}
    for path in ("pets", "pets/cat", "parts", "shards", "shards/0.tar", "all.csv"):
        made = build_unwritten_config(tmp_path / path, None, NO_PROGRESS)
        names[path] = list(load_config(made).streams)
    assert names.pop("parts") == ["train", "validation", "test"]
    assert {*map(tuple, names.values())} == {("train", "validation")}


def test_of_few_samples_neither_side_of_the_split_is_empty(tmp_path: Path) -> None:
    assert choose_split_seed([b"1"]) == 0
    for count in range(2, 12):
        names = [b"%d.jpg" % number for number in range(count)]
        held_back = find_validation_samples(names, SplitRule(0.2, choose_split_seed(names))).sum()
        assert 0 < held_back < count
    write_images(tmp_path, {"cat": 1, "dog": 2})
    made = make_starter_config(tmp_path, None, NO_PROGRESS)
    assert {name: each.samples for name, each in made.samples.items()} == {"train": 2, "validation": 1}
    assert build_unwritten_config(tmp_path, (40, 50), NO_PROGRESS) == made.build_settings()


@pytest.mark.parametrize("folders", [("cat", "dog"), ("train/cat", "val/cat"), ("train/cat", "test/cat")])
def test_each_source_is_listed_once(folders: tuple[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for folder in folders:
        write_images(tmp_path / folder, {"": 3})
    with caplog.at_level("INFO", "streamd"):
        made = make_starter_config(tmp_path, (8, 8), NO_PROGRESS)
    listings = [each for each in caplog.messages if each == "listed the samples"]
    assert len(listings) == len({source["path"] for source in made.survey.sources.values()})
    assert sum(each.samples for each in made.samples.values()) == 6


def test_data_that_serve_would_refuse_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path, {"cat": 2})
    Image.new("RGB", (9, 9)).save(tmp_path / "stray.png")
    with pytest.raises(ConfigError, match=r"holds both 1 image \('stray.png'\) and 1 sub-folder "):
        make_starter_config(tmp_path, (8, 8), NO_PROGRESS)


@pytest.mark.parametrize("size", [None, (8, 8)])
def test_notes_about_the_data_are_logged_when_no_file_is_written(
    size: tuple[int, int] | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_images(tmp_path / "data", {"cat": 6})
    with caplog.at_level("INFO", "streamd"):
        build_unwritten_config(tmp_path / "data", size, NO_PROGRESS)
    assert "one class only, cat: labels: {} takes the images without labels" in caplog.messages


def test_progress_of_a_long_survey_is_logged_every_few_seconds(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    progress = LoggedProgress(lambda: now)
    with caplog.at_level("INFO", "streamd"):
        progress.update_listing("train", 4096)
        now = 3.0
        progress.update_listing("train", 8192)
        progress.start_phase(9000)
        progress.advance(512)
        now = 6.0
        progress.advance(512)
    assert [record.getMessage() for record in caplog.records] == [
        "listing the samples",
        "reading the sizes of the pictures",
    ]
