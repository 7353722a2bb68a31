"""`streamd init`: what it writes, where, and what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.daemon_process import write_images
from typer.testing import CliRunner, Result

from streamd.cli.init import spell_path
from streamd.cli.main import app
from streamd.config.load import load_config
from streamd.errors import ConfigError, OutputExistsError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; the data lie beside it."""
    write_images(tmp_path / "pets", {"cat": 12, "dog": 9})
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def init(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["init", *arguments])


def test_init_writes_the_configuration_and_names_the_next_commands(here: Path) -> None:
    done = init("../pets", "--size", "20x30")
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    assert done.stderr == (
        "21 samples: train 18, validation 3\n"
        "label label: 2 classes: cat 12, dog 9\n"
        "images of 20x30, height x width\n"
        "config.yaml is written. Next:\n"
        "  streamd check    # counts, copies, files that cannot be read\n"
        "  streamd serve    # in a terminal of its own\n"
    )
    config = load_config(here / "config.yaml")
    assert [*config.streams] == ["train", "validation"]
    assert config.streams["train"].image.size == (20, 30)
    assert config.streams["train"].source.path == here.parent / "here/../pets"


def test_files_that_are_skipped_are_named_once(here: Path) -> None:
    (here.parent / "pets" / "cat" / "notes.txt").write_text("cats")
    done = init("../pets")
    assert done.stderr.count("skipped 1 file that is not an image") == 1


def test_an_existing_file_is_replaced_only_with_force(here: Path) -> None:
    (here / "config.yaml").write_text("mine")
    done = init("../pets")
    assert isinstance(done.exception, OutputExistsError)
    assert (done.exception.exit_status, (here / "config.yaml").read_text()) == (1, "mine")
    assert init("../pets", "--force").exit_code == 0
    assert (here / "config.yaml").read_text().startswith("# Made by  streamd init ../pets\n")


def test_a_dash_prints_only_the_configuration_on_standard_output(here: Path) -> None:
    done = init(str(here.parent / "pets"), "-o", "-")
    assert done.stdout.startswith("# Made by ")
    assert f"path: {here.parent}/pets, part: train" in done.stdout
    assert "21 samples" not in done.stdout
    assert "21 samples" in done.stderr
    assert [*here.iterdir()] == []


@pytest.mark.usefixtures("here")
def test_another_file_is_named_in_the_next_commands() -> None:
    assert "streamd check --config pets.yaml " in init("../pets", "-o", "pets.yaml").stderr


@pytest.mark.parametrize(("data", "output"), [(".", "config.yaml"), ("../pets", "../pets/cat/config.yaml")])
def test_nothing_is_written_into_the_data(here: Path, data: str, output: str) -> None:
    done = init(data, "-o", output, "--force")
    assert isinstance(done.exception, OutputExistsError)
    assert "would be inside the data" in str(done.exception)
    assert not (here / output).exists()


def test_data_that_init_cannot_read_are_refused_and_nothing_is_written(here: Path) -> None:
    done = init("../pets/cat/0000.jpg")
    assert isinstance(done.exception, ConfigError)
    assert [*here.iterdir()] == []


def test_a_relative_path_is_relative_to_the_file_unless_links_lead_elsewhere(here: Path) -> None:
    pets = here.parent / "pets"
    assert spell_path(pets, Path("../pets"), here / "config.yaml") == "../pets"
    assert spell_path(pets, Path("../pets"), here.parent / "config.yaml") == "pets"
    assert spell_path(pets, pets, here / "config.yaml") == str(pets)
    (here.parent / "far" / "far" / "away").mkdir(parents=True)
    (here / "link").symlink_to(here.parent / "far" / "far" / "away")
    assert spell_path(pets, Path("../pets"), here / "link" / "config.yaml") == str(pets)
