"""systemd/streamd.catalog: what `journalctl -x` adds to each event in the journal. `scripts/operations` writes it."""

from __future__ import annotations

import textwrap
from typing import Final

from operations_errors import EVENT_ADVICE
from operations_table import ROOT

from streamd.core.log.events import EVENTS, compute_message_id

CATALOG: Final = ROOT / "systemd" / "streamd.catalog"
_HEAD: Final = """\
# What `journalctl -x` says of each event: `streamd service install` puts it where the journal looks.
# Written by scripts/operations, never by hand.
"""
_MORE: Final = "docs/operations.md has more: the runbook, refusals, sizing, how to upgrade."
_WIDTH_CHARS: Final = 72  # journalctl puts a bar before each line


def catalog() -> str:
    """The whole file, as man:systemd.catalog describes it."""
    return _HEAD + "".join(map(_entry, EVENTS))


def _entry(event: str) -> str:
    meaning, advice = EVENTS[event], EVENT_ADVICE[event]
    said = [f"{meaning[0].upper()}{meaning[1:]}.", *([f"What to do: {advice}", _MORE] if advice else [])]
    body = "\n\n".join(textwrap.fill(each, _WIDTH_CHARS, break_on_hyphens=False) for each in said)
    return f"""
-- {compute_message_id(event)}
Subject: streamd: {event}
Defined-By: streamd
Documentation: man:streamd(1)

{body}
"""


def write_catalog() -> None:
    CATALOG.write_text(catalog(), encoding="utf-8")
