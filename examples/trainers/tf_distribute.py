"""tf.distribute: replicas that share each batch, on two devices:  python tf_distribute.py RUN

Start it again after a crash: it goes on after the last saved step, and the result is the same to the bit.
RUN/receipts-0.jsonl says which samples each epoch had; `streamd verify` adds it up.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import tensorflow as tf

import streamd
from streamd.frameworks.keras import ResumeCallback, fit_data, normalization

EPOCHS = 3


def main(run: Path) -> None:
    """Trains until EPOCHS are done, and saves every ten steps and after each epoch."""
    keras.utils.set_random_seed(0)
    tf.config.experimental.enable_op_determinism()
    # Two halves of the processor stand for two GPUs, which MirroredStrategy() finds by itself.
    halves = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], halves)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    with (
        streamd.connect() as client,
        client.subscribe("train") as stream,
        client.subscribe("validation") as held_back,
    ):
        data = fit_data(stream)
        with strategy.scope():
            layers = [normalization(stream.spec), keras.layers.Conv2D(8, 3, 2, activation="relu")]
            layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(len(data.class_names))]
            model = keras.Sequential([keras.Input(stream.spec.image_shape, dtype="uint8"), *layers])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
        resume = ResumeCallback(data, run, every=10)
        model.fit(data, validation_data=fit_data(held_back), epochs=EPOCHS, callbacks=[resume], verbose=2)
        model.save_weights(run / "model.weights.h5")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
