"""Dashboards for tests: a daemon with one, its pictures, and the cells of its tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import streamd
from streamd.client import Client, Stream
from support.daemon_process import DaemonProcess, stream_config, wait_until, write_images

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from support.chromium import Visit

MONITOR: Final = "127.0.0.1:0"
BROKEN: Final = "cat/page.jpg"  # no picture at all
CUT: Final = "dog/cut.jpg"  # the upper half of one
SIDE: Final = 96  # pictures of more than 64 pixels travel as JPEG


@dataclass(frozen=True, slots=True)
class Board:
    """A daemon with a dashboard; `url` has the token, `address` does not."""

    daemon: DaemonProcess
    client: Client

    @property
    def url(self) -> str:
        return self.client.dashboard()

    @property
    def address(self) -> str:
        return self.url.split("#")[0]


def draw(folder: Path) -> Path:
    """A few pictures of cats and dogs, one file that is none and one that is truncated."""
    write_images(folder, {"cat": 21, "dog": 12}, size=(SIDE, SIDE))
    (folder / BROKEN).write_text("<!DOCTYPE html><title>404</title>")
    whole = (folder / "dog" / "0000.jpg").read_bytes()
    (folder / CUT).write_bytes(whole[: len(whole) // 2])
    return folder


def config(folder: Path, **changes: Any) -> dict[str, Any]:
    """One stream `train` over a folder of classes, and a dashboard."""
    return {"monitor": MONITOR, "streams": {"train": stream_config(folder, image={"size": [SIDE, SIDE]}, **changes)}}


class Trainer:
    """Takes a batch of `train` when the test does, and keeps none; nor does pytest, which keeps what fixtures give."""

    def __init__(self, client: Client) -> None:
        self._batches: Stream | None = client.subscribe("train", epochs=None, prefetch=2)

    def take(self) -> bool:
        assert self._batches is not None
        return bool(next(iter(self._batches)))

    def leave(self) -> None:
        if self._batches is not None:
            self._batches.close()
        self._batches = None


StartBoard = Callable[..., Board]


@pytest.fixture(scope="module")
def exhibit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """The daemon of a module's tests, over `draw`'s pictures."""
    place = tmp_path_factory.mktemp("board")
    with DaemonProcess(place, config(draw(place / "data"))) as daemon:
        yield daemon


@pytest.fixture
def board(exhibit: DaemonProcess) -> Iterator[Board]:
    """Its dashboard, and a client of this test's own."""
    with streamd.connect(exhibit.endpoint) as client:
        yield Board(exhibit, client)


@pytest.fixture
def trainer(board: Board) -> Iterator[Trainer]:
    """A trainer of its daemon."""
    trainer = Trainer(board.client)
    yield trainer
    trainer.leave()


@pytest.fixture
def start_board(start_daemon: Callable[..., DaemonProcess]) -> Iterator[StartBoard]:
    """Starts a daemon with a dashboard on a configuration. Ask for it before `go`: pages are left before it ends."""
    with ExitStack() as clients:

        def start(wish: dict[str, Any]) -> Board:
            daemon = start_daemon(wish)
            return Board(daemon, clients.enter_context(streamd.connect(daemon.endpoint)))

        yield start


def all_leave(board: Board) -> None:
    """Until no trainer of an earlier test is on record."""
    wait_until(lambda: not board.client.status().sessions, "the trainers have left")


def cell(page: Page, table: str, row: str | re.Pattern[str], column: str) -> Locator:
    """A cell of a table, by the table's caption and the heads of row and column."""
    found = page.get_by_role("table", name=re.compile(rf"^{table}\b"))
    found.wait_for()
    heads = found.get_by_role("columnheader").all_text_contents()
    line = found.get_by_role("row").filter(has=page.get_by_role("rowheader", name=row))
    return line.get_by_role("cell").nth(heads.index(column) - 1)


def region(visit: Visit, heading: str) -> Locator:
    """A part of the page, by its heading."""
    return visit.page.get_by_role("region", name=re.compile(rf"^\W*{heading}$"))
