"""Data that are away are looked for until they are there, in threads that nobody waits for beyond a bound."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from streamd.daemon import slow_lookup
from streamd.daemon.engine import absences
from streamd.daemon.engine.absences import MissingData, build_absence_lookup, check_data_present
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import DataAwayError
from streamd.limits import RETURN_MAX_S

ANSWER_S = 20.0
QUICK_S = 0.001


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absences, "RETURN_MIN_S", QUICK_S)


class Heard:
    """What an engine would hear."""

    def __init__(self) -> None:
        self.left: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        self.came: asyncio.Queue[str] = asyncio.Queue()
        self.absences = MissingData(lambda *left: self.left.put_nowait(left), self.came.put_nowait)


@asynccontextmanager
async def hearing() -> AsyncIterator[Heard]:
    """While data are looked for."""
    heard = Heard()
    running = asyncio.ensure_future(heard.absences.watch_for_returned_data())
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(ANSWER_S):
            yield heard
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_a_missing_folder_and_its_return_are_logged_once(
    stream: ServedStream, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("streamd"), "propagate", True)
    caplog.set_level(logging.INFO, "streamd")
    aside = (tmp_path / "data").rename(tmp_path / "aside")
    async with hearing() as heard:
        said = heard.absences.add_stream(7, stream, "it is gone")
        assert said.startswith("it waits for its data: it is gone; mount or bring them back, and the stream goes on")
        assert 7 in heard.absences
        assert heard.absences.messages_by_stream == {"train": said}
        aside.rename(tmp_path / "data")
        assert await heard.came.get() == "train"
        assert 7 not in heard.absences
    assert [record.__dict__["event"] for record in caplog.records] == ["data.away", "data.back"]


async def test_streams_without_data_are_found_before_the_start(stream: ServedStream, tmp_path: Path) -> None:
    heard = Heard()
    await heard.absences.add_streams_without_data({3: stream})
    assert heard.absences.messages_by_stream == {}
    (tmp_path / "data").rename(tmp_path / "aside")
    await heard.absences.add_streams_without_data({3: stream})
    assert 3 in heard.absences
    with pytest.raises(DataAwayError, match=r"^streams\.train\.source: '.*data' cannot be opened"):
        await check_data_present(stream)


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Looks that do not return before the event, and are given up at once."""
    answers = threading.Event()
    monkeypatch.setattr(absences, "find_absence_reason", lambda _: "" if answers.wait(ANSWER_S) else "hung")
    monkeypatch.setattr(slow_lookup, "PROOF_S", QUICK_S)
    yield answers
    answers.set()


async def test_a_file_system_that_does_not_answer_is_missing_and_checked_by_one_thread(
    stream: ServedStream, hung: threading.Event
) -> None:
    async with hearing() as heard:
        lookup, before = build_absence_lookup(stream), threading.active_count()
        for _ in range(3):
            assert await lookup.wait_for_answer() == f"'{stream.manifest.root}' does not answer within 10 s"
        assert threading.active_count() == before + 1
        heard.absences.add_stream(7, stream, await lookup.wait_for_answer())
        hung.set()
        assert await heard.came.get() == "train"


def test_a_process_with_a_hanging_lookup_can_end(stream: ServedStream, hung: threading.Event) -> None:
    asyncio.run(build_absence_lookup(stream).wait_for_answer())
    hung.set()  # its answer finds no loop any more


async def test_the_data_of_a_waiting_worker_is_checked_once(stream: ServedStream, tmp_path: Path) -> None:
    async with hearing() as heard:
        (tmp_path / "data").rename(tmp_path / "aside")
        heard.absences.start_data_check(8, stream)
        heard.absences.start_data_check(8, stream)
        number, why = await heard.left.get()
        assert (number, "cannot be opened" in why) == (8, True)
        heard.absences.add_stream(8, stream, why)
        heard.absences.start_data_check(8, stream)
        assert heard.left.empty()


async def test_a_removed_stream_is_no_longer_looked_for(stream: ServedStream, tmp_path: Path) -> None:
    aside = (tmp_path / "data").rename(tmp_path / "aside")
    async with hearing() as heard:
        heard.absences.add_stream(7, stream, "gone")
        heard.absences.add_stream(8, stream, "gone")
        heard.absences.remove_stream(7)
        heard.absences.remove_stream(99)
        aside.rename(tmp_path / "data")
        await heard.came.get()
        assert heard.came.empty()
        assert 7 not in heard.absences


async def test_pauses_grow_when_returned_data_is_reported_missing_again(stream: ServedStream) -> None:
    async with hearing() as heard:
        pauses_s = []
        for _ in range(4):
            heard.absences.add_stream(7, stream, "says a worker")
            pauses_s.append(heard.absences._missing[7].pause_s)
            await heard.came.get()
        assert pauses_s == [QUICK_S, 2 * QUICK_S, 4 * QUICK_S, 8 * QUICK_S]
        heard.absences._last_returns[7] = heard.absences._last_returns[7][0] - 2 * RETURN_MAX_S, 1.0
        heard.absences.add_stream(7, stream, "much later")
        assert heard.absences._missing[7].pause_s == QUICK_S
        await heard.came.get()
