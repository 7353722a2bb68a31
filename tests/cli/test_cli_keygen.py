"""`streamd keygen`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.errors import ConfigError
from streamd.ipc.key_files import read_key_pair, read_public_key


def keygen(*arguments: str) -> list[str]:
    done = CliRunner().invoke(app, ["keygen", *arguments])
    if done.exception is not None:
        raise done.exception
    return done.output.splitlines()


def test_a_pair_has_the_name_of_its_folder(tmp_path: Path) -> None:
    keygen(str(tmp_path / "keys" / "daemon"))
    made = sorted(each.name for each in (tmp_path / "keys" / "daemon").iterdir())
    assert made == ["daemon.key", "daemon.key_secret"]
    pair = read_key_pair(tmp_path / "keys" / "daemon" / "daemon.key_secret", "k")
    assert read_public_key(tmp_path / "keys" / "daemon" / "daemon.key", "k") == pair.public


def test_a_name_may_be_chosen_and_both_files_are_printed(tmp_path: Path) -> None:
    said = keygen(str(tmp_path), "--name", "laptop")
    assert [line.split()[0] for line in said] == [f"{tmp_path}/laptop.key", f"{tmp_path}/laptop.key_secret"]


def test_existing_files_are_kept(tmp_path: Path) -> None:
    keygen(str(tmp_path), "--name", "me")
    before = (tmp_path / "me.key").read_bytes()
    with pytest.raises(ConfigError, match="exists already"):
        keygen(str(tmp_path), "--name", "me")
    assert (tmp_path / "me.key").read_bytes() == before


@pytest.mark.parametrize("name", ["", "a/b", ".hidden"])
def test_a_name_that_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a file"):
        keygen(str(tmp_path), "--name", name)
