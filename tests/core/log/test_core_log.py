"""One event is one line, whatever its fields contain."""

from __future__ import annotations

import json
import logging
import os
import socket
from pathlib import Path

import pytest

from streamd.core import log


def said(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_a_line_has_time_level_event_text_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure_logging()
    log.info("stream.served", "ready", stream="train", samples=63, seconds=0.123456)
    time, rest = said(capsys).split(" ", 1)
    assert len(time) == len("12:34:56")
    assert rest == "I stream.served: ready stream=train samples=63 seconds=0.1235\n"


def test_each_level_has_its_letter(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure_logging()
    log.warning("a.b", "hm")
    log.error("a.c", "no")
    assert [line.split(" ")[1] for line in said(capsys).splitlines()] == ["W", "E"]


@pytest.mark.parametrize("value", ["two words", "a=b", 'say "x"', "it's", "line\nbreak", "\x1b[31mred", "\u202e", ""])
def test_an_ambiguous_value_is_quoted_and_escaped(capsys: pytest.CaptureFixture[str], value: str) -> None:
    log.configure_logging()
    log.info("a.b", "text", file=value, next="x")
    line = said(capsys)
    assert f" file={value!r} next=x\n" in line
    assert line.count("\n") == 1
    assert line.rstrip("\n").isprintable()


def test_an_endless_value_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure_logging()
    log.info("a.b", "text", reason="x" * 5000)
    assert said(capsys).endswith(" reason=" + 197 * "x" + "...\n")


@pytest.mark.parametrize("verbose", [False, True])
def test_debug_lines_appear_only_with_verbose(capsys: pytest.CaptureFixture[str], *, verbose: bool) -> None:
    log.configure_logging(level=logging.DEBUG if verbose else logging.INFO)
    log.log_event(logging.DEBUG, "a.b", "detail")
    assert bool(said(capsys)) is verbose


def test_a_notice_is_logged_at_the_quiet_level(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure_logging(level=log.NOTICE)
    log.info("a.b", "detail")
    log.notice("c.d", "patience")
    assert said(capsys).endswith("N c.d: patience\n")
    assert log.current_level() == log.NOTICE


def test_a_plain_record_of_the_logger_is_formatted_as_a_line(
    capsys: pytest.CaptureFixture[str], logger: logging.Logger
) -> None:
    log.configure_logging()
    logger.warning("plain")
    assert said(capsys).endswith(" W streamd: plain\n")


def test_configuring_twice_logs_each_event_once(capsys: pytest.CaptureFixture[str], logger: logging.Logger) -> None:
    log.configure_logging()
    log.configure_logging()
    log.info("a.b", "once")
    assert said(capsys).count("once") == 1
    assert logger.propagate is False


def test_json_output_is_one_object_a_line_and_is_reported_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure_logging()
    assert log.output_arguments() == []
    log.configure_logging(as_json=True)
    assert log.output_arguments() == ["json"]
    log.notice("a.b", "text", stream="train")
    event = json.loads(said(capsys))
    assert (event["level"], event["event"], event["fields"]) == ("notice", "a.b", {"stream": "train"})


@pytest.mark.parametrize("as_json", [False, True])
def test_a_journal_on_stderr_receives_fields_unless_json_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    stderr, address = os.fstat(2), str(tmp_path / "journal")
    monkeypatch.setenv("JOURNAL_STREAM", f"{stderr.st_dev}:{stderr.st_ino}")
    monkeypatch.setattr(log, "JOURNAL_SOCKET", address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(address)
        journal.setblocking(False)
        log.configure_logging(as_json=as_json)
        assert log.output_arguments() == ["json" if as_json else "journal"]
        log.info("a.b", "text", stream="train")
        assert bool(said(capsys)) is as_json
        if not as_json:
            assert b"STREAMD_STREAM=train" in journal.recv(4096).splitlines()
