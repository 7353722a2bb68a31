"""The journal's catalog is what scripts/operations would write, and has every event once."""

from __future__ import annotations

import re

from operations_catalog import CATALOG, catalog
from operations_errors import EVENT_ADVICE

from streamd.core.log.events import EVENTS, compute_message_id


def test_the_catalog_is_what_scripts_operations_would_write() -> None:
    assert CATALOG.read_text(encoding="utf-8") == catalog()


def test_every_event_has_one_entry_under_its_id_and_says_what_to_do_where_anything_is() -> None:
    entries = dict(re.findall(r"^-- ([0-9a-f]{32})$(.*?)(?=^-- |\Z)", catalog(), re.DOTALL | re.MULTILINE))
    assert set(entries) == {compute_message_id(event) for event in EVENTS}
    for event, advice in EVENT_ADVICE.items():
        assert f"Subject: streamd: {event}\n" in entries[compute_message_id(event)]
        assert ("What to do: " in entries[compute_message_id(event)]) is bool(advice)


def test_no_line_is_taken_for_another_entry_or_a_field() -> None:
    bodies = re.findall(r"^Documentation: .*?\n\n(.*?)(?=^-- |\Z)", catalog(), re.DOTALL | re.MULTILINE)
    assert len(bodies) == len(EVENTS)
    assert [body for body in bodies if "@" in body or re.search(r"^(-- |#)", body, re.MULTILINE)] == []
