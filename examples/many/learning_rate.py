"""A learning-rate search: four trainers on one stream, started when it suits.

    for rate in 0.01 0.003 0.001 0.0003; do python learning_rate.py $rate & sleep 2; done; wait

Each takes every batch of its epochs, at its own pace. One that comes seconds late draws level by itself, and from then
on each batch is decoded once for all four, as the last line of each tells, and `streamd status` at any time.
"""

from __future__ import annotations

import sys

import numpy as np
from softmax import Softmax

import streamd

EPOCHS = 5


def search(rate: float) -> None:
    """Trains at one learning rate, and says what came of it."""
    with streamd.connect() as client, client.subscribe("train", epochs=EPOCHS, name=f"lr-{rate:g}") as stream:
        model = Softmax(stream.spec)
        for batches in stream.epochs():
            losses = []
            for batch in batches:
                loss, gradient = model.gradient(batch)
                model.weights -= rate * gradient
                losses.append(loss)
            print(f"rate {rate:g}: loss {np.mean(losses):.3f}", flush=True)
        decodes = {each.name: each.decodes_per_batch for each in client.status().streams}["train"]
    print(f"rate {rate:g}: {decodes:.2f} decodes a batch, of all trainers", flush=True)


if __name__ == "__main__":
    search(float(sys.argv[1]))
