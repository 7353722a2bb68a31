"""Missing data is looked for until it is back, in threads that block nobody beyond a time limit."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from streamd.daemon import data_watch
from streamd.daemon.data_watch import MissingData, build_absence_lookup, check_data_present
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import DataAwayError
from streamd.limits import RETURN_MAX_S

ANSWER_S = 20.0
QUICK_S = 0.001


@pytest.fixture(autouse=True)
def quick_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_watch, "RETURN_MIN_S", QUICK_S)


class MissingDataRig:
    """Missing data, and the calls that an engine would get."""

    def __init__(self) -> None:
        self.lost: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        self.returned: asyncio.Queue[str] = asyncio.Queue()
        self.missing_data = MissingData(lambda *lost: self.lost.put_nowait(lost), self.returned.put_nowait)


@asynccontextmanager
async def running_rig() -> AsyncIterator[MissingDataRig]:
    """Runs the search for missing data."""
    rig = MissingDataRig()
    running = asyncio.ensure_future(rig.missing_data.watch_for_returned_data())
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(ANSWER_S):
            yield rig
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
    async with running_rig() as rig:
        said = rig.missing_data.add_stream(7, stream, "it is gone")
        assert said.startswith(
            "it waits for its data: it is gone; mount the data or bring them back, and the stream continues"
        )
        assert 7 in rig.missing_data
        assert rig.missing_data.messages_by_stream == {"train": said}
        aside.rename(tmp_path / "data")
        assert await rig.returned.get() == "train"
        assert 7 not in rig.missing_data
    assert [record.__dict__["event"] for record in caplog.records] == ["data.away", "data.back"]


async def test_streams_without_data_are_found_before_the_start(stream: ServedStream, tmp_path: Path) -> None:
    rig = MissingDataRig()
    await rig.missing_data.add_streams_without_data({3: stream})
    assert rig.missing_data.messages_by_stream == {}
    (tmp_path / "data").rename(tmp_path / "aside")
    await rig.missing_data.add_streams_without_data({3: stream})
    assert 3 in rig.missing_data
    with pytest.raises(DataAwayError, match=r"^streams\.train\.source: '.*data' cannot be opened"):
        await check_data_present(stream)


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Lookups that end with the event, and are given up at once."""
    answers = threading.Event()
    monkeypatch.setattr(data_watch, "find_absence_reason", lambda _: "" if answers.wait(ANSWER_S) else "hung")
    monkeypatch.setattr(data_watch, "PROOF_S", QUICK_S)
    yield answers
    answers.set()


async def test_a_file_system_that_does_not_answer_is_missing_and_checked_by_one_thread(
    stream: ServedStream, hung: threading.Event
) -> None:
    async with running_rig() as rig:
        lookup, before = build_absence_lookup(stream), threading.active_count()
        for _ in range(3):
            assert await lookup.wait_for_answer() == f"'{stream.manifest.root}' does not answer within 10 s"
        assert threading.active_count() == before + 1
        rig.missing_data.add_stream(7, stream, await lookup.wait_for_answer())
        hung.set()
        assert await rig.returned.get() == "train"


def test_a_process_with_a_hanging_lookup_can_end(stream: ServedStream, hung: threading.Event) -> None:
    asyncio.run(build_absence_lookup(stream).wait_for_answer())
    hung.set()  # its answer finds no loop any more


async def test_the_data_of_a_waiting_worker_is_checked_once(stream: ServedStream, tmp_path: Path) -> None:
    async with running_rig() as rig:
        (tmp_path / "data").rename(tmp_path / "aside")
        rig.missing_data.start_data_check(8, stream)
        rig.missing_data.start_data_check(8, stream)
        number, why = await rig.lost.get()
        assert (number, "cannot be opened" in why) == (8, True)
        rig.missing_data.add_stream(8, stream, why)
        rig.missing_data.start_data_check(8, stream)
        assert rig.lost.empty()


async def test_a_removed_stream_is_no_longer_looked_for(stream: ServedStream, tmp_path: Path) -> None:
    aside = (tmp_path / "data").rename(tmp_path / "aside")
    async with running_rig() as rig:
        rig.missing_data.add_stream(7, stream, "gone")
        rig.missing_data.add_stream(8, stream, "gone")
        rig.missing_data.remove_stream(7)
        rig.missing_data.remove_stream(99)
        aside.rename(tmp_path / "data")
        await rig.returned.get()
        assert rig.returned.empty()
        assert 7 not in rig.missing_data


async def test_pauses_grow_when_returned_data_is_reported_missing_again(stream: ServedStream) -> None:
    async with running_rig() as rig:
        pauses_s = []
        for _ in range(4):
            rig.missing_data.add_stream(7, stream, "says a worker")
            pauses_s.append(rig.missing_data._missing[7].pause_s)
            await rig.returned.get()
        assert pauses_s == [QUICK_S, 2 * QUICK_S, 4 * QUICK_S, 8 * QUICK_S]
        rig.missing_data._last_returns[7] = rig.missing_data._last_returns[7][0] - 2 * RETURN_MAX_S, 1.0
        rig.missing_data.add_stream(7, stream, "much later")
        assert rig.missing_data._missing[7].pause_s == QUICK_S
        await rig.returned.get()
