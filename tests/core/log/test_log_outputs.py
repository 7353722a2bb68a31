"""What a client or a file name brings along is told in every form, and does nothing there."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from streamd.core.log.outputs import JsonFormatter, LineFormatter, format_sentence, to_json_scalar

# A terminal's escape sequence, lines and fields of their own, a bell, C1, bidi, half a character, what erases.
HOSTILE = [
    "\x1b[31mred",
    "a\nMESSAGE=no\nPRIORITY=0",
    "\a\b\r",
    "\x9b2J",
    "\u202egnp",
    "\udcff.jpg",
    "\x7f",
    "\0",
    "\x85",
]


def record(text: str, *arguments: object, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("streamd", logging.WARNING, __file__, 1, text, arguments, None)
    made.event, made.fields = "wire.malformed", fields
    return made


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_line_is_one_and_printable_whatever_is_in_it(hostile: str) -> None:
    line = LineFormatter().format(record(f"no: {hostile}", file=hostile))
    assert line.isprintable()
    assert "\x1b" not in line


@pytest.mark.parametrize("hostile", HOSTILE)
def test_json_is_one_line_whose_values_are_printable_too(hostile: str) -> None:
    line = JsonFormatter().format(record(f"no: {hostile}", file=hostile, others=[hostile]))
    assert line.isascii()
    assert line.isprintable()
    said = json.loads(line)
    assert [text.isprintable() for text in (said["message"], *said["fields"].values())] == [True, True, True]


def test_an_object_has_time_level_event_message_and_fields() -> None:
    made = record("no: %s", "so", stream="train", epoch=3, rate=0.5, ok=True, verdict=None)
    made.created = 1700000000.25
    said = json.loads(JsonFormatter().format(made))
    assert said == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "warning",
        "event": "wire.malformed",
        "message": "no: so",
        "fields": {"stream": "train", "epoch": 3, "rate": 0.5, "ok": True, "verdict": None},
    }
    assert datetime.fromisoformat(said["time"]) == datetime.fromtimestamp(made.created, UTC)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_has_not_is_told_in_words(value: float) -> None:
    assert to_json_scalar(value) == str(value)
    assert json.loads(JsonFormatter().format(record("no", seconds=value)))["fields"] == {"seconds": str(value)}


def test_what_has_no_end_is_cut_in_every_form() -> None:
    endless = record("t" * 100_000, file="\0" * 100_000)
    assert len(format_sentence(endless)) < 70_000
    assert len(LineFormatter().format(endless)) < 70_000
    assert len(JsonFormatter().format(endless)) < 300_000


@pytest.mark.parametrize("formatter", [LineFormatter(), JsonFormatter()])
def test_a_traceback_is_told_without_what_an_error_brings_along(formatter: logging.Formatter) -> None:
    made = record("a request failed")
    try:
        int("\x1b[31mred\x9b")
    except ValueError as error:
        made.exc_info = (OSError, OSError(f"\x1b[31m{error}"), error.__traceback__)
    said = formatter.format(made)
    assert "Traceback (most recent call last):" in said
    assert "OSError: \\" in said
    assert "\x1b" not in said
