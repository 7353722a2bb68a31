"""All that a trainer may ask for, from another host: a whole daemon, its gate, and trainers on both sides of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.daemon_process import DaemonProcess, Start, stream_config, wait_until, write_images
from support.remote_daemon import RemoteKeys, find_address
from support.running_trainers import Trainer, trainers

import streamd
from streamd.client import Client
from streamd.errors import LossError

pytestmark = pytest.mark.long

BATCHES = 13  # of 100 samples, the last of four
LAST = BATCHES - 1


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon, for which the environment has the keys of a client."""
    place = tmp_path_factory.mktemp("d")
    keys = RemoteKeys(place / "keys")
    folder = write_images(place / "data", {"cat": 60, "dog": 40})
    config: dict[str, object] = {"curve": keys.config, "streams": {"train": stream_config(folder)}}
    with name_keys(keys), DaemonProcess(place, config, listen_remotely=True) as process:
        yield process
        assert process.terminate() == 0, process.log.read_text()


@contextlib.contextmanager
def name_keys(keys: RemoteKeys) -> Iterator[None]:
    """Names the keys of a new client in the environment, for as long as the context lasts."""
    curve = keys.add_client("me")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMD_CURVE_SECRET", curve["secret"])
        patch.setenv("STREAMD_CURVE_SERVER", curve["server"])
        yield


@pytest.fixture(scope="module")
def address(daemon: DaemonProcess) -> str:
    return find_address(daemon)


@pytest.fixture
def remote(address: str) -> Iterator[Client]:
    with streamd.connect(address) as connected:
        yield connected


@pytest.fixture
def local(daemon: DaemonProcess) -> Iterator[Client]:
    with streamd.connect(daemon.endpoint) as connected:
        yield connected


def read_rows(client: Client, **wish: Any) -> tuple[list[int], npt.NDArray[np.uint8], list[bool]]:
    """Returns the samples and the pixels of an epoch in order, and whether each receipt is ok."""
    with client.subscribe("train", **{"epochs": 1, **wish}) as stream:
        copies = [batch.copy() for batch in stream]
    ids = [int(each) for batch in copies for each in batch.sample_ids]
    return ids, np.concatenate([batch.images for batch in copies]), [receipt.ok for receipt in stream.receipts]


def test_trainers_on_two_sides_of_the_gate_begin_together(daemon: DaemonProcess, address: str, local: Client) -> None:
    wish: dict[str, Any] = {"epochs": 1, "start": {"together": 3}}
    with trainers(Trainer(address, **wish), Trainer(daemon.endpoint, **wish)) as early:
        wait_until(lambda: [each.doing for each in local.status().sessions] == ["gathering"] * 2, "two wait")
        assert [each.keys for each in early] == [[], []]
        with trainers(Trainer(address, **wish)) as (last,):
            assert [receipt.ok for each in (*early, last) for receipt in each.finish()] == [True] * 3
    assert [each.rows for each in early] == [last.rows] * 2


def test_a_remote_trainer_joins_live_where_the_others_are(daemon: DaemonProcess, address: str) -> None:
    with trainers(Trainer(daemon.endpoint, epochs=3, allowed=BATCHES + 6)) as (early,):
        wait_until(lambda: len(early.keys) == BATCHES + 6, "the first is in its second epoch")
        with trainers(Trainer(address, epochs=2, start="live", allowed=3)) as (late,):
            wait_until(lambda: len(late.keys) == 3, "the remote one has begun")
            early.allow(None)
            receipts = late.finish()
        assert [receipt.ok for receipt in receipts] == [True, True]
        assert late.keys[0] > (0, LAST)
        whole = [(epoch, index) for epoch in range(4) for index in range(BATCHES)]
        begin = whole.index(late.keys[0])
        assert late.keys == whole[begin : begin + len(late.keys)]


@pytest.mark.parametrize("is_remote_first", [True, False], ids=["remote first", "local first"])
def test_a_token_goes_on_exactly_on_the_other_side_of_the_gate(
    remote: Client, local: Client, *, is_remote_first: bool
) -> None:
    first, second = (remote, local) if is_remote_first else (local, remote)
    with first.subscribe("train", epochs=2) as stream:
        taken = [(batch.epoch, batch.index) for batch in islice(stream, 5)]
        token = stream.token
    with second.subscribe("train", epochs=2, resume=token) as rest:
        taken += [(batch.epoch, batch.index) for batch in rest]
        assert [receipt.ok for receipt in rest.receipts] == [True, True]
    assert taken == [(epoch, index) for epoch in range(2) for index in range(BATCHES)]


@pytest.mark.parametrize("batch_size", [4, 16])
def test_batches_of_another_size_have_the_same_rows(remote: Client, local: Client, batch_size: int) -> None:
    ids, pixels, oks = read_rows(remote, batch_size=batch_size)
    wanted_ids, wanted_pixels, _ = read_rows(local)
    assert (ids, oks) == (wanted_ids, [True])
    assert np.array_equal(pixels, wanted_pixels)


def test_two_ranks_on_two_sides_of_the_gate_share_an_epoch(remote: Client, local: Client) -> None:
    ids = []
    for rank, client in enumerate((remote, local)):
        with client.subscribe("train", epochs=1, rank=rank, world=2) as stream:
            ids += [int(each) for batch in stream for each in batch.sample_ids]
        assert [receipt.ok for receipt in stream.receipts] == [True]
    assert len(ids) == len(set(ids)) == 96  # the last batch has no other for the second rank


def test_any_batch_can_be_had_while_its_trainer_reads(remote: Client, local: Client) -> None:
    with remote.subscribe("train", epochs=1) as stream:
        next(iter(stream))
        for epoch, index in ((0, 0), (3, 7), (0, LAST)):
            here, there = local.batch("train", epoch, index), remote.batch("train", epoch, index)
            assert here.images.tobytes() == there.images.tobytes()
            assert np.array_equal(here.sample_ids, there.sample_ids)


def test_a_daemon_that_is_killed_costs_a_remote_trainer_nothing(start_daemon: Start, tmp_path: Path) -> None:
    keys = RemoteKeys(tmp_path / "keys")
    folder = write_images(tmp_path / "data", {"cat": 100})
    streams = {"train": stream_config(folder)}
    with name_keys(keys):
        daemon = start_daemon({"curve": keys.config, "streams": streams}, listen_remotely=True)
        address = find_address(daemon)
        config = json.loads(daemon.config.read_text())
        daemon.config.write_text(json.dumps({**config, "listen": [daemon.endpoint, address]}))  # the port that it got
        with trainers(Trainer(address, epochs=2, allowed=5)) as (trainer,):
            wait_until(lambda: len(trainer.keys) == 5, "it reads")
            daemon.restart_after_kill()
            assert [receipt.ok for receipt in trainer.finish()] == [True, True]
        assert trainer.keys == [(epoch, index) for epoch in range(2) for index in range(BATCHES)]


@pytest.mark.train
def test_a_loss_that_is_nan_is_drawn_on_the_trainers_host(remote: Client, tmp_path: Path) -> None:
    from streamd.frameworks.keras import NanGuard, fit_data, load_keras  # noqa: PLC0415 - Keras takes seconds to load

    keras = load_keras()
    model = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e30), "mse")
    with remote.subscribe("train", epochs=1) as stream:
        data = fit_data(stream)
        with pytest.raises(LossError, match=r"its pictures are in: .*nan-train-0-\d+\.html"):
            model.fit(data, epochs=1, verbose=0, callbacks=[NanGuard(data, remote, tmp_path)])
    (page,) = tmp_path.glob("nan-train-0-*.html")
    assert ".jpg</div>" in page.read_text()
