"""Run with torch's own Python, beside a daemon that serves scenes: learns from several pictures a sample.

python scenes_torch_program.py ENDPOINT
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy, mse_loss

import streamd
from streamd.client import Client
from streamd.errors import ConfigError
from streamd.frameworks.torch import loader, normalization

PICTURES = ("photo", "far", "height", "glass")
Step = Callable[[Any, Any, Any], Any]  # (images, labels, weights) -> loss


def train(client: Client, model: Any, measure_loss: Step, rate: float, **chosen: Any) -> list[float]:
    """Trains for four epochs, with the weights of samples, and returns the loss of each."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    losses = []
    with client.subscribe("train", epochs=4) as stream:
        data = loader(stream, weights=True, **chosen)
        for _ in range(4):
            losses.append(0.0)
            for images, labels, weights in data:
                loss = measure_loss(images, labels, weights)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses[-1] += loss.item()
    assert [(each.ok, each.bad) for each in stream.receipts] == [(True, 1)] * 4
    return losses


def check_pictures_to_label(client: Client) -> None:
    """uint8, uint16, float32 and RGBA lead to one number, each by its own normalization."""
    spec = client.spec("train")
    layers = torch.nn.ModuleDict({name: normalization(spec, name) for name in PICTURES})
    head = torch.nn.Linear(16 * 16 * (3 + 1 + 1 + 4), 1)

    def measure(images: dict[str, Any], labels: Any, weights: Any) -> Any:
        joined = torch.cat([layers[name](images[name]).flatten(1) for name in PICTURES], dim=1)
        return (mse_loss(head(joined)[:, 0], labels, reduction="none") * weights).mean()

    losses = train(client, torch.nn.ModuleList([layers, head]), measure, 1e-3, inputs=PICTURES, targets="x")
    assert losses[-1] < losses[0], losses


def check_photo_to_mask(client: Client) -> None:
    """Class numbers are int64, as cross_entropy takes them; those of a masked row are 255."""
    spec = client.spec("train")
    model = torch.nn.Sequential(normalization(spec, "photo"), torch.nn.Conv2d(3, 2, 3, padding=1))

    def measure(photos: Any, masks: Any, weights: Any) -> Any:
        assert (masks.dtype, tuple(masks.shape)) == (torch.int64, (len(photos), 16, 16))
        each = cross_entropy(model(photos), masks, ignore_index=255, reduction="none")
        return (each * weights[:, None, None]).mean()

    losses = train(client, model, measure, 0.05, inputs="photo", targets="mask")
    assert losses[-1] < losses[0], losses


def check_views_and_autoencoder(client: Client) -> None:
    """Views stay behind the batch; an image that is learned has its channels where those of the input are."""
    with client.subscribe("plain", epochs=1) as stream:
        rows = [len(images) for images, labels in loader(stream, inputs="pair", targets=None) if labels == {}]
    assert sorted(rows) == [3, 4, 4, 4, 4, 4], rows
    with client.subscribe("plain", epochs=1) as stream:
        pair, far = next(iter(loader(stream, inputs="pair", targets=["far"])))
    assert tuple(pair.shape[1:]) == (2, 3, 16, 16)
    assert (tuple(far.shape[1:]), far.dtype) == ((1, 16, 16), torch.uint16)
    assert normalization(stream.spec, "pair")(pair).dtype == torch.float32


def check_boxes_and_default_choice(client: Client) -> None:
    with client.subscribe("plain", epochs=1) as stream:
        images, labels = next(iter(loader(stream)))
    assert list(images) == ["photo", "far", "height", "glass", "pair"]
    assert {name: (tuple(each.shape[1:]), each.dtype) for name, each in labels.items()} == {
        "x": ((), torch.float32),
        "side": ((), torch.int64),
        "boxes": ((2, 5), torch.float32),
        "mask": ((16, 16), torch.int64),
    }


def check_weights_are_asked_for(client: Client) -> None:
    with client.subscribe("train", epochs=1) as stream:
        reason = ""
        try:
            loader(stream)
        except ConfigError as error:
            reason = str(error)
    assert "loader(stream, weights=True)" in reason


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with streamd.connect(sys.argv[1]) as connected:
        check_pictures_to_label(connected)
        check_photo_to_mask(connected)
        check_views_and_autoencoder(connected)
        check_boxes_and_default_choice(connected)
        check_weights_are_asked_for(connected)
