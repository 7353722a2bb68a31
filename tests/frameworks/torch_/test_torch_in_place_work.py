"""A loop may write to the batches of `loader` on the CPU: later batches and other trainers never see that."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import pytest
from support import torch_fake
from support.daemon_process import DaemonProcess
from support.forked_child import in_a_forked_child

import streamd
from streamd.client import Stream, io_thread
from streamd.frameworks.torch import loader, tensor

BATCHES: Final = 5
SHAPE: Final = (8 * BATCHES, 32, 32, 3)  # a batch has several pages


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Serves pixels that all are their sample's number, in memory for few batches, so that slots are used again."""
    place = tmp_path_factory.mktemp("d")
    np.save(place / "images.npy", np.broadcast_to(np.arange(SHAPE[0], dtype=np.uint8)[:, None, None, None], SHAPE))
    np.save(place / "numbers.npy", np.arange(SHAPE[0]))
    served = {
        "source": {"kind": "npy", "path": str(place / "images.npy")},
        "labels": {"number": {"from": str(place / "numbers.npy"), "type": "int"}},
        "image": {"size": "stored"},
        "batch_size": 8,
    }
    with DaemonProcess(place, {"memory": "1MiB", "streams": {"train": served}}) as process:
        yield process


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_fake.make())


def read_pixels(images: Any) -> list[int]:
    """The number that all pixels of each row are."""
    rows = np.asarray(images).reshape(len(images), -1)
    assert (rows == rows[:, :1]).all()
    numbers: list[int] = rows[:, 0].tolist()
    return numbers


def cut_out(images: Any) -> None:
    images[:, :, :8, :8] = 255


def overwrite(images: Any) -> None:
    images[...] = 255


@pytest.mark.long
@pytest.mark.parametrize("write", [cut_out, overwrite])
@pytest.mark.parametrize("settings", [{}, {"batch_size": 4}, {"batch_size": 16}, {"prefetch": 2}], ids=str)
def test_a_loop_that_writes_sees_each_batch_as_it_is(
    daemon: DaemonProcess, write: Callable[[Any], None], settings: dict[str, Any]
) -> None:
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train", epochs=6, **settings) as stream:
        for epoch in loader(stream).epochs():
            seen = []
            for images, numbers in epoch:
                assert read_pixels(images) == numbers.tolist()
                seen += numbers.tolist()
                write(images)
            assert sorted(seen) == list(range(SHAPE[0]))
    assert [(each.complete, each.ok) for each in stream.receipts] == [(True, True)] * 6


def take_pairs(one: Stream, other: Stream) -> Iterator[tuple[Any, Any]]:
    data = loader(one)
    for epoch in range(4):
        yield from zip(data, next(other.epochs()), strict=True)
        assert one.epoch == epoch + 1


@pytest.mark.long
def test_another_trainer_of_the_same_batch_sees_nothing_of_it(daemon: DaemonProcess) -> None:
    with (
        streamd.connect(daemon.endpoint) as client,
        client.subscribe("train") as writing,
        client.subscribe("train") as reading,
    ):
        for (images, numbers), batch in take_pairs(writing, reading):
            images[...] = 255
            assert read_pixels(batch.images) == batch.labels["number"].tolist() == numbers.tolist()
            with pytest.raises(ValueError, match="read-only"):
                batch.images[:] = 0


@pytest.mark.long
def test_what_was_written_stays_in_a_tensor_that_is_kept(daemon: DaemonProcess) -> None:
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train", epochs=4) as stream:
        batches = iter(stream)
        first, second = tensor(next(batches).images), tensor(next(batches).images)
        first[...] = 255
        second[::2] = 254
        before = read_pixels(second)
        for batch in batches:
            assert read_pixels(batch.images) == batch.labels["number"].tolist()
            tensor(batch.images)[...] = 253
            del batch
    assert (first == 255).all()
    assert read_pixels(second) == before


@pytest.mark.long
def test_pixels_that_come_by_socket_may_be_written(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> memoryview:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(io_thread, "map_private", refuse)
    monkeypatch.setattr(io_thread, "map_readable", refuse)
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train", epochs=2) as stream:
        for epoch in loader(stream).epochs():
            for images, numbers in epoch:
                assert read_pixels(images) == numbers.tolist()
                images[...] = 255
    assert [each.ok for each in stream.receipts] == [True, True]


@pytest.mark.long
def test_a_forked_child_writes_to_copies_of_its_own(daemon: DaemonProcess) -> None:
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train", epochs=3) as stream:
        tensor(next(iter(stream)).images)  # from here on, slots are mapped privately
        for images, numbers in loader(stream):
            assert in_a_forked_child(partial(overwrite, images)) == 0
            assert read_pixels(images) == numbers.tolist()
            images[::2] = 7
            assert in_a_forked_child(partial(overwrite, images)) == 0
            assert read_pixels(images[1::2]) == numbers.tolist()[1::2]
