"""Text of others that reaches a terminal: escaped, counted, shortened."""

from __future__ import annotations

import os

import pytest

from streamd.core.text import (
    escape_unprintable,
    format_count,
    format_list,
    format_number,
    is_encodable,
    shorten_text,
    split_long_list,
)


@pytest.mark.parametrize("text", ["", "cat/0001.jpg", "Zoë", "猫", "<b> [bold] \\n"])
def test_printable_text_is_unchanged(text: str) -> None:
    assert escape_unprintable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\nlines\r", "two\\nlines\\r"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("\x9b31mred", "\\x9b31mred"),  # the escape sequences of eight-bit terminals
        ("\u202egpj.exe", "\\u202egpj.exe"),  # would be shown from right to left
        ("a\udcff", "a\\udcff"),  # a byte of a name that is no UTF-8, as Python has it
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert escape_unprintable(text) == shown
    assert shown.encode()


def test_numbers_are_written_with_their_plural() -> None:
    assert [format_count(number, "file") for number in (0, 1, 1234)] == ["0 files", "1 file", "1,234 files"]
    assert format_count(2, "class", "classes") == "2 classes"


@pytest.mark.parametrize(("name", "text"), [(b"b\xc3\xb6hmen", True), (b"", True), (b"b\xf6hmen", False)])
def test_a_name_that_is_not_utf8_cannot_be_encoded(name: bytes, text: bool) -> None:
    assert is_encodable(os.fsdecode(name)) is text


@pytest.mark.parametrize(
    ("text", "short"), [("cats", "cats"), ("catty", "cat…"), ("\x1b", "\\x1b"), ("c\x1b", "c\\x…")]
)
def test_a_shortened_text_ends_with_an_ellipsis(text: str, short: str) -> None:
    assert shorten_text(text, 4) == short


def test_only_a_list_well_over_its_limit_is_cut() -> None:
    assert split_long_list([1, 2, 3, 4, 5], 3) == ([1, 2, 3, 4, 5], 0)
    assert split_long_list([1, 2, 3, 4, 5, 6], 3) == ([1, 2, 3], 3)
    assert format_list(["a", "b", "c"], 1) == "a, b, c"
    assert format_list(["a", "b", "c", "d"], 1) == "a and 3 more"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0.0, "0"), (1.0, "1"), (99.96, "100"), (-123.4, "-123"), (12345.6, "12,346"), (2.5e9, "2.5e+09"),
        (1e-7, "1e-07"), (float("nan"), "nan"), (float("-inf"), "-inf"), (12345678, "12,345,678"),
    ],
)  # fmt: skip
def test_a_fraction_has_three_digits_and_a_whole_number_all_digits(number: float, words: str) -> None:
    assert format_number(number) == words
