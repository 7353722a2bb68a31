"""The rules that a trainer's loop relies on, for any batch size, rank and starting point."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any, Final

import pytest
from support.daemon_process import DaemonProcess, stream_config, wait_until, write_images

from streamd.client import Client, Stream
from streamd.client.leases import ReceivedBatch
from streamd.errors import ConnectError, StreamdError, TokenError

SAMPLES: Final = 44  # five batches of 8 and one of 4
SIZES: Final = [2, 8, 16]  # parts, whole batches, groups


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    place = tmp_path_factory.mktemp("d")
    folder = write_images(place / "data", {"cat": SAMPLES})
    streams = {
        "train": stream_config(folder),
        "dropping": stream_config(folder, drop_remainder=True),
        "padding": stream_config(folder, drop_remainder="pad"),
        "ordered": stream_config(folder, shuffle="none"),
    }
    with DaemonProcess(place, {"workers": 2, "streams": streams}) as process:
        yield process
        assert process.terminate() == 0, process.log.read_text()


def rows_of(batches: Any) -> list[int]:
    """Every row's sample, one after the other."""
    return [int(each) for batch in batches for each in batch.sample_ids]


def rows_of_epochs(client: Client, epochs: int) -> list[int]:
    with client.subscribe("train", epochs=epochs) as stream:
        return rows_of(stream)


def account(stream: Stream) -> list[tuple[bool, bool, int, int]]:
    return [(each.complete, each.ok, each.steps, each.samples) for each in stream.receipts]


def fail() -> ReceivedBatch:
    raise ConnectError("ipc:///run/x", "the patience is over")


# --- how many


@pytest.mark.parametrize("size", [2, 16])
@pytest.mark.parametrize("world", [1, 3, 4])
@pytest.mark.parametrize(
    ("name", "uneven"),
    [("train", "drop"), ("train", "pad"), ("dropping", None), ("padding", "drop"), ("ordered", None)],
)
def test_the_length_is_the_batches_of_a_whole_epoch_and_the_same_for_every_rank(
    client: Client, name: str, uneven: Any, world: int, size: int
) -> None:
    lengths: set[int] = set()
    given: list[int] = []
    weights = 0.0
    for rank in range(world):
        with client.subscribe(name, epochs=1, rank=rank, world=world, uneven=uneven, batch_size=size) as stream:
            batches = [batch.copy() for batch in stream]
        ids = [each for each in rows_of(batches) if each >= 0]
        assert account(stream) == [(True, True, len(batches), len(ids))]
        assert len(batches) == len(stream)
        assert all(one.index < other.index for one, other in pairwise(batches))
        weights += sum(float(batch.weights.sum()) for batch in batches)
        lengths.add(len(batches))
        given += ids
    assert len(lengths) == 1
    assert len(set(given)) == len(given) == weights
    if uneven == "pad" or name == "ordered":
        assert len(given) == SAMPLES


# --- loops


def test_an_epoch_iterator_that_is_not_consumed_raises_instead_of_looping_for_ever(client: Client) -> None:
    with client.subscribe("train", epochs=2) as stream:
        with pytest.raises(
            StreamdError, match=r"no batch was taken from epoch 0 of stream 'train': iterate over each item"
        ):
            list(stream.epochs())
        assert sum(1 for _ in stream) == 2 * len(stream)


def test_several_iterators_take_turns(client: Client) -> None:
    with client.subscribe("train", epochs=1) as stream:
        taken = [batch for pair in zip(iter(stream), iter(stream), strict=True) for batch in pair]
        assert rows_of(taken) == rows_of_epochs(client, 1)


def test_an_epoch_iterator_yields_nothing_after_another_has_ended_the_epoch(client: Client) -> None:
    with client.subscribe("train", epochs=2) as stream:
        early = next(stream.epochs())
        next(early)
        assert len(list(next(stream.epochs()))) == len(stream) - 1
        assert list(early) == []
        assert stream.epoch == 1


def test_a_loop_after_the_last_epoch_yields_nothing_and_adds_no_receipt(client: Client) -> None:
    with client.subscribe("train", epochs=1) as stream:
        batches = iter(stream)
        rows_of(batches)
        for _ in range(2):
            assert not [*stream, *stream.epochs(), *batches]
        assert len(stream.receipts) == 1


# --- places


def test_a_seek_within_a_loop_moves_the_loop(client: Client) -> None:
    with client.subscribe("train", epochs=2) as stream:
        start, seen = stream.token, []
        for batch in stream:
            seen.append((batch.epoch, batch.index))
            if len(seen) == 8:
                stream.seek(start)
    whole = [(epoch, index) for epoch in (0, 1) for index in range(6)]
    assert seen == whole[:8] + whole


def test_a_token_within_a_batch_is_refused_in_a_world_of_another_size(client: Client) -> None:
    """Elsewhere those rows of other ranks' batches would be skipped or repeated."""
    with client.subscribe("train", epochs=1, rank=1, world=2, batch_size=4) as stream:
        within, after = (batch.token for batch in islice(stream, 2))
    says = r"was saved within a batch, after 4 rows, with world=2: resume it with world=2"
    with pytest.raises(TokenError, match=says):
        client.subscribe("train", resume=within)
    with client.subscribe("train", epochs=1, resume=after) as stream:
        assert rows_of(stream) == rows_of_epochs(client, 1)[16:]
        with pytest.raises(TokenError, match="world=1"):
            stream.seek(within)


# --- ends


@pytest.mark.parametrize(("size", "steps"), [(2, 5), (2, 2), (8, 3), (16, 2)])
def test_the_receipt_of_an_early_stop_counts_the_batches_taken(client: Client, size: int, steps: int) -> None:
    with client.subscribe("train", epochs=1, batch_size=size) as stream:
        taken = rows_of(islice(stream, steps))
    assert account(stream) == [(False, True, steps, len(taken))]
    with client.subscribe("train") as untouched:
        pass
    assert untouched.receipts == []


def test_the_receipt_of_a_resumed_stream_counts_the_steps_before_it_too(client: Client) -> None:
    with client.subscribe("train", epochs=1, batch_size=2) as stream:
        rows_of(islice(stream, 5))
    with client.subscribe("train", epochs=1, batch_size=2, resume=stream.token) as resumed:
        next(iter(resumed))
    assert account(resumed) == [(False, True, 6, 12)]


def test_a_batch_gathered_but_not_handed_over_is_not_counted_by_an_early_stop(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.subscribe("train", epochs=1, batch_size=16) as stream:
        batches = iter(stream)
        token = next(batches).token
        wait, waits = stream._wait_for_batch, iter([True, False])
        monkeypatch.setattr(stream, "_wait_for_batch", lambda after: wait(after) if next(waits) else fail())
        with pytest.raises(ConnectError):
            next(batches)
        assert stream.token == token
    assert account(stream) == [(False, True, 1, 16)]


def test_iterating_after_close_is_an_error_also_at_the_end(client: Client) -> None:
    with client.subscribe("train", epochs=1) as ended, client.subscribe("train", epochs=1) as begun:
        rows_of(ended)
        batches = iter(begun)
        next(batches)
    for use in (lambda: list(ended), lambda: list(ended.epochs()), lambda: next(batches), lambda: list(begun)):
        with pytest.raises(ConnectError, match="this stream is closed; subscribe again"):
            use()
    begun.close()
    assert [len(ended.receipts), len(begun.receipts)] == [1, 1]


@pytest.mark.parametrize(("size", "steps"), [(None, 6), (4, 11), (16, 3)])
def test_an_epoch_is_complete_once_its_last_batch_is_taken(client: Client, size: int | None, steps: int) -> None:
    with client.subscribe("train", epochs=3, batch_size=size) as stream:
        taken = [len(batch) for _, batch in zip(range(len(stream)), stream, strict=False)]
    assert len(taken) == steps
    assert account(stream) == [(True, True, steps, 44)]
    wait_until(lambda: not client.status().sessions, "the session has ended")
