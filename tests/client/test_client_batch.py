"""Batches: their arrays, who owns the memory, and what a copy holds."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import pytest
from support.daemon_process import DaemonProcess, stream_config, wait_until, write_images
from support.sample_specs import some_spec

from streamd.client import Batch, Client
from streamd.client.batch import build_leased_batch, restore_planned_ids
from streamd.core.sampler import MASKED, SUBSTITUTED, BadRow
from streamd.core.slot_layout import compute_layout
from streamd.core.spec import BadPolicy, LabelSpec
from streamd.errors import ProtocolError
from streamd.ipc.messages import BatchReady


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    place = tmp_path_factory.mktemp("d")
    folder = write_images(place / "data", {"cat": 20, "dog": 20})
    with DaemonProcess(place, {"streams": {"train": stream_config(folder)}}) as daemon:
        yield daemon


@pytest.fixture(params=["shared", "inline"])
def first(client: Client, request: pytest.FixtureRequest) -> Callable[[], Batch]:
    """Takes a first batch; a fixture that held it would outlive the test."""

    def take() -> Batch:
        with client.subscribe("train", transport=request.param) as stream:
            return next(iter(stream))

    return take


def test_a_batch_has_the_shapes_and_types_it_promises(first: Callable[[], Batch]) -> None:
    batch = first()
    assert (batch.images.shape, batch.images.dtype) == ((8, 32, 32, 3), np.dtype(np.uint8))
    assert batch.images.flags.c_contiguous
    assert (batch.labels["label"].shape, batch.labels["label"].dtype) == ((8,), np.dtype(np.int64))
    assert (batch.weights.tolist(), batch.weights.dtype) == ([1.0] * 8, np.dtype(np.float32))
    assert (batch.sample_ids.shape, batch.sample_ids.dtype) == ((8,), np.dtype(np.int64))
    assert (len(batch), batch.epoch, batch.index, batch.bad) == (8, 0, 0, ())
    assert repr(batch) == "<Batch 0:0 of 'train', 8 images 32x32x3, labels label>"


def test_text_is_decoded_and_belongs_to_the_caller() -> None:
    spec = some_spec(labels={"text": LabelSpec("text", "string", text_bytes=6)}, batch_size=3)
    place = compute_layout(spec, 3)
    memory = memoryview(bytearray(place.size_bytes))
    place.labels["text"].build_array_in_memory(memory)[:] = ["zwölf".encode(), b"", b"abc"]
    header = BatchReady(epoch=0, index=0, rows=3, slot=0, slot_bytes=place.size_bytes, inline=False)
    batch = build_leased_batch(memory, place, header, spec, token=str, on_return=lambda: None)
    assert (batch.labels["text"].tolist(), batch.labels["text"].shape) == (["zwölf", "", "abc"], (3,))
    assert batch.labels["text"].dtype.kind == "U"
    batch.labels["text"][0] = "mine"


def test_images_cannot_be_written_by_any_way_that_numpy_knows(first: Callable[[], Batch]) -> None:
    batch = first()
    for view in (batch.images, batch.images[2:4], batch.images.reshape(8, -1), batch.images.T):
        with pytest.raises(ValueError, match="read-only"):
            view[...] = 0
    with pytest.raises(ValueError, match="WRITEABLE"):
        batch.images.flags.writeable = True


def test_labels_weights_and_ids_are_the_callers_own(first: Callable[[], Batch]) -> None:
    batch = first()
    for own in (*batch.labels.values(), batch.weights, batch.sample_ids):
        assert not np.shares_memory(own, batch.images)
        own[:] = 9
        assert own.tolist() == [9] * 8


def test_a_copy_is_the_same_batch_in_memory_of_its_own(first: Callable[[], Batch]) -> None:
    batch = first()
    copied = batch.copy()
    assert np.array_equal(copied.images, batch.images)
    assert not np.shares_memory(copied.images, batch.images)
    assert copied.images.flags.writeable
    assert (copied.epoch, copied.index, copied.token) == (batch.epoch, batch.index, batch.token)


def test_views_stay_unchanged_while_the_stream_runs_and_after_it_is_closed(client: Client) -> None:
    with client.subscribe("train", prefetch=4) as stream:
        held = [batch.images[1:3] for batch in islice(stream, 2)]
        before = [view.tobytes() for view in held]
        for _ in islice(stream, 30):
            pass
        assert [view.tobytes() for view in held] == before
    with client.subscribe("train", prefetch=4) as stream:
        for _ in islice(stream, 30):
            pass
    assert [view.tobytes() for view in held] == before
    del held
    gc.collect()


def test_the_last_view_ends_the_lease_and_the_credit_returns(client: Client) -> None:
    with client.subscribe("train", prefetch=2) as stream:
        batches = iter(stream)
        row = next(batches).images[0, :4, :4, 0].T[::2]
        images = next(batches).images
        assert stream._handoff.list_credit_blocking_batches() == [(0, 0), (0, 1)]
        del row
        wait_until(lambda: stream._handoff.list_credit_blocking_batches() == [], "the first lease has ended")
        assert next(batches).index == 2
        assert images.shape == (8, 32, 32, 3)


def test_a_batch_that_is_kept_without_its_images_holds_nothing(client: Client) -> None:
    with client.subscribe("train", prefetch=2) as stream:
        kept = [(batch.labels, batch.weights, batch.sample_ids, batch.token) for batch in islice(stream, 12)]
        assert len(kept) == 12


def bad_row(row: int, sample_id: int, action: str = "substituted") -> BadRow:
    return BadRow(row, sample_id, "a.jpg", "broken", action)


@pytest.mark.parametrize(
    ("policy", "delivered", "bad", "marks"),
    [
        ("substitute", [7, 8, 8, 9], (bad_row(1, 5),), [0, SUBSTITUTED, 0, 0]),
        ("substitute", [7, 8, 9, 7], (bad_row(3, 5),), [0, 0, 0, SUBSTITUTED]),
        ("mask", [7, -1, 8, 9], (bad_row(1, 5, "masked"),), [0, MASKED, 0, 0]),
        ("substitute", [-1, -1], (bad_row(0, 5, "masked"), bad_row(1, 6, "masked")), [MASKED, MASKED]),
    ],
)
def test_the_planned_ids_are_restored_from_the_bad_rows(
    policy: BadPolicy, delivered: list[int], bad: tuple[BadRow, ...], marks: list[int]
) -> None:
    planned, found = restore_planned_ids(np.array(delivered), bad, policy)
    assert found.tolist() == marks
    assert [planned[row.row] for row in bad] == [row.sample_id for row in bad]
    assert [each for row, each in enumerate(planned) if not marks[row]] == [
        each for row, each in enumerate(delivered) if not marks[row]
    ]


@pytest.mark.parametrize(
    ("policy", "delivered"), [("substitute", [7, 9, 8, 9]), ("substitute", [7, -1, 8, 9]), ("mask", [7, 8, 8, 9])]
)
def test_a_batch_that_its_bad_rows_do_not_explain_is_refused(policy: BadPolicy, delivered: list[int]) -> None:
    with pytest.raises(ProtocolError, match="do not follow from the bad rows"):
        restore_planned_ids(np.array(delivered), (bad_row(1, 5),), policy)


def test_a_batch_without_bad_rows_has_its_planned_ids() -> None:
    ids = np.arange(4)
    planned, marks = restore_planned_ids(ids, (), "substitute")
    assert planned is ids
    assert marks.tolist() == [0, 0, 0, 0]
