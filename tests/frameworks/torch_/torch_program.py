"""Run with torch's own Python, beside a daemon: checks what a loader gives to torch itself. A failed check ends it.

python torch_program.py ENDPOINT
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from support.stream_fake import ANGLE, KIND, FakeStream, make_spec
from torch.utils.data import DataLoader

import streamd
from streamd.errors import ConfigError
from streamd.frameworks.torch import loader, normalization


def check_memory() -> None:
    stream = FakeStream(make_spec(KIND))
    steps = iter(loader(stream))
    images, labels = next(steps)
    assert images.shape == (4, 3, 8, 8)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
    assert images[:, 0, 0, 0].tolist() == stream.ids(0, 0).tolist()
    row = images[1]
    del images
    assert stream.leases == 1, "a view of the images holds the lease"
    del row
    assert stream.leases == 0, "nothing else holds the lease"
    given, kind = next(iter(loader(FakeStream(make_spec(ANGLE, KIND)), channels_first=False, inputs="angle")))
    assert (given["images"].shape, given["angle"].dtype, kind.shape) == ((4, 8, 8, 3), torch.float32, (4,))


def check_shape() -> None:
    """(images, labels) without the rows of weight 0; on request with all rows and their weights."""
    spec = make_spec(ANGLE, KIND, bad_policy="mask")
    stream = FakeStream(spec, weightless=frozenset(FakeStream(spec).ids(0, 0)[1:3].tolist()))
    images, labels = next(iter(loader(stream)))
    assert stream.leases == 0, "what is left of a batch is a copy"
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert images[:, 0, 0, 0].tolist() == stream.ids(0, 0)[[0, 3]].tolist()
    assert [(name, len(label)) for name, label in labels.items()] == [("angle", 2), ("kind", 2)]
    _, kinds, weights = next(iter(loader(FakeStream(spec, weightless=stream.weightless), targets="kind", weights=True)))
    assert (weights.dtype, weights.tolist()) == (torch.float32, [1, 0, 0, 1])
    assert (kinds.dtype, kinds.shape) == (torch.int64, (4,))
    assert next(iter(loader(FakeStream(make_spec()))))[1] == {}


def reason(call: Callable[[], object]) -> str:
    """Why it is refused."""
    try:
        call()
    except ConfigError as error:
        return str(error)
    raise AssertionError("it was not refused")


def check_refusals() -> None:
    data = loader(FakeStream(make_spec(KIND)))

    def wrap(settings: dict[str, Any]) -> object:
        return next(iter(DataLoader(data, **settings)))

    for settings in ({}, {"batch_size": None}, {"shuffle": True}, {"num_workers": 1}):
        assert "in place of the DataLoader" in reason(partial(wrap, settings))
    for device in ("nonsense", "cuda:9"):
        assert repr(device) in reason(partial(loader, data.stream, device))


def check_training(endpoint: str) -> None:
    """Two epochs of a network that has to tell dark images from bright ones."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with streamd.connect(endpoint) as client, client.subscribe("train", epochs=3) as stream:
        data = loader(stream)
        model = torch.nn.Sequential(
            normalization(stream.spec), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 2)
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            assert len(data) == 4
            losses.append(0.0)
            for images, labels in data:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses[-1] += loss.item()
    assert [(each.samples, each.ok, each.complete) for each in stream.receipts] == [(30, True, True)] * 3
    assert all(later < earlier for earlier, later in pairwise(losses)), losses


def check_validation(endpoint: str) -> None:
    """The loop of a training over a stream with an image that cannot be read, which its daemon masks."""
    with streamd.connect(endpoint) as client, client.subscribe("validation", epochs=1) as stream:
        dark = [int((labels == 1).sum()) for images, labels in loader(stream) if len(images) == len(labels)]
        assert dark == [0, 1, 7, 6]
    assert [(each.samples, each.bad, each.ok) for each in stream.receipts] == [(29, 1, True)]


if __name__ == "__main__":
    check_memory()
    check_shape()
    check_refusals()
    check_training(sys.argv[1])
    check_validation(sys.argv[1])
