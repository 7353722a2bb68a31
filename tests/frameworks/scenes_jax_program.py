"""Run with JAX's own Python, beside a daemon that serves scenes: learns from several pictures a sample.

python scenes_jax_program.py ENDPOINT
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import streamd
from streamd.client import Client
from streamd.frameworks import import_library
from streamd.frameworks.jax import array, normalization

jax = import_library("jax", "jax", "what its arrays are tested for")
jnp = jax.numpy

PICTURES = ("photo", "far", "height", "glass")


def check_pictures_to_label(client: Client) -> None:
    """uint8, uint16, float32 and RGBA lead to one number, in one compiled step."""
    spec = client.spec("train")
    scale = {name: normalization(spec, name) for name in PICTURES}

    def measure_loss(weights: Any, images: dict[str, Any], x: Any, sample_weights: Any) -> Any:
        vectors = [scale[name](images[name]).reshape(len(x), -1) for name in PICTURES]
        found = jnp.concatenate(vectors, axis=1) @ weights
        return jnp.mean((found - x) ** 2 * sample_weights)

    def step(weights: Any, *batch: Any) -> Any:
        loss, slope = jax.value_and_grad(measure_loss)(weights, *batch)
        return weights - 1e-4 * slope, loss

    compiled = jax.jit(step)
    weights = jnp.zeros(16 * 16 * (3 + 1 + 1 + 4))
    losses = []
    with client.subscribe("train", epochs=4) as stream:
        for epoch in stream.epochs():
            losses.append(0.0)
            for batch in epoch:
                images = array({name: batch.arrays[name] for name in PICTURES})
                weights, loss = compiled(weights, images, array(batch.labels["x"]), array(batch.weights))
                losses[-1] += float(loss)
    assert [(each.ok, each.bad) for each in stream.receipts] == [(True, 1)] * 4
    assert losses[-1] < losses[0], losses


def check_types(client: Client) -> None:
    """Arrays keep the types of the stream; numbers of 64 bits have JAX's own width."""
    with client.subscribe("plain", epochs=1) as stream:
        batch = next(iter(stream))
        images, labels = array(batch.arrays), array(batch.labels)
        np.testing.assert_array_equal(images["far"], batch.arrays["far"])
        np.testing.assert_array_equal(labels["boxes"], batch.labels["boxes"])
    assert {name: str(each.dtype) for name, each in images.items()} == {
        "photo": "uint8",
        "mask": "uint8",
        "far": "uint16",
        "height": "float32",
        "glass": "uint8",
        "pair": "uint8",
    }
    scores = jnp.zeros((*images["mask"].shape, 2))
    counted = images["mask"] != 255
    chosen = jnp.take_along_axis(
        jax.nn.log_softmax(scores), jnp.where(counted, images["mask"], 0)[..., None].astype(int), axis=-1
    )
    assert jnp.isclose(-(chosen[..., 0] * counted).sum() / counted.sum(), np.log(2), rtol=1e-3)


if __name__ == "__main__":
    with streamd.connect(sys.argv[1]) as connected:
        check_pictures_to_label(connected)
        check_types(connected)
