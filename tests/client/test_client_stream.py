"""The iterator that a trainer holds, on a real daemon: epochs, places, ranks, receipts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from support.daemon_process import DaemonProcess, stream_config, write_images

import streamd
from streamd.client import Client
from streamd.errors import NoDatasetError, TokenError

STEPS = 8  # 63 images in batches of 8
Key = tuple[int, int]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("d")
    folder = write_images(place / "data", {"cat": 30, "dog": 33})
    streams = {
        "train": stream_config(folder),
        "reseeded": stream_config(folder, shuffle={"kind": "full", "seed": 7}),
        "ordered": stream_config(folder, shuffle="none"),
        "even": stream_config(folder, drop_remainder=True),
        "padded": stream_config(folder, drop_remainder="pad"),
    }
    daemon = DaemonProcess(place, {"streams": streams}).start()
    yield daemon.endpoint
    daemon.kill()


@pytest.fixture
def client(endpoint: str) -> Iterator[Client]:
    with streamd.connect(endpoint) as client:
        yield client


def keys(batches: Any) -> list[Key]:
    return [(batch.epoch, batch.index) for batch in batches]


def walk(batches: Iterable[object], steps: int) -> None:
    """Takes so many batches and keeps none."""
    for _ in islice(batches, steps):
        pass


def place_after(client: Client, steps: int, stream: str = "train", **wish: Any) -> str:
    """The token after so many steps; 0 gives the one of a stream that nothing was taken of."""
    with client.subscribe(stream, epochs=3, **wish) as opened:
        walk(opened, steps)
        return opened.token


def test_the_length_is_the_steps_of_an_epoch(client: Client) -> None:
    with client.subscribe("train") as stream:
        assert len(stream) == STEPS
    with client.subscribe("even") as stream:
        assert len(stream) == STEPS - 1
    with client.subscribe("train", rank=1, world=3) as stream:
        assert len(stream) == 2
    with client.subscribe("train", rank=1, world=3, uneven="pad") as stream:
        assert len(stream) == 3


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


def test_an_epoch_left_early_is_gone_on_with_by_the_next_iterator(client: Client) -> None:
    with client.subscribe("train", epochs=2) as stream:
        parts = [keys(islice(epoch, 5)) for epoch in stream.epochs()]
    assert parts == [
        [(0, index) for index in range(5)],
        [(0, index) for index in range(5, STEPS)],
        [(1, index) for index in range(5)],
        [(1, index) for index in range(5, STEPS)],
    ]


@pytest.mark.parametrize("steps", [0, 1, STEPS - 1, STEPS, STEPS + 1, 3 * STEPS - 1, 3 * STEPS])
def test_a_token_continues_with_the_step_after_it(client: Client, steps: int) -> None:
    with client.subscribe("train", epochs=3, resume=place_after(client, steps)) as stream:
        assert keys(stream) == [divmod(step, STEPS) for step in range(steps, 3 * STEPS)]
        assert all(receipt.ok and receipt.complete for receipt in stream.receipts)
        assert len(stream.receipts) == 3 - steps // STEPS


def test_seeking_goes_back_and_forth_and_the_account_still_adds_up(client: Client) -> None:
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


def test_the_epoch_of_a_batch_counts_as_over_where_that_is_asked_for(client: Client) -> None:
    token = place_after(client, 7, batch_size=2)  # within its second batch
    for world, size in ((1, None), (2, None), (1, 2)):
        with client.subscribe("train", epochs=2, world=world, batch_size=size) as stream:
            stream.seek(token, after="epoch")
            assert (stream.epoch, stream.steps_left) == (1, len(stream))
            assert [epoch for epoch, _ in keys(stream)] == [1] * len(stream)
            assert [(each.epoch, each.complete, each.ok) for each in stream.receipts] == [(1, True, True)]


def test_a_token_of_another_order_or_stream_or_none_at_all_is_refused(client: Client) -> None:
    token = place_after(client, 2)
    with client.subscribe("train") as stream, pytest.raises(TokenError, match="not a valid streamd token"):
        stream.seek("{}")
    with pytest.raises(TokenError, match="belongs to stream 'train', not to 'reseeded'"):
        client.subscribe("reseeded", resume=token)
    with pytest.raises(TokenError, match="another order now"):
        client.subscribe("reseeded", resume=token.replace('"train"', '"reseeded"'))
    with pytest.raises(TokenError, match="not a valid streamd token"):
        client.subscribe("train", resume=b"\xff")


def test_a_stream_closed_early_has_a_receipt_that_says_so(client: Client) -> None:
    with client.subscribe("train", epochs=2) as stream:
        walk(stream, STEPS + 3)
    whole, part = stream.receipts
    assert (whole.complete, whole.ok, whole.steps) == (True, True, STEPS)
    assert (part.complete, part.ok, part.steps, part.missed, part.repeated) == (False, True, 3, 0, 0)
    stream.close()
    assert len(stream.receipts) == 2
    with client.subscribe("train") as untouched:
        pass
    assert untouched.receipts == []


def test_the_time_of_an_epoch_is_from_its_first_wish_to_its_last_batch(
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


def test_an_epoch_that_is_sought_again_is_timed_from_there(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 0
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    with client.subscribe("train", epochs=1) as stream:
        walk(stream, 3)
        now_ns += 10**12
        stream.seek(stream.token)
        walk(stream, STEPS)
    assert [timing.seconds for timing in stream.timings] == [0]


@pytest.mark.parametrize("world", [2, 3, 5])
def test_ranks_share_an_epoch_in_equal_steps_and_count_what_is_dropped(client: Client, world: int) -> None:
    seen: list[int] = []
    ids: list[int] = []
    for rank in range(world):
        with client.subscribe("train", epochs=1, rank=rank, world=world) as stream:
            for batch in stream:
                seen.append(batch.index)
                ids += batch.sample_ids.tolist()
        assert stream.receipts[0].ok
        assert stream.receipts[0].steps == STEPS // world
        assert stream.receipts[0].dropped == max(0, 63 - STEPS // world * world * 8)
    assert sorted(seen) == list(range(STEPS // world * world))
    assert len(set(ids)) == len(ids) == min(63, len(seen) * 8)


def test_padding_gives_every_rank_the_same_steps_with_weightless_batches_at_the_end(client: Client) -> None:
    ids: list[int] = []
    weights = []
    for rank in range(3):
        with client.subscribe("ordered", epochs=1, rank=rank, world=3) as stream:
            batches = [(batch.index, batch.sample_ids, batch.weights, len(batch)) for batch in stream]
        assert [index for index, *_ in batches] == [rank, rank + 3, rank + 6]
        assert (stream.receipts[0].ok, stream.receipts[0].dropped) == (True, 0)
        weights.append(float(batches[-1][2].sum()))
        ids += [each for _, row_ids, _, _ in batches for each in row_ids.tolist() if each >= 0]
    assert sorted(ids) == list(range(63))
    assert weights == [8.0, 7.0, 0.0]


def test_any_ranks_token_serves_another_world(client: Client) -> None:
    token = place_after(client, 2, rank=1, world=2)
    rest = []
    for rank in range(4):
        with client.subscribe("train", epochs=1, rank=rank, world=4, resume=token) as stream:
            rest += [batch.index for batch in stream]
            assert stream.receipts[0].ok
    assert sorted(rest) == [4, 5, 6, 7]


def test_waiting_is_counted(client: Client) -> None:
    with client.subscribe("train", epochs=1) as stream:
        assert stream.wait_s == 0
        walk(stream, STEPS)
        assert 0 < stream.wait_s < 60


def test_an_unshuffled_stream_comes_in_the_order_of_the_manifest(client: Client) -> None:
    with client.subscribe("ordered", epochs=2) as stream:
        for epoch in stream.epochs():
            assert np.concatenate([batch.sample_ids for batch in epoch]).tolist() == list(range(63))


def test_a_stream_says_what_and_where_it_is(client: Client) -> None:
    with client.subscribe("train", epochs=2) as stream:
        walk(stream, STEPS + 1)
        assert repr(stream) == "<Stream 'train' at 1:1, 8 steps an epoch of 8 images 32x32x3, labels label>"
        assert (stream.epoch, stream.reconnects) == (1, 0)
        stream._handoff.mark_daemon_away()
        assert repr(stream).endswith("labels label, no daemon>")
    assert repr(stream).endswith("labels label, closed>")


def test_a_stream_is_no_data_set_and_no_array_and_says_what_to_write(client: Client) -> None:
    with client.subscribe("train") as stream:
        with pytest.raises(NoDatasetError, match="in the place of the DataLoader"):
            stream[0]
        with pytest.raises(NoDatasetError, match=r"model.fit\(fit_data\(stream\)\)"):
            np.asarray(stream)


def test_a_stream_counts_the_epochs_that_have_steps_to_come_and_names_its_samples(client: Client) -> None:
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
def test_rewinding_begins_the_first_epoch_again_and_what_is_left_is_accounted_for(client: Client, size: int) -> None:
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


def test_a_place_within_the_first_batch_is_rewound_too(client: Client) -> None:
    with client.subscribe("train", batch_size=2) as stream:
        first = next(iter(stream))
        place = first.token
        stream.seek(place)
        stream.rewind()
        assert next(iter(stream)).sample_ids.tolist() == first.sample_ids.tolist()


def test_whoever_returns_from_a_rewound_stream_goes_on_with_the_account(client: Client) -> None:
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
