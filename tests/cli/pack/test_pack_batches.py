"""Batches from workers: in order, so many at a time, and a failure is heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.daemon_process import write_images
from support.pack_streams import decoded
from support.served_folder import serve, spoil

from streamd.cli.pack.batches import BatchDecoder, DecodeBudget, DecodedBatch, build_packing_stream, open_batch_decoder
from streamd.core.spec import BatchKey, PixelId
from streamd.daemon.engine import engine as local
from streamd.daemon.engine.batch_job import BatchJob
from streamd.daemon.engine.engine import EngineListener, LocalEngine
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import ConfigError, PackError
from streamd.ipc.slots import SlotStore
from streamd.worker.stream_reader import StreamReader


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[ServedStream]:
    served = serve(write_images(tmp_path / "data", {"cat": 12, "dog": 11}), tmp_path / "state")
    yield build_packing_stream(served, shuffled=True, batch_rows=4)
    served.manifest.close()


async def all_of(batches: BatchDecoder, first: int) -> list[DecodedBatch]:
    """All batches, their images copied."""
    batches.request_batches_from(first)
    found = []
    while (batch := await batches.wait_for_next_batch()) is not None:
        found.append(DecodedBatch(batch.index, batch.ids.copy(), batch.images.copy(), batch.bad_rows, batch.slot))
        batches.release_batch(batch)
    return found


def test_workers_decode_every_batch_in_its_turn_without_the_bad_rows(stream: ServedStream) -> None:
    bad = int(stream.compute_planned_ids(0, 3)[1])
    spoil(stream, bad)

    async def run() -> list[DecodedBatch]:
        async with open_batch_decoder(stream, 1, 1) as batches:
            assert len(await batches.wait_for_pixel_id()) == 32
            return await all_of(batches, 1)

    found = asyncio.run(run())
    source = StreamReader.open(stream.spec, stream.manifest_path)
    wanted = [decoded(stream, source, index) for index in range(1, 6)]
    source.close()
    assert [each.index for each in found] == [1, 2, 3, 4, 5]
    assert [each.ids.tolist() for each in found] == [each.ids.tolist() for each in wanted]
    assert all(np.array_equal(mine.images, theirs.images) for mine, theirs in zip(found, wanted, strict=True))
    assert [(row.sample_id, row.file) for each in found for row in each.bad_rows] == [
        (bad, stream.format_file_name(bad))
    ]
    assert {each.slot for each in found} == {0, 1}


class Engine:
    """Stands for the engine: batches end when the test says so."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.listener: EngineListener | None = None

    def set_listener(self, listener: EngineListener) -> None:
        self.listener = listener

    async def wait_for_pixel_ids(self) -> dict[str, PixelId]:
        return {"train": PixelId("p")}

    def produce_batch(self, key: BatchKey, slot: int, _slot_bytes: int) -> None:
        self.begun.append((key.index, slot))


def with_engine(stream: ServedStream, room: DecodeBudget, test: Callable[[BatchDecoder, Engine], object]) -> None:
    """Runs `test` in an event loop."""

    async def run() -> None:
        engine = Engine()
        batches = BatchDecoder(stream, engine, SlotStore(), room)  # type: ignore[arg-type]  # as much of one as is asked
        try:
            outcome = test(batches, engine)
            if asyncio.iscoroutine(outcome):
                await outcome
        finally:
            batches.discard_unread_failure()

    asyncio.run(run())


def test_no_more_is_begun_than_the_workers_need_and_no_more_than_there_is_room_for(stream: ServedStream) -> None:
    def test(batches: BatchDecoder, engine: Engine) -> None:
        batches.request_batches_from(0)
        assert [index for index, _ in engine.begun] == [0, 1]
        assert engine.listener is not None
        for index, slot in ((1, 1), (0, 0), (2, 2)):
            engine.listener.on_batches_filled([BatchJob(BatchKey("train", 0, index), stream, 0, slot, 1)])
        assert [index for index, _ in engine.begun] == [0, 1, 2]
        assert len({slot for _, slot in engine.begun}) == 3

    with_engine(stream, DecodeBudget(slot_count=3, batches_at_once=2), test)


@pytest.mark.parametrize("cause", ["a stream given up", "a callback that raised", "an engine that ended"])
def test_what_goes_wrong_ends_the_wait_for_the_next_batch(stream: ServedStream, cause: str) -> None:
    async def test(batches: BatchDecoder, engine: Engine) -> None:
        batches.request_batches_from(0)
        assert engine.listener is not None
        loop = asyncio.get_running_loop()
        match cause:
            case "a stream given up":
                engine.listener.on_batch_failed(BatchJob(BatchKey("train", 0, 0), stream, 0, 0, 1), "the disk is gone")
                wanted: type[Exception] = PackError
            case "a callback that raised":
                loop.call_exception_handler({"message": "it", "exception": ConfigError("the disk is gone")})
                wanted = ConfigError
            case _:
                batches.on_engine_ended(await _ended_with(PackError("the disk is gone")))
                wanted = PackError
        with pytest.raises(wanted, match="the disk is gone"):
            await batches.wait_for_next_batch()

    with_engine(stream, DecodeBudget(2, 2), test)


async def _ended_with(error: Exception) -> asyncio.Task[None]:
    async def fail() -> None:
        raise error

    task = asyncio.ensure_future(fail())
    await asyncio.wait({task})
    return task


def test_nothing_is_left_of_workers_that_never_began(stream: ServedStream, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_engine: LocalEngine) -> None:
        raise PackError("no process can be started")

    monkeypatch.setattr(local.LocalEngine, "run", refuse)

    async def run() -> None:
        async with open_batch_decoder(stream, 1, 1) as batches:
            await batches.wait_for_pixel_id()

    with pytest.raises(PackError, match="no process can be started"):
        asyncio.run(run())


@pytest.mark.parametrize(("memory_bytes", "slots"), [(0, 2), (1 << 20, 64)])
def test_room_is_for_what_fits_and_for_two_at_least(stream: ServedStream, memory_bytes: int, slots: int) -> None:
    assert DecodeBudget.from_memory(stream, 3, memory_bytes) == DecodeBudget(slots, 24)
