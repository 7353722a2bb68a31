"""The event list matches the code, and ids never change: operators filter by them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from events_page import PAGE, with_table

from streamd.core.log.events import EVENTS, NEVER_SUPPRESSED, compute_message_id
from streamd.limits import LOG_SPAN_EVENTS, LOG_SPAN_S

STREAMD = Path(__file__).resolve().parents[3] / "streamd"
SAYS = {"log.log", "log.info", "log.notice", "log.warning", "log.error", "note"}


def events_in(source: str) -> Iterator[str]:
    """What is the first argument of a call that says something, also by a condition."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in SAYS:
            words = [each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant)]
            yield from [word for word in words if isinstance(word, str) and re.fullmatch(r"[a-z]+\.[a-z_]+", word)]


def test_the_event_list_matches_the_events_in_the_code() -> None:
    sources = [path.read_text(encoding="utf-8") for path in STREAMD.rglob("*.py")]
    said = {
        event
        for source in sources
        if "import log\n" in source or "import log," in source
        for event in events_in(source)
    }
    assert set(EVENTS) == said | {"log.held", "log.unwritten"}


def test_events_that_are_never_suppressed_are_listed() -> None:
    assert set(EVENTS) >= NEVER_SUPPRESSED


def test_message_ids_are_unique_and_unchanged() -> None:
    assert compute_message_id("daemon.ready") == "e7ee4a0f8f6c57408c428d80fd6b8a52"
    assert len({compute_message_id(event) for event in EVENTS}) == len(EVENTS)


def test_the_page_is_what_scripts_events_would_write() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page
    assert LOG_SPAN_S == 30
    assert f"more than {LOG_SPAN_EVENTS} times in half a minute" in page
