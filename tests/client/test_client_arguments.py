"""Arguments of the client: which values are accepted, and the errors for all others."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from streamd.client.arguments import (
    MAX_NUMBER,
    convert_whole_number,
    find_program_name,
    format_argument,
    parse_optional_number,
    parse_patience,
    parse_sample_ids,
    parse_stream_name,
    parse_timeout,
    parse_trainer_name,
    parse_whole_number,
    parse_word,
)
from streamd.errors import ConfigError
from streamd.limits import CONNECT_TIMEOUT_S, MAX_TRAINER_NAME_CHARS


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), np.array(3)])
def test_numpy_integers_become_python_integers(value: object) -> None:
    assert type(convert_whole_number(value)) is int
    assert parse_whole_number("epochs", value, 1) == 3


@pytest.mark.parametrize("value", [True, np.True_, 3.0, np.float64(3), "3", b"3", None, [3], np.array([3, 4])])
def test_nothing_else_is_a_whole_number(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^epochs=.*: write a whole number of at least 1$"):
        parse_whole_number("epochs", value, 1)


def test_a_number_out_of_bounds_is_refused_with_the_bounds() -> None:
    with pytest.raises(ConfigError, match=r"^prefetch=1: write a whole number from 2 to 4, or None for 3$"):
        parse_optional_number("prefetch", 1, 2, 4, otherwise="for 3")
    with pytest.raises(ConfigError, match=f"from 1 to {MAX_NUMBER}$"):
        parse_whole_number("epochs", MAX_NUMBER + 1, 1)
    assert parse_optional_number("prefetch", None, 2, 4, otherwise="for 3") is None
    assert parse_whole_number("epochs", MAX_NUMBER, 1) == MAX_NUMBER


def test_a_long_value_is_shortened_and_stays_in_one_line() -> None:
    assert format_argument("start", "x\n" * 1000).count("\n") == 0
    assert len(format_argument("start", "x" * 1000)) < 80


@pytest.mark.parametrize("value", ["inlin", "INLINE"])
def test_a_misspelt_word_is_refused_with_the_nearest_valid_one(value: str) -> None:
    with pytest.raises(ConfigError, match='write "shared" or "inline"; did you mean \'inline\''):
        parse_word("transport", value, ("shared", "inline"))
    assert parse_word("transport", "inline", ("shared", "inline")) == "inline"


@pytest.mark.parametrize("value", [None, 1, ["inline"], {}])
def test_a_value_that_is_not_text_is_refused_without_a_suggestion(value: object) -> None:
    with pytest.raises(ConfigError, match=r'write "shared" or "inline"$'):
        parse_word("transport", value, ("shared", "inline"))


@pytest.mark.parametrize("value", [None, 1, ["train"], b"train"])
def test_the_name_of_a_stream_is_text(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^stream=.*: write the name of one stream as text"):
        parse_stream_name(value)
    assert parse_stream_name(np.str_("train")) == "train"


def test_sample_ids_come_from_any_iterable_of_whole_numbers() -> None:
    assert parse_sample_ids(np.array([3, -1])) == parse_sample_ids(iter([3, -1])) == [3, -1]
    for wrong in ([1.5], ["1"], [True], [1 << 64], [-1 << 64], "12", b"12", 12):
        with pytest.raises(ConfigError, match=r"write whole numbers, such as batch.sample_ids"):
            parse_sample_ids(wrong)  # type: ignore[arg-type]  # what a caller may get wrong


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "5", True, 10**400, [5]])
def test_a_timeout_is_a_finite_number_above_0(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^timeout=.*: write a finite number of seconds above 0"):
        parse_timeout(value)


def test_a_timeout_of_any_length_fits_a_lock() -> None:
    assert parse_timeout(None) == CONNECT_TIMEOUT_S
    assert parse_timeout(np.float32(0.5)) == parse_timeout(Fraction(1, 2)) == 0.5
    assert parse_timeout(1e300) == 1e9


@pytest.mark.parametrize("value", [-1, math.nan, -math.inf, "60", False, [60]])
def test_patience_is_a_number_from_0(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^patience=.*: write a number of seconds, 0 or more"):
        parse_patience(value)


def test_infinite_patience_waits_for_ever_as_none_does() -> None:
    assert parse_patience(None) is parse_patience(math.inf) is None
    assert (parse_patience(0), parse_patience(np.int64(60))) == (0.0, 60.0)


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
def test_a_trainer_without_a_name_gets_the_name_of_its_program(arguments: list[str], name: str) -> None:
    assert find_program_name(arguments) == name


def test_a_program_name_is_escaped_for_a_terminal_and_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/home/\x1b[2J\udcff" + "a" * 200])
    name = parse_trainer_name(None)
    assert name.startswith("\\x1b[2J\\udcffaaa")
    assert len(name.encode()) <= MAX_TRAINER_NAME_CHARS + 2, "the mark of the cut is one character"


@pytest.mark.parametrize("name", ["", "  ", "two\nlines", "n" * (MAX_TRAINER_NAME_CHARS + 1), 7])
def test_a_name_that_tables_cannot_show_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"^name "):
        parse_trainer_name(name)


def test_a_valid_name_is_kept_unchanged() -> None:
    assert parse_trainer_name("lr-0.01 Zoë") == "lr-0.01 Zoë"
