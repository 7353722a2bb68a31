"""One trains while another evaluates each model that is saved:

    python train.py | python evaluate.py

Who trains says where a model lies, and goes on at once; the other tells what it is worth on the validation stream. A
subscription that is at rest between two models holds nobody up.
"""

from __future__ import annotations

import keras

import streamd
from streamd.frameworks.keras import fit_data, normalization

EPOCHS = 2


def main() -> None:
    """Saves a model after each epoch, and prints its file's name."""
    with streamd.connect() as client, client.subscribe("train", epochs=EPOCHS) as stream:
        model = keras.Sequential(
            [
                keras.Input(stream.spec.image_shape, dtype="uint8"),
                normalization(stream.spec),
                keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(len(stream.spec.labels["label"].classes), activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])

        def save(epoch: int, _logs: object) -> None:
            name = f"epoch-{epoch + 1}.keras"
            model.save(name)
            print(name, flush=True)

        told = keras.callbacks.LambdaCallback(on_epoch_end=save)
        model.fit(fit_data(stream), epochs=EPOCHS, verbose=0, callbacks=[told])


if __name__ == "__main__":
    main()
