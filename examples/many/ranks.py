"""Two data-parallel ranks: each takes every other batch, and both keep the same weights.

    python ranks.py

The ranks are threads here, to need no more than NumPy; on several GPUs or hosts they are processes, which subscribe in
the same way, or with rank="auto" where torchrun, srun or the like has started them. All ranks have equally many steps,
so that none waits for a gradient that never comes: batches that not every rank would get are dropped at an epoch's end,
and its receipt says how many samples these were.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
from softmax import Floats, Softmax

import streamd
from streamd.client import Client
from streamd.core.receipt import Receipt

WORLD = 2
EPOCHS = 2
RATE = 0.001


class Exchange:
    """Where the ranks meet after each step. Raises BrokenBarrierError when one of them stays away for a minute."""

    def __init__(self) -> None:
        self._gradients: dict[int, Floats] = {}
        self._meeting = Barrier(WORLD, timeout=60)

    def mean(self, rank: int, gradient: Floats) -> Floats:
        """Gives a gradient, and gets the mean of those of all ranks."""
        self._gradients[rank] = gradient
        self._meeting.wait()
        mean: Floats = np.mean([self._gradients[each] for each in range(WORLD)], axis=0)
        self._meeting.wait()  # nobody may give the next one before all have read these
        return mean


def train(client: Client, rank: int, exchange: Exchange) -> tuple[Softmax, list[Receipt]]:
    """One rank's model, which ends like every other's, and its receipts."""
    with client.subscribe("train", epochs=EPOCHS, rank=rank, world=WORLD) as stream:
        model = Softmax(stream.spec)
        for batch in stream:
            _, gradient = model.gradient(batch)
            model.weights -= RATE * exchange.mean(rank, gradient)
    return model, stream.receipts


def main() -> list[Softmax]:
    """Trains on all ranks at once, and tells what each of them got."""
    exchange = Exchange()
    with streamd.connect() as client, ThreadPoolExecutor(WORLD) as pool:
        trained = list(pool.map(lambda rank: train(client, rank, exchange), range(WORLD)))
    for rank, (_, receipts) in enumerate(trained):
        for one in receipts:
            print(f"rank {rank}, epoch {one.epoch}: {one.steps} steps, {one.samples} samples, {one.dropped} dropped")
    return [model for model, _ in trained]


if __name__ == "__main__":
    main()
