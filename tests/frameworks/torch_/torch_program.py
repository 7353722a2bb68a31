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
from streamd.core.spec import ImageSpec
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


def check_several_images() -> None:
    """Every dtype and shape, with and without a masked row; class numbers are ready for cross_entropy."""
    images = {
        "photo": ImageSpec(8, 6, 3, normalize="unit"),
        "tiles": ImageSpec(4, 5, 4, mode="raw", dtype="uint16", normalize="unit"),
        "depth": ImageSpec(4, 5, 1, mode="raw", dtype="float32"),
        "pair": ImageSpec(8, 6, 3, views=2),
        "mask": ImageSpec(8, 6, 1, mode="index", dtype="uint16"),
    }
    spec = make_spec(images=images, bad_policy="mask")
    for left_out in (0, 1):
        stream = FakeStream(spec, weightless=frozenset(FakeStream(spec).ids(0, 0)[:left_out].tolist()))
        given, mask = next(iter(loader(stream)))
        assert {name: (tuple(each.shape[1:]), each.dtype, len(each)) for name, each in given.items()} == {
            "photo": ((3, 8, 6), torch.uint8, 4 - left_out),
            "tiles": ((4, 4, 5), torch.uint16, 4 - left_out),
            "depth": ((1, 4, 5), torch.float32, 4 - left_out),
            "pair": ((2, 3, 8, 6), torch.uint8, 4 - left_out),
        }
        scores = torch.nn.Conv2d(3, 16, 1)(normalization(spec, "photo")(given["photo"]))
        assert torch.nn.functional.cross_entropy(scores, mask).isfinite()
        assert normalization(spec, "pair")(given["pair"]).shape == given["pair"].shape


def check_half_precision() -> None:
    """A model of 16 bits gets finite numbers of its own type; the buffers are moved and never cast."""
    spec = make_spec(images={"tiles": ImageSpec(2, 2, 1, mode="raw", dtype="uint16", normalize="unit")})
    layer = torch.nn.Sequential(normalization(spec)).half()
    normalized = layer(torch.full((1, 1, 2, 2), 65535, dtype=torch.int32).to(torch.uint16))
    assert (normalized.dtype, normalized.max().item()) == (torch.float16, 1.0)
    assert {name: each.dtype for name, each in layer.state_dict().items()} == {
        "0.mean": torch.float32,
        "0.std": torch.float32,
    }
    moved = layer.to("meta")
    assert moved[0].mean.device.type == "meta"
    assert moved.to_empty(device="cpu")[0].mean.device.type == "cpu"


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
    check_several_images()
    check_half_precision()
    check_refusals()
    check_training(sys.argv[1])
    check_validation(sys.argv[1])
