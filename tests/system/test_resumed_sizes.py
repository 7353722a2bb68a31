"""Trainings resumed with another step size on a real daemon: more or fewer ranks, larger or smaller batches."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from support.daemon_process import DaemonProcess, stream_config, write_images
from support.resumed_training import KilledError, killed_at

import streamd
from streamd.client.client import Client
from streamd.core.receipt import Receipt
from streamd.errors import TokenError
from streamd.frameworks import keras as ours
from streamd.frameworks.keras import fit_data, load_keras

pytestmark = pytest.mark.train

SAMPLES = 52  # seven batches of eight, the last of four
EPOCHS = 3


@dataclass(frozen=True)
class Size:
    """What a program asks for."""

    world: int = 1
    batch_size: int = 8
    steps: int | None = None


class Run(NamedTuple):
    """The samples of each step of each epoch that one process is given, and its receipts."""

    epochs: list[list[list[int]]]
    receipts: list[Receipt]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    place = tmp_path_factory.mktemp("d")
    folder = write_images(place / "data", {"cat": SAMPLES})
    with (
        DaemonProcess(place, {"workers": 1, "streams": {"train": stream_config(folder)}}) as daemon,
        streamd.connect(daemon.endpoint) as client,
    ):
        yield client


def train(client: Client, place: Path, size: Size, rank: int = 0, kill: int = 10**6) -> Run:
    """The epochs of one rank, until it is killed."""
    keras = load_keras()
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    epochs: list[list[list[int]]] = []
    begun = keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: epochs.append([]))
    with client.subscribe("train", rank=rank, world=size.world, batch_size=size.batch_size) as stream:
        data = fit_data(stream, steps=size.steps)
        data.on_batch = lambda batch: epochs[-1].append(batch.sample_ids.tolist())
        callbacks = [ours.ResumeCallback(data, place, every=1), begun, killed_at(kill)]
        with suppress(KilledError):
            model.fit(data, epochs=EPOCHS, verbose=0, callbacks=callbacks)
        assert all(receipt.ok for receipt in stream.receipts)
    return Run(epochs, stream.receipts)


@dataclass(frozen=True)
class Account:
    """What a killed and resumed run got in each of its epochs."""

    samples: list[list[int]]
    steps: list[int]  # in those of the process that went on

    @staticmethod
    def of(client: Client, place: Path, before: Size, kill: int, after: Size) -> Account:
        began = [train(client, place / f"{rank}", before, rank, kill).epochs for rank in range(before.world)]
        for rank in range(1, after.world):
            shutil.copytree(place / "0", place / f"{rank}", dirs_exist_ok=True)
        went_on = [train(client, place / f"{rank}", after, rank).epochs for rank in range(after.world)]
        first, rest = map(_of_all_ranks, (began, went_on))
        samples = [*first[:-1], first[-1] + rest[0], *rest[1:]]
        (steps,) = {tuple(map(len, each)) for each in went_on}  # all ranks take as many
        return Account(samples, list(steps))


def _of_all_ranks(ranks: list[list[list[list[int]]]]) -> list[list[int]]:
    return [[sample for steps in epochs for step in steps for sample in step] for epochs in zip(*ranks, strict=True)]


@pytest.fixture(scope="module")
def order(client: Client) -> list[int]:
    """The samples of three epochs, one after the other."""
    with client.subscribe("train", epochs=EPOCHS) as stream:
        return [sample for batch in stream for sample in batch.sample_ids.tolist()]


@pytest.mark.parametrize(
    ("before", "kill", "after", "steps"),
    [
        (Size(), 3, Size(batch_size=16), [2, 4, 4]),
        (Size(batch_size=16), 2, Size(), [3, 7, 7]),
        (Size(batch_size=16), 2, Size(batch_size=4), [5, 13, 13]),
        (Size(batch_size=2), 7, Size(batch_size=4), [10, 13, 13]),  # six rows of the second batch are taken
        (Size(batch_size=2), 7, Size(batch_size=16), [3, 4, 4]),
        (Size(batch_size=2), 7, Size(), [6, 7, 7]),
        (Size(), 7, Size(batch_size=16), [4, 4]),  # at an epoch's end
        (Size(), 3, Size(), [4, 7, 7]),
        (Size(world=2), 2, Size(), [3, 7, 7]),
        (Size(steps=4), 2, Size(batch_size=4, steps=4), [4, 4, 4]),
        (Size(batch_size=4, steps=4), 1, Size(steps=2), [2, 2, 2]),  # half a step is one
        (Size(steps=5), 1, Size(steps=2), [4, 2, 2]),  # more than others have
        (Size(steps=2), 1, Size(steps=5), [1, 5, 5]),
        (Size(steps=2), 1, Size(), [1, 5, 7]),  # of the stream's own epoch, five are left
        (Size(), 3, Size(steps=2), [4, 2, 2]),
        (Size(steps=4), 4, Size(batch_size=4, steps=8), [8, 8]),
    ],
    ids=str,
)
def test_a_resume_with_another_step_size_gives_the_rest_of_the_epoch_first(
    client: Client, order: list[int], tmp_path: Path, before: Size, kill: int, after: Size, steps: list[int]
) -> None:
    account = Account.of(client, tmp_path, before, kill, after)
    assert account.steps == steps
    taken = [sample for epoch in account.samples for sample in epoch]
    if before.world == 1:
        assert taken == order[: len(taken)]
    if before.steps is after.steps is None:
        assert [sorted(epoch) for epoch in account.samples] == [list(range(SAMPLES))] * EPOCHS


@pytest.mark.parametrize(
    ("before", "kill", "after", "steps", "dropped"),
    [
        (Size(), 3, Size(world=2), [2, 3, 3], [0, 4, 4]),
        (Size(world=2), 2, Size(world=3), [1, 2, 2], [0, 4, 4]),
        (Size(world=3), 2, Size(), [7, 7], [4, 0, 0]),  # at an epoch's end, with a batch that was for nobody
        (Size(), 9, Size(world=3), [1, 2], [0, 12, 4]),  # in the second epoch, of which five batches are left
    ],
    ids=str,
)
def test_more_or_fewer_ranks_share_the_rest_of_an_epoch_and_then_whole_epochs(
    client: Client, tmp_path: Path, before: Size, kill: int, after: Size, steps: list[int], dropped: list[int]
) -> None:
    account = Account.of(client, tmp_path, before, kill, after)
    assert account.steps == steps
    assert all(len(set(epoch)) == len(epoch) for epoch in account.samples)
    assert [len(epoch) for epoch in account.samples] == [SAMPLES - each for each in dropped]


@pytest.mark.parametrize(("after", "steps"), [(Size(world=2), [3, 3]), (Size(world=2, steps=2), [2, 2])], ids=str)
def test_an_epoch_with_no_step_left_is_complete_and_its_receipt_counts_the_dropped_samples(
    client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str], after: Size, steps: list[int]
) -> None:
    train(client, tmp_path, Size(), kill=6)
    run = train(client, tmp_path, after, rank=1)
    assert [len(steps) for steps in run.epochs] == steps
    said = [(each.epoch, each.complete, each.ok, each.samples, each.dropped) for each in run.receipts]
    assert said[0] == (0, True, True, 48, 4)
    assert (
        "interrupted epoch is less than one step, so that epoch is over, and it is not validated"
        in capfd.readouterr().err
    )


def test_a_state_saved_within_a_batch_is_refused_in_another_world(client: Client, tmp_path: Path) -> None:
    train(client, tmp_path, Size(world=2, batch_size=4), kill=1)
    with pytest.raises(TokenError, match=r"within a batch, after 4 rows, with world=2: .*world=2.*world=1"):
        train(client, tmp_path, Size())


def test_a_run_killed_several_times_in_an_epoch_resumes_with_steps_of_each_size(
    client: Client, tmp_path: Path, order: list[int]
) -> None:
    # Keras begins one step more than a rest has.
    parts = [(Size(steps=5), 1), (Size(), 2), (Size(batch_size=4), 1), (Size(), 4)]
    runs = [train(client, tmp_path, size, kill=kill).epochs for size, kill in parts]
    assert [[len(steps) for steps in run] for run in runs] == [[1], [2], [1], [2, 1]]
    taken = [sample for run in runs for steps in run for step in steps for sample in step]
    assert taken == order[: len(taken)]
    assert [len(steps) for steps in train(client, tmp_path, Size()).epochs] == [1, 7]
