"""What a trainer is called where people look at the daemon."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.client.trainer_name import find_program_name, parse_trainer_name
from streamd.errors import ConfigError
from streamd.limits import MAX_TRAINER_NAME_CHARS


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["/home/me/train.py", "--lr", "0.1"], "train.py"),
        (["/usr/bin/streamd-train"], "streamd-train"),
        (["/opt/mytrainer/__main__.py"], "mytrainer"),
        (["/lib/python3/site-packages/ipykernel_launcher.py", "-f", "kernel.json"], "notebook"),
        (["-c"], "python"),
        ([""], "python"),
        ([], "python"),
    ],
)
def test_a_trainer_without_a_name_has_its_programs(arguments: list[str], name: str) -> None:
    assert find_program_name(arguments) == name


def test_a_programs_name_is_made_fit_for_a_terminal_and_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/home/\x1b[2J\udcff" + "a" * 200])
    name = parse_trainer_name(None)
    assert name.startswith("\\x1b[2J\\udcffaaa")
    assert len(name.encode()) <= MAX_TRAINER_NAME_CHARS + 2, "the mark of the cut is one character"


@pytest.mark.parametrize("name", ["", "  ", "two\nlines", "n" * (MAX_TRAINER_NAME_CHARS + 1), 7])
def test_a_name_that_tables_cannot_show_is_refused_with_what_they_can(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"^name "):
        parse_trainer_name(name)


def test_a_name_is_kept_as_it_is() -> None:
    assert parse_trainer_name("lr-0.01 Zoë") == "lr-0.01 Zoë"
