"""docs/operations.md is what the code does: every setting, metric, error and command is there, and nothing else."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, get_args

import pytest
from operations_bounds import BOUNDS
from operations_commands import STATUSES, commands
from operations_errors import (
    DOING,
    ERRORS,
    EVENT_ADVICE,
    FAULT_ADVICE,
    REFUSALS,
    STAGE_ADVICE,
    STOPS,
    classes,
    troubles,
)
from operations_metrics import ADVICE as OF_METRICS
from operations_metrics import NOBODY, told
from operations_page import PARTS
from operations_settings import (
    ADVICE,
    OF_SOURCES,
    of_daemon,
    of_sources,
    of_streams,
)
from operations_table import PAGE, ROOT, places, prose, with_parts

from streamd import limits
from streamd.cli import main as streamd
from streamd.core import status
from streamd.core.epoch_timing import EpochBottleneck
from streamd.core.log.events import EVENTS
from streamd.core.status import SessionState
from streamd.daemon.monitor.metrics import MetricsExposition
from streamd.daemon.streams.quarantine import FAULT_KINDS
from streamd.ipc.messages import Refusal

TEXT: Final = PAGE.read_text(encoding="utf-8")
PROSE: Final = prose(TEXT)


@pytest.mark.long
def test_the_page_is_what_scripts_operations_would_write() -> None:
    assert sorted(places(TEXT)) == sorted(PARTS)
    assert with_parts(TEXT, PARTS) == TEXT


# What is missing in tools/docs/operations_*.py belongs there; then run scripts/docs operations.
@pytest.mark.parametrize(
    ("said", "there"),
    [
        (ADVICE, {each.key for each in (*of_daemon(), *of_streams())}),
        (OF_SOURCES, {key for key, _ in of_sources()}),
        (OF_METRICS, {each.name for each in told()}),
        (ERRORS, set(classes())),
        (REFUSALS, set(get_args(Refusal))),
        (EVENT_ADVICE, set(EVENTS)),
        (FAULT_ADVICE, set(FAULT_KINDS)),
        (STAGE_ADVICE, set(get_args(EpochBottleneck))),
        (DOING, set(get_args(SessionState))),
        (STATUSES, set(commands())),
    ],
    ids=["settings", "sources", "metrics", "errors", "refusals", "events", "faults", "verdicts", "doing", "commands"],
)
def test_what_to_do_is_said_of_everything_that_there_is_and_of_nothing_else(
    said: Mapping[str, object], there: set[str]
) -> None:
    assert set(said) == there


def test_the_metrics_are_those_of_a_scrape() -> None:
    text = asyncio.run(MetricsExposition(lambda: NOBODY).encode_metrics()).decode()
    assert re.findall(r"^# HELP (\S+)", text, re.MULTILINE) == [each.name for each in told()]


def test_every_trouble_is_there() -> None:
    found = [
        node
        for function in ast.walk(ast.parse(inspect.getsource(status)))
        if isinstance(function, ast.FunctionDef) and function.name == "all_troubles"
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "troubles.append"
    ]
    assert len(list(troubles())) == len(found)


@pytest.mark.parametrize("piece", STOPS)
def test_a_stream_is_stopped_in_words_like_these(piece: str) -> None:
    sources = (path.read_text() for path in (ROOT / "streamd").rglob("*.py"))
    words = " ".join(re.sub(r'"\s*f?"', "", source) for source in sources if piece.split(maxsplit=1)[0] in source)
    assert piece in words


def test_the_statuses_of_http_are_those_that_are_answered() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "streamd/daemon/monitor").glob("*.py"))
    answered = set(re.findall(r"(?:build_text_response|build_response|RequestDeclined)\(\s*(\d{3})", sources)) - {
        "200",
        "204",
    }
    (paragraph,) = re.findall(r"^Status codes over HTTP: .*?\n\n", TEXT, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"\b[45]\d\d\b", paragraph)) == answered


def test_links_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^a-z -]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    }
    for link in re.findall(r"\]\(([^)]+)\)", TEXT):
        path, _, anchor = link.partition("#")
        assert (PAGE.parent / path).exists()
        assert path or anchor in headings


@pytest.mark.parametrize(
    ("said", "bound", "value"),
    [
        ("ends within 5 s", "DRAIN_S", 5),
        ("within 0.2 to 5 s", "WORKER_RESPAWN_MAX_S", 5),
        ("a worker may take 3 gib", "WORKER_DATA_BYTES", 3 << 30),
        ("compressed hdf5 takes another 128 mib", "CHUNKS_KEPT_BYTES", 128 << 20),
        ("on stderr after 2 s", "AWAY_FIRST_LINE_S", 2),
        ("then every 30 s", "AWAY_LINE_S", 30),
        ("none makes progress for three minutes", "STALLED_S", 180),
        ("if at least ten workers died at one task", "TASK_ATTEMPTS", 10),
        ("workers are killed for more than a minute", "TASK_GIVE_UP_S", 60),
        ("up to 8 tasks a worker where that is an eighth", "MAX_TASKS_AHEAD", 8),
        ("2 tasks of 32 rows for each worker", "TASK_ROWS", 32),
    ],
)
def test_a_bound_that_the_text_names_is_that_of_the_code(said: str, bound: str, value: float) -> None:
    assert said in PROSE.lower()
    assert getattr(limits, bound) == value
    assert set(vars(limits)) >= set(BOUNDS)


@pytest.mark.parametrize(
    ("arguments", "ends_with"),
    [
        (["schema"], 0),
        (["check", "--config", "none.yaml"], 1),
        (["serve", "--config", "none.yaml"], 2),
        (["show", "train", "first"], 2),
        (["status", "--endpoint", "none"], 2),
        (["status", "--endpoint", "ipc:///none/s"], 1),
        (["top", "--every", "0s"], 2),
        (["pack", "train", "there", "--config", "none.yaml", "--format", "zip"], 2),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_a_command_ends_with_what_the_page_says(
    arguments: list[str], ends_with: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["streamd", *arguments])
    monkeypatch.setattr("streamd.cli.status.command.LOOK_TIMEOUT_S", 0.05)
    assert status_of(streamd.main) == ends_with


def status_of(command: Callable[[], None]) -> object:
    with pytest.raises(SystemExit) as ended:
        command()
    return ended.value.code or 0
