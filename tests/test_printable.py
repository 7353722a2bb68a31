"""What reaches a terminal of text that others have written."""

from __future__ import annotations

import pytest

from streamd.printable import printable


@pytest.mark.parametrize("text", ["", "cat/0001.jpg", "Zoë", "猫", "<b> [bold] \\n"])
def test_what_can_be_printed_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


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
def test_what_would_move_or_colour_the_rest_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert shown.encode()
