"""A loop in JAX with Flax and Optax, which goes on where it stopped:  python jax_flax.py RUN

Start it again after a crash: parameters, optimizer and position in the data come from RUN/checkpoint.msgpack, and the
result is the same to the bit. RUN/receipts-0.jsonl says which samples each epoch had; `streamd verify` adds it up.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import optax
from flax import linen, serialization
from flax.training.train_state import TrainState

import streamd
from streamd.frameworks.jax import array, normalization
from streamd.frameworks.receipt_file import ReceiptFile, receipt_file_path

EPOCHS = 3


def main(run: Path) -> None:
    """Trains until EPOCHS are done, and saves every ten steps and after each epoch."""
    run.mkdir(exist_ok=True)
    checkpoint = run / "checkpoint.msgpack"
    with streamd.connect() as client, client.subscribe("train", epochs=EPOCHS) as stream:
        layers = [normalization(stream.spec), linen.Conv(8, (3, 3), 2), linen.relu, lambda each: each.mean((1, 2))]
        model = linen.Sequential([*layers, linen.Dense(len(stream.spec.labels["label"].classes))])
        params = model.init(jax.random.key(0), jax.numpy.zeros((1, *stream.spec.image_shape)))
        state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(0.01, momentum=0.9))
        receipts = ReceiptFile(receipt_file_path(run, stream.rank))
        if checkpoint.exists():
            saved = serialization.from_bytes({"state": state, "token": ""}, checkpoint.read_bytes())
            state = saved["state"]
            stream.seek(saved["token"])

        @jax.jit
        def train_step(state: TrainState, images: jax.Array, labels: jax.Array) -> tuple[TrainState, jax.Array]:
            def loss_of(params: dict) -> jax.Array:
                logits = state.apply_fn(params, images)
                return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

            loss, gradients = jax.value_and_grad(loss_of)(state.params)
            return state.apply_gradients(grads=gradients), loss

        def save() -> None:
            receipts.append_new_receipts(stream.receipts)  # before the state from which the next epoch follows
            new = run / "new.msgpack"
            new.write_bytes(serialization.to_bytes({"state": state, "token": stream.token}))
            new.replace(checkpoint)

        for batches in stream.epochs():
            for step, batch in enumerate(batches, 1):
                state, loss = train_step(state, array(batch.images), array(batch.labels["label"]))
                if step % 10 == 0:
                    save()
            save()
            print(f"epoch {stream.epoch} of {EPOCHS} done: loss {loss:.3f}", flush=True)
        (run / "weights.msgpack").write_bytes(serialization.to_bytes(state.params))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
