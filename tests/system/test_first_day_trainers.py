"""What a trainer may ask for: any batch, names, another batch size, a start together with other trainers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from support.daemon_process import DaemonProcess, Start, stream_config, wait_until, write_images
from support.running_trainers import Trainer, trainers

from streamd.client import Client
from streamd.errors import RefusedError

SAMPLES, B = 100, 8
BATCHES = 13  # the last has four rows


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    place = tmp_path_factory.mktemp("d")
    folder = write_images(place / "data", {"cat": 60, "dög": 40})
    streams = {
        "train": stream_config(folder),
        "dropping": stream_config(folder, drop_remainder=True),
        "padding": stream_config(folder, drop_remainder="pad"),
    }
    with DaemonProcess(place, {"streams": streams}) as process:
        yield process
        assert process.terminate() == 0, process.log.read_text()


# --- any batch, names, status


def test_client_batch_returns_any_batch_as_trainers_got_it(client: Client) -> None:
    with client.subscribe("train", epochs=2) as stream:
        seen = {(batch.epoch, batch.index): batch.copy() for batch in stream}
    for epoch, index in ((0, 0), (1, 7), (0, BATCHES - 1)):
        again = client.batch("train", epoch, index)
        assert np.array_equal(again.images, seen[epoch, index].images)
        assert np.array_equal(again.sample_ids, seen[epoch, index].sample_ids)
        assert np.array_equal(again.labels["label"], seen[epoch, index].labels["label"])


def test_a_batch_that_does_not_exist_is_refused_with_the_valid_range(client: Client) -> None:
    for epoch, index in ((0, BATCHES), (0, -1), (-1, 0)):
        with pytest.raises(RefusedError, match=f"no batch {epoch}:{index}: .* from 0 to {BATCHES - 1}"):
            client.batch("train", epoch, index)


def test_sample_names_are_file_names(client: Client) -> None:
    assert client.names("train", [0, 59, 60, 99, 0]) == [
        "cat/0000.jpg", "cat/0059.jpg", "dög/0000.jpg", "dög/0039.jpg", "cat/0000.jpg",
    ]  # fmt: skip
    assert client.names("train", np.array([-1, 3])) == ["", "cat/0003.jpg"]
    assert client.names("train", []) == []


def test_more_names_than_fit_one_request_are_fetched_in_several(client: Client) -> None:
    ids = list(range(SAMPLES)) * 100
    assert len(client.names("train", ids)) == len(ids)


def test_names_of_unknown_ids_and_streams_are_refused(client: Client) -> None:
    with pytest.raises(RefusedError, match="has sample ids 0 to 99, not 100"):
        client.names("train", [100])
    with pytest.raises(RefusedError, match="did you mean 'train'"):
        client.names("trian", [0])


def test_status_shows_each_session_with_its_stream_and_progress(client: Client) -> None:
    with client.subscribe("train", epochs=3, rank=1, world=2) as stream:
        held = list(islice(stream, 5))[-1]  # what the loop has let go is taken for sure
        wait_until(lambda: any(each.step >= 4 for each in client.status().sessions), "the session has taken batches")
        status = client.status()
        (session,) = status.sessions
        assert (session.stream, session.rank, session.world, session.epochs) == ("train", 1, 2, 3)
        assert session.steps == len(stream) == 6
        assert 0 < session.held <= session.credit
        assert (session.epoch, session.step) in {(0, 4), (0, 5)}
        assert {each.name: each.sessions for each in status.streams} == {"train": 1, "dropping": 0, "padding": 0}
        del held
    wait_until(lambda: not client.status().sessions, "the session is gone")


# --- another size


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 24, 104])
def test_every_size_gives_every_sample_once_in_the_same_order(client: Client, size: int) -> None:
    with client.subscribe("train", epochs=1) as plain:
        whole = [(batch.sample_ids, batch.images.copy()) for batch in plain]
    ids, images = map(np.concatenate, zip(*whole, strict=True))
    with client.subscribe("train", epochs=2, batch_size=size) as stream:
        for epoch in islice(stream.epochs(), 1):
            batches = [batch.copy() for batch in epoch]
        assert len(batches) == len(stream) == stream.spec.batches == -(-SAMPLES // size)
        assert np.array_equal(np.concatenate([batch.sample_ids for batch in batches]), ids)
        assert np.array_equal(np.concatenate([batch.images for batch in batches]), images)
        assert sum(1 for _ in stream) == len(stream)
        assert all(receipt.ok for receipt in stream.receipts)
        assert [(receipt.steps, receipt.samples) for receipt in stream.receipts] == [(len(stream), SAMPLES)] * 2


@pytest.mark.parametrize("size", [2, 4, 16])
def test_a_token_of_any_batch_size_resumes_at_the_next_row_at_any_other_size(client: Client, size: int) -> None:
    with client.subscribe("train", epochs=1) as plain:
        order = np.concatenate([batch.sample_ids for batch in plain]).tolist()
    with client.subscribe("train", epochs=1, batch_size=size) as stream:
        for batch in islice(stream, 5):
            token = batch.token
        assert stream.token == token
    for other in (2, 8, 24):
        with client.subscribe("train", epochs=1, batch_size=other, resume=token) as rest:
            assert [int(each) for batch in rest for each in batch.sample_ids] == order[5 * size :]
            assert rest.receipts[-1].ok


def test_rows_that_do_not_fill_a_batch_are_dropped_and_counted_where_the_stream_drops(client: Client) -> None:
    with client.subscribe("dropping", epochs=1, batch_size=40) as stream:
        assert [len(batch) for batch in stream] == [40, 40]
        (receipt,) = stream.receipts
        assert (receipt.ok, receipt.steps, receipt.samples, receipt.dropped) == (True, 2, 80, 20)


# --- company


def test_a_live_trainer_joins_where_the_other_is_and_its_first_epoch_is_short(daemon: DaemonProcess) -> None:
    with trainers(Trainer(daemon.endpoint, epochs=9, allowed=30)) as (early,):
        wait_until(lambda: len(early.keys) == 30, "the first is in the middle of an epoch")
        with trainers(Trainer(daemon.endpoint, epochs=2, start="live")) as (late,):
            receipts = late.finish()
        assert [receipt.ok for receipt in receipts] == [True, True]
        first = late.keys[0]
        assert first[0] == 2
        assert first[1] >= 30 - 2 * BATCHES
        whole = [(epoch, index) for epoch in (2, 3) for index in range(BATCHES)]
        assert late.keys == whole[whole.index(first) :]
        assert receipts[0].steps == BATCHES - first[1]


def test_the_token_of_a_live_trainer_resumes_at_its_next_batch(daemon: DaemonProcess, client: Client) -> None:
    with trainers(Trainer(daemon.endpoint, epochs=9, allowed=5, prefetch=2)) as (early,):
        wait_until(lambda: len(early.keys) == 5, "the first has begun")
        with client.subscribe("train", epochs=1, start="live") as stream:
            taken = [batch.index for batch in islice(stream, 2)]
            token = stream.token
    with client.subscribe("train", epochs=1, resume=token) as rest:
        taken += [batch.index for batch in rest]
        assert rest.receipts[0].ok
    assert taken == list(range(taken[0], BATCHES))


@pytest.mark.long
def test_trainers_that_wait_for_each_other_begin_together(daemon: DaemonProcess, client: Client) -> None:
    with trainers(*(Trainer(daemon.endpoint, epochs=1, start={"together": 3}) for _ in range(2))) as early:
        wait_until(lambda: [each.doing for each in client.status().sessions] == ["gathering"] * 2, "two wait")
        assert [each.keys for each in early] == [[], []]
        with trainers(Trainer(daemon.endpoint, epochs=1, start={"together": 3})) as (last,):
            for each in (*early, last):
                assert [receipt.ok for receipt in each.finish()] == [True]


@pytest.mark.long
def test_trainers_that_wait_for_each_other_begin_together_after_a_daemon_restart(
    start_daemon: Start, tmp_path: Path
) -> None:
    folder = write_images(tmp_path / "data", {"cat": 40})
    daemon = start_daemon({"streams": {"train": stream_config(folder)}})
    with trainers(Trainer(daemon.endpoint, epochs=1, start={"together": 2})) as (early,):
        daemon.restart_after_kill()
        with trainers(Trainer(daemon.endpoint, epochs=1, start={"together": 2})) as (late,):
            assert [receipt.ok for receipt in late.finish() + early.finish()] == [True, True]


def test_a_program_that_exits_right_after_its_loop_has_reported_its_receipt(client: Client) -> None:
    program = (
        "import sys, streamd\nfor batch in streamd.connect(sys.argv[1]).subscribe('padding', epochs=1):\n    pass\n"
    )

    def count_receipts() -> int:
        (padding,) = [each for each in client.status().streams if each.name == "padding"]
        return padding.receipts_ok

    before = count_receipts()
    done = subprocess.run([sys.executable, "-c", program, client.endpoint], check=False, timeout=60)
    assert done.returncode == 0
    wait_until(lambda: count_receipts() == before + 1, "the receipt is counted")
