"""A loop of your own in Keras on TensorFlow, which goes on where it stopped:  python keras_loop.py RUN

Start it again after a crash: weights, optimizer and position in the data come from one checkpoint in RUN, and the
result is the same to the bit. RUN/receipts-0.jsonl says which samples each epoch had; `streamd verify` adds it up.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import tensorflow as tf

import streamd
from streamd.frameworks.keras import fit_data, normalization
from streamd.frameworks.receipt_file import ReceiptFile, receipt_file_path

EPOCHS = 3


def main(run: Path) -> None:
    """Trains until EPOCHS are done, and saves every ten steps and after each epoch."""
    keras.utils.set_random_seed(0)
    tf.config.experimental.enable_op_determinism()
    with streamd.connect() as client, client.subscribe("train", epochs=EPOCHS) as stream:
        data = fit_data(stream)
        layers = [normalization(stream.spec), keras.layers.Conv2D(8, 3, 2, activation="relu")]
        layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(len(data.class_names))]
        model = keras.Sequential([keras.Input(stream.spec.image_shape, dtype="uint8"), *layers])
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(model.trainable_variables)

        place = tf.Variable(stream.token)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, place=place)
        manager = tf.train.CheckpointManager(checkpoint, run / "checkpoints", max_to_keep=2)
        if manager.restore_or_initialize():
            stream.seek(place.numpy())
        receipts = ReceiptFile(receipt_file_path(run, stream.rank))

        @tf.function
        def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = loss_of(labels, model(images, training=True))
            optimizer.apply(tape.gradient(loss, model.trainable_variables))
            return loss

        def save() -> None:
            receipts.append_new_receipts(stream.receipts)  # before the state from which the next epoch follows
            place.assign(stream.token)
            manager.save()

        while stream.epoch < EPOCHS:
            for step, (images, labels) in enumerate(data, 1):
                loss = train_step(images, labels)
                if step % 10 == 0:
                    save()
            save()
            print(f"epoch {stream.epoch} of {EPOCHS} done: loss {loss:.3f}", flush=True)
        model.save_weights(run / "model.weights.h5")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
