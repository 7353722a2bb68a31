"""Data-parallel training in JAX on many hosts, each with a daemon of its own.

    python train_jax.py HOST:29500 2 0 RUN        # the first host's address, the number of hosts, this host's number

Run it on every host, beside `streamd serve` with the same configuration. Each process takes its share of the batches
from the daemon of its own host, and all shares together are one array over the devices of all hosts.
RUN/receipts-RANK.jsonl gets the receipts, which `streamd verify` adds up.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import streamd
from streamd.client import Batch
from streamd.frameworks.receipt_file import ReceiptFile, receipt_file_path

EPOCHS = 2
RATE = 0.001


def compute_loss(weights: Any, images: Any, labels: Any) -> Any:
    """The loss of a linear classifier, over the batches of all hosts."""
    flat = images.reshape(images.shape[0], -1).astype(jnp.float32) / 255
    chosen = jax.nn.log_softmax(flat @ weights)
    return -jnp.mean(jnp.take_along_axis(chosen, labels[:, None], axis=1))


@jax.jit
def train_step(weights: Any, images: Any, labels: Any) -> tuple[Any, Any]:
    """One step of gradient descent; JAX adds up the gradients of all hosts."""
    loss, gradient = jax.value_and_grad(compute_loss)(weights, images, labels)
    return weights - RATE * gradient, loss


def share_batch(batch: Batch, sharding: NamedSharding) -> tuple[Any, Any]:
    """Makes this host's batch its part of the arrays of all hosts."""
    return (
        jax.make_array_from_process_local_data(sharding, batch.images.copy()),
        jax.make_array_from_process_local_data(sharding, batch.labels["label"].astype(np.int32)),
    )


def main(coordinator: str, processes: int, process: int, run: Path) -> None:
    """Trains as one of the processes."""
    jax.distributed.initialize(coordinator, processes, process)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), "hosts"), PartitionSpec("hosts"))
    rank, world = jax.process_index(), jax.process_count()
    with streamd.connect() as client, client.subscribe("train", epochs=EPOCHS, rank=rank, world=world) as stream:
        height, width, channels = stream.spec.image_shape
        weights = jnp.zeros((height * width * channels, len(stream.spec.labels["label"].classes)))
        receipts = ReceiptFile(receipt_file_path(run, rank))
        for number, epoch in enumerate(stream.epochs()):
            for batch in epoch:
                weights, loss = train_step(weights, *share_batch(batch, sharding))
            receipts.append_new_receipts(stream.receipts)
            print(f"rank {rank} of {world}, epoch {number}: loss {float(loss):.3f}", flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
