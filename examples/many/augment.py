"""Decode shared, augment private: run it twice at once, with a seed each.

    python augment.py 1 & python augment.py 2; wait

Both train on the same pixels, in the same memory. What differs between trainers is drawn by layers of their own models,
on the GPU if there is one; the first line of each tells what they made of the same batch.
"""

from __future__ import annotations

import sys
from zlib import crc32

import keras

import streamd
from streamd.frameworks.keras import fit_data, normalization

EPOCHS = 2


def main(seed: int) -> None:
    """Trains on images that are flipped by this seed."""
    with streamd.connect() as client, client.subscribe("train", epochs=EPOCHS) as stream:
        augment = keras.layers.RandomFlip("horizontal", seed=seed)
        model = keras.Sequential(
            [
                keras.Input(stream.spec.image_shape, dtype="uint8"),
                augment,
                normalization(stream.spec),
                keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(len(stream.spec.labels["label"].classes), activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
        shared = client.batch("train", 0, 0).images
        private = keras.ops.convert_to_numpy(augment(shared, training=True))
        print(
            f"seed {seed}: from the same {crc32(shared.tobytes()):08x} it made {crc32(private.tobytes()):08x}",
            flush=True,
        )
        model.fit(fit_data(stream), epochs=EPOCHS, verbose=0)
        print(f"seed {seed}: {stream.receipts[-1]}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
