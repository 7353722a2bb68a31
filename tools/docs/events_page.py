"""The table in docs/events.md: every event, its MESSAGE_ID, what it means. `scripts/docs events` writes it anew."""

from __future__ import annotations

from pathlib import Path

from streamd.core.log.events import EVENTS, compute_message_id

PAGE = Path(__file__).resolve().parents[2] / "docs" / "events.md"
BEGIN, END = "<!-- scripts/docs events writes from here -->", "<!-- to here -->"


def table() -> str:
    """The whole of it, in Markdown."""
    lines = [f"| `{event}` | `{compute_message_id(event)}` | {meaning} |" for event, meaning in EVENTS.items()]
    return "\n".join(["| event | MESSAGE_ID | what it means |", "|---|---|---|", *lines])


def with_table(page: str) -> str:
    """The page with the table as it is now."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
