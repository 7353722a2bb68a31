"""No text is cut on the pages of `--help`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from streamd.cli.main import app
from streamd.cli.train.command import app as train_app


def list_pages(command: Any, *names: str) -> Iterator[tuple[str, str]]:
    """The name and the page of a command and of all below it, as on a terminal of 80 columns."""
    context = command.make_context(" ".join(names), [], resilient_parsing=True, terminal_width=80)
    yield " ".join(names), command.get_help(context)
    for name, below in getattr(command, "commands", {}).items():
        yield from list_pages(below, *names, name)


PAGES = dict([*list_pages(get_command(app), "streamd"), *list_pages(get_command(train_app), "streamd-train")])


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_cut_on_a_page_of_80_columns(name: str) -> None:
    assert "…" not in PAGES[name]
    assert re.search(r"^ .*[a-z]\.\.\.$", PAGES[name], re.MULTILINE) is None


def test_the_list_of_commands_has_the_whole_sentence_of_each() -> None:
    listed = " ".join(PAGES["streamd"].split())
    whole = "Draws the batch that trainers get from a running daemon at the given epoch and index, as one picture."
    assert whole in listed
