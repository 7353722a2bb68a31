"""The values of options, shell completion of stream names, and help pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import DaemonProcess, stream_config, write_images
from typer.main import get_command
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.cli.options import parse_size_option
from streamd.cli.train.command import app as train_app
from streamd.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"), [(None, None), ("128", (128, 128)), ("66x200", (66, 200)), (" 66X200", (66, 200))]
)
def test_a_size_is_a_number_or_height_and_width(text: str | None, size: tuple[int, int] | None) -> None:
    assert parse_size_option(text) == size


@pytest.mark.parametrize("text", ["", "0", "12x", "12x0", "-3", "12,13", "1.5", "٣"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 128 or 66x200"):
        parse_size_option(text)


def complete(*words: str) -> list[str]:
    """What bash is offered for the last of `words`."""
    asked = {"_STREAMD_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    return CliRunner().invoke(app, env=asked, prog_name="streamd").stdout.split()


def test_completion_offers_the_streams_of_the_chosen_daemon(
    start_daemon: Callable[..., DaemonProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = stream_config(write_images(tmp_path, {"cat": 1}))
    daemon = start_daemon({"streams": {"one": stream, "two": stream}})
    assert complete("streamd", "show", "--endpoint", daemon.endpoint, "") == ["one", "two"]
    monkeypatch.setenv("STREAMD_ENDPOINT", daemon.endpoint)
    assert complete("streamd", "probe", "t") == ["two"]


def test_without_a_daemon_completion_offers_nothing(tmp_path: Path) -> None:
    assert complete("streamd", "show", "--endpoint", f"ipc://{tmp_path}/none", "") == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("streams: {one: {}, 2: {source: {kind: folder}}, 'not; a name': {}}", ["one", "2"]),
        ("streams: [one]\n", ["one"]),
        ("[1, 2]", []),
        ("streams: {", []),
    ],
)
def test_completion_offers_the_streams_of_an_invalid_file(text: str, names: list[str], tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    assert complete("streamd", "pack", "--config", str(tmp_path / "c.yaml"), "") == names


def test_the_removed_completion_command_names_its_replacement() -> None:
    done = CliRunner().invoke(app, ["completion", "bash"])
    assert "run  streamd --install-completion" in str(done.exception)
    assert "completion " not in CliRunner().invoke(app, ["--help"]).stdout.split("Commands:")[1]


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
