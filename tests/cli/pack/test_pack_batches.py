"""Batches from workers: in order, within the budget, and with their failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.daemon_process import stream_config, write_images
from support.pack_streams import decoded, stream_of, write_table
from support.served_folder import serve, spoil

from streamd.cli.pack.batches import (
    BatchDecoder,
    DecodedBatch,
    build_packing_stream,
    compute_decode_bounds,
    compute_pack_batch_rows,
    list_and_open_stream,
    open_batch_decoder,
)
from streamd.config.load import load_config
from streamd.core.spec import BatchKey, PixelId
from streamd.daemon.engine import engine as local
from streamd.daemon.engine.batch_job import BatchJob
from streamd.daemon.engine.engine import BatchEngine, EngineListener
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import ConfigError, PackError
from streamd.ipc.slots import SlotStore
from streamd.worker.stream_reader import StreamReader


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[ServedStream]:
    served = serve(write_images(tmp_path / "data", {"cat": 12, "dog": 11}), tmp_path / "state")
    yield build_packing_stream(served, shuffled=True, batch_rows=4)
    served.manifest.close()


async def collect_batches(batches: BatchDecoder, first: int) -> list[DecodedBatch]:
    """All batches, their images copied."""
    batches.request_batches_from(first)
    found = []
    while (batch := await batches.wait_for_next_batch()) is not None:
        found.append(replace(batch, rows=batch.rows.select_rows(np.ones(batch.rows.ids.size, np.bool_))))
        batches.release_batch(batch)
    return found


@pytest.mark.long
def test_workers_decode_the_batches_in_order_without_the_bad_rows(stream: ServedStream) -> None:
    bad = int(stream.compute_planned_ids(0, 3)[1])
    spoil(stream, bad)

    async def run() -> list[DecodedBatch]:
        async with open_batch_decoder(stream, 1, 1) as batches:
            assert len(await batches.wait_for_pixel_id()) == 32
            return await collect_batches(batches, 1)

    found = asyncio.run(run())
    source = StreamReader.open(stream.spec, stream.manifest_path)
    wanted = [decoded(stream, source, index) for index in range(1, 6)]
    source.close()
    assert [each.index for each in found] == [1, 2, 3, 4, 5]
    assert [each.rows.ids.tolist() for each in found] == [each.rows.ids.tolist() for each in wanted]
    assert all(
        np.array_equal(mine.rows.images["image"], theirs.rows.images["image"])
        for mine, theirs in zip(found, wanted, strict=True)
    )
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


def with_engine(stream: ServedStream, room: tuple[int, int], test: Callable[[BatchDecoder, Engine], object]) -> None:
    """Runs `test` in an event loop."""

    async def run() -> None:
        engine = Engine()
        batches = BatchDecoder(stream, engine, SlotStore(), *room)  # type: ignore[arg-type]  # as much of one as is asked
        try:
            outcome = test(batches, engine)
            if asyncio.iscoroutine(outcome):
                await outcome
        finally:
            batches.discard_unread_failure()

    asyncio.run(run())


def test_no_more_batches_begin_than_workers_and_slots_allow(stream: ServedStream) -> None:
    def test(batches: BatchDecoder, engine: Engine) -> None:
        batches.request_batches_from(0)
        assert [index for index, _ in engine.begun] == [0, 1]
        assert engine.listener is not None
        for index, slot in ((1, 1), (0, 0), (2, 2)):
            engine.listener.on_batches_filled([BatchJob(BatchKey("train", 0, index), stream, 0, slot, 1)])
        assert [index for index, _ in engine.begun] == [0, 1, 2]
        assert len({slot for _, slot in engine.begun}) == 3

    with_engine(stream, (3, 2), test)


@pytest.mark.parametrize("cause", ["a stream given up", "a callback that raised", "an engine that ended"])
def test_a_failure_ends_the_wait_for_the_next_batch(stream: ServedStream, cause: str) -> None:
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

    with_engine(stream, (2, 2), test)


async def _ended_with(error: Exception) -> asyncio.Task[None]:
    async def fail() -> None:
        raise error

    task = asyncio.ensure_future(fail())
    await asyncio.wait({task})
    return task


def test_workers_that_cannot_start_raise_their_error(stream: ServedStream, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_engine: BatchEngine) -> None:
        raise PackError("no process can be started")

    monkeypatch.setattr(local.BatchEngine, "run", refuse)

    async def run() -> None:
        async with open_batch_decoder(stream, 1, 1) as batches:
            await batches.wait_for_pixel_id()

    with pytest.raises(PackError, match="no process can be started"):
        asyncio.run(run())


@pytest.mark.parametrize(("memory_bytes", "slots"), [(0, 2), (1 << 20, 64)])
def test_the_budget_has_the_slots_that_fit_and_at_least_two(
    stream: ServedStream, memory_bytes: int, slots: int
) -> None:
    assert compute_decode_bounds(stream, 3, memory_bytes) == (slots, 24)


def test_samples_are_packed_once_each_in_stored_or_shuffled_order(tmp_path: Path) -> None:
    config = write_table(tmp_path / "data")
    config["streams"]["train"] |= {"shuffle": {"kind": "full", "seed": 3}, "drop_remainder": True, "batch_size": 4}
    with stream_of(config, tmp_path / "list") as stored, stream_of(config, tmp_path / "more", shuffled=True) as mixed:
        orders = [
            np.concatenate([each.compute_planned_ids(0, index) for index in range(3)]) for each in (stored, mixed)
        ]
    assert orders[0].tolist() == [0, 1, 2, 3, 4]
    assert sorted(orders[1].tolist()) == [0, 1, 2, 3, 4] != orders[1].tolist()


def test_the_pack_keeps_the_classes_shared_with_other_streams(tmp_path: Path) -> None:
    write_images(tmp_path / "a", {"cat": 1, "dog": 1})
    write_images(tmp_path / "b", {"bird": 1, "dog": 1})
    streams = {"train": stream_config(tmp_path / "a"), "validation": stream_config(tmp_path / "b")}
    with list_and_open_stream(load_config({"streams": streams}), "train", tmp_path / "list", lambda *_: None) as stream:
        assert stream.spec.labels["label"].classes == ("bird", "cat", "dog")
        assert stream.spec.samples == 2
    assert not (tmp_path / "list").exists()


def test_streams_without_shared_labels_are_not_listed(tmp_path: Path) -> None:
    config = write_table(tmp_path / "data")
    config["streams"]["other"] = {**stream_config(tmp_path / "missing"), "labels": {}}
    with stream_of(config, tmp_path / "list") as stream:
        assert stream.spec.name == "train"


def test_the_refusal_of_an_unknown_stream_names_a_similar_one(tmp_path: Path) -> None:
    config = load_config(write_table(tmp_path / "data"))
    with (
        pytest.raises(ConfigError, match=r"no stream 'trian'; the configuration has: train; did you mean 'train'\?"),
        list_and_open_stream(config, "trian", tmp_path / "list", lambda *_: None),
    ):
        pass


@pytest.mark.parametrize(("policy", "packed"), [(None, "mask"), ("substitute", "mask"), ("fail", "fail")])
def test_packing_masks_bad_samples_unless_the_policy_is_fail(tmp_path: Path, policy: str, packed: str) -> None:
    config = write_table(tmp_path / "data")
    config["streams"]["train"]["bad_samples"] = {"policy": policy}
    with stream_of(config, tmp_path / "list") as stream:
        assert stream.spec.bad_policy == packed


@pytest.mark.parametrize(
    ("side", "memory_bytes", "rows"),
    [(128, 1 << 30, 64), (16, 1 << 30, 5440), (2000, 1 << 30, 1), (128, 1 << 20, 2), (1, 1 << 40, 65536)],
)
def test_batches_are_whole_tasks_of_some_megabytes(tmp_path: Path, side: int, memory_bytes: int, rows: int) -> None:
    config = write_table(tmp_path / "data")
    config["streams"]["train"]["image"] = {"size": [side, side]}
    with stream_of(config, tmp_path / "list") as stream:
        assert compute_pack_batch_rows(stream, memory_bytes) == rows
        assert build_packing_stream(stream, shuffled=False, batch_rows=rows).spec.batch_size == rows
