"""Streams on a real daemon: epochs, positions, ranks, receipts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from support.daemon_process import DaemonProcess, stream_config, write_images

from streamd.client import Client
from streamd.errors import NoDatasetError

STEPS = 8  # 63 images in batches of 8
Key = tuple[int, int]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    place = tmp_path_factory.mktemp("d")
    folder = write_images(place / "data", {"cat": 30, "dog": 33})
    streams = {
        "train": stream_config(folder),
        "even": stream_config(folder, drop_remainder=True),
        "padded": stream_config(folder, drop_remainder="pad"),
    }
    with DaemonProcess(place, {"streams": streams}) as daemon:
        yield daemon


def keys(batches: Any) -> list[Key]:
    return [(batch.epoch, batch.index) for batch in batches]


def walk(batches: Iterable[object], steps: int) -> None:
    """Takes `steps` batches and keeps none."""
    for _ in islice(batches, steps):
        pass


def place_after(client: Client, steps: int, **wish: Any) -> str:
    """The token after `steps` steps."""
    with client.subscribe("train", epochs=3, **wish) as opened:
        walk(opened, steps)
        return opened.token


def test_the_last_batch_is_short_dropped_or_padded(client: Client) -> None:
    rows = {}
    for name in ("train", "even", "padded"):
        with client.subscribe(name, epochs=1) as stream:
            rows[name] = [(len(batch), int(batch.weights.sum()), batch.images.shape[0]) for batch in stream]
            assert stream.receipts[0].ok
    assert rows["train"] == [(8, 8, 8)] * 7 + [(7, 7, 7)]
    assert rows["even"] == [(8, 8, 8)] * 7
    assert rows["padded"] == [(8, 8, 8)] * 7 + [(8, 7, 8)]


def test_epochs_come_one_at_a_time_and_end_by_themselves(client: Client) -> None:
    with client.subscribe("train", epochs=2) as stream:
        assert [keys(epoch) for epoch in stream.epochs()] == [[(n, index) for index in range(STEPS)] for n in (0, 1)]
        assert [(each.epoch, each.steps, each.complete) for each in stream.receipts] == [(0, 8, True), (1, 8, True)]
        assert keys(stream) == []


def test_breaking_out_keeps_the_place_for_the_next_loop(client: Client) -> None:
    with client.subscribe("train", epochs=1) as stream:
        first = keys(islice(stream, 3))
        for batch in stream:
            first.append((batch.epoch, batch.index))
            break
        assert stream.epoch == 0
        assert first + keys(stream) == [(0, index) for index in range(STEPS)]
        assert [(each.missed, each.repeated, each.ok) for each in stream.receipts] == [(0, 0, True)]


def test_the_receipt_is_correct_after_seeks_backward_and_forward(client: Client) -> None:
    with client.subscribe("train", epochs=1) as stream:
        batches = [(batch.index, batch.sample_ids.tolist(), batch.token) for batch in islice(stream, 6)]
        stream.seek(batches[1][2])
        again = [(batch.index, batch.sample_ids.tolist(), batch.token) for batch in islice(stream, 2)]
        assert again == batches[2:4]
        stream.seek(batches[5][2].encode())
        assert keys(stream) == [(0, 6), (0, 7)]
        assert stream.receipts[0].ok


@pytest.mark.parametrize("wish", [{}, {"world": 3, "rank": 1}, {"batch_size": 2}, {"batch_size": 16}], ids=str)
def test_a_stream_knows_how_many_steps_are_left_of_its_epoch(client: Client, wish: dict[str, Any]) -> None:
    with client.subscribe("train", epochs=2, **wish) as stream:
        steps, left = len(stream), [stream.steps_left]
        left += [stream.steps_left for _ in stream]
        assert left == [steps, *reversed(range(steps)), *reversed(range(steps))]
        assert stream.world == wish.get("world", 1)


def test_a_seek_after_the_epoch_starts_the_next_epoch(client: Client) -> None:
    token = place_after(client, 7, batch_size=2)  # within its second batch
    for world, size in ((1, None), (2, None), (1, 2)):
        with client.subscribe("train", epochs=2, world=world, batch_size=size) as stream:
            stream.seek(token, after="epoch")
            assert (stream.epoch, stream.steps_left) == (1, len(stream))
            assert [epoch for epoch, _ in keys(stream)] == [1] * len(stream)
            assert [(each.epoch, each.complete, each.ok) for each in stream.receipts] == [(1, True, True)]


def test_an_epoch_is_timed_from_its_first_request_to_its_last_batch(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 0
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    with client.subscribe("train", epochs=2) as stream:
        for batches in stream.epochs():
            for _ in batches:
                now_ns += 10**9
            now_ns += 10**12  # a validation
    assert [(timing.epoch, timing.verdict) for timing in stream.timings] == [(0, "none"), (1, "none")]
    assert [(timing.seconds, timing.waited_s) for timing in stream.timings] == [(STEPS - 1, 0)] * 2


def test_an_epoch_is_timed_from_the_last_seek(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 0
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    with client.subscribe("train", epochs=1) as stream:
        walk(stream, 3)
        now_ns += 10**12
        stream.seek(stream.token)
        walk(stream, STEPS)
    assert [timing.seconds for timing in stream.timings] == [0]


def test_time_spent_waiting_is_counted(client: Client) -> None:
    with client.subscribe("train", epochs=1) as stream:
        assert stream.wait_s == 0
        walk(stream, STEPS)
        assert 0 < stream.wait_s < 60


def test_the_repr_of_a_stream_shows_its_position_and_shapes(client: Client) -> None:
    with client.subscribe("train", epochs=2) as stream:
        walk(stream, STEPS + 1)
        assert repr(stream) == "<Stream 'train' at 1:1, 8 steps an epoch of 8 images 32x32x3, labels label>"
        assert (stream.epoch, stream.reconnects) == (1, 0)
        stream._handoff.mark_daemon_away()
        assert repr(stream).endswith("labels label, no daemon>")
    assert repr(stream).endswith("labels label, closed>")


def test_using_a_stream_as_a_data_set_or_an_array_raises_with_what_to_write(client: Client) -> None:
    with client.subscribe("train") as stream:
        with pytest.raises(NoDatasetError, match="in place of the DataLoader"):
            stream[0]
        with pytest.raises(NoDatasetError, match=r"model.fit\(fit_data\(stream\)\)"):
            np.asarray(stream)


def test_a_stream_counts_its_remaining_epochs_and_names_its_samples(client: Client) -> None:
    with client.subscribe("train") as stream:
        assert stream.epochs_left is None
        ids = [*next(iter(stream)).sample_ids, -1]
        assert stream.names(ids) == client.names("train", ids)
    with client.subscribe("train", epochs=2) as stream:
        left = [stream.epochs_left]
        for taken in (1, STEPS - 1, 1, STEPS - 1):
            walk(stream, taken)
            left.append(stream.epochs_left)
    assert left == [2, 2, 1, 1, 0]


@pytest.mark.parametrize("size", [2, 8, 16])
def test_a_rewind_restarts_the_first_epoch_and_writes_a_receipt_of_the_one_it_leaves(client: Client, size: int) -> None:
    with client.subscribe("train", epochs=1, batch_size=size) as stream:
        stream.rewind()
        whole = [batch.sample_ids.tolist() for batch in stream]
        for steps in (1, 2):
            stream.rewind()
            assert [batch.sample_ids.tolist() for batch in islice(stream, steps)] == whole[:steps]
            stream.rewind()
        accounts = [(each.epoch, each.steps, each.complete, each.ok) for each in stream.receipts]
    assert accounts == [(0, len(whole), True, True), (0, 1, False, True), (0, 2, False, True)]
    assert len(stream.receipts) == 3


def test_a_rewind_from_within_the_first_batch_restarts_the_epoch(client: Client) -> None:
    with client.subscribe("train", batch_size=2) as stream:
        first = next(iter(stream))
        place = first.token
        stream.seek(place)
        stream.rewind()
        assert next(iter(stream)).sample_ids.tolist() == first.sample_ids.tolist()


def test_returning_from_a_rewind_continues_the_receipt(client: Client) -> None:
    with client.subscribe("train", resume=place_after(client, STEPS + 3)) as stream:
        first = keys(islice(stream, 1))
        place = stream.token
        stream.rewind()
        assert keys(islice(stream, 2)) == [(1, 0), (1, 1)]
        stream.return_to(place)
        rest = keys(islice(stream, STEPS))
    assert first + rest == [divmod(step, STEPS) for step in range(STEPS + 3, 2 * STEPS + 4)]
    accounts = [(each.epoch, each.steps, each.complete, each.ok) for each in stream.receipts]
    assert accounts == [(1, 4, False, True), (1, 2, False, True), (1, STEPS, True, True), (2, 4, False, True)]


def test_a_stream_that_joined_others_is_rewound_to_the_beginning_of_the_epoch_it_joined(client: Client) -> None:
    with client.subscribe("train") as leader:
        walk(leader, STEPS + 3)
        with client.subscribe("train", start="live") as stream:
            joined = next(iter(stream)).epoch
            stream.rewind()
            assert keys(islice(stream, 2)) == [(joined, 0), (joined, 1)]
