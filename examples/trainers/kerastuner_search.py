"""A search with KerasTuner, on any backend of Keras:  KERAS_BACKEND=torch python kerastuner_search.py RUN

Every trial trains on the same samples in the same order. Start it again after a crash: finished trials are kept, and
the interrupted one goes on where it stopped. RUN/filters-N/receipts-0.jsonl says which samples each trial had.
"""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import keras_tuner

import streamd
from streamd.frameworks.keras import ResumeCallback, fit_data, normalization

EPOCHS = 3


class Classifier(keras_tuner.HyperModel):
    """What is searched, and how a trial trains."""

    def __init__(self, client: streamd.Client, run: Path) -> None:
        super().__init__()
        self.client, self.run = client, run

    def build(self, hp: keras_tuner.HyperParameters) -> keras.Model:
        keras.utils.set_random_seed(0)
        spec = self.client.spec("train")
        images = keras.Input(spec.image_shape, dtype="uint8")
        filters = hp.Choice("filters", [4, 8])
        features = keras.layers.Conv2D(filters, 3, 2, activation="relu")(normalization(spec)(images))
        pooled = keras.layers.GlobalAveragePooling2D()(features)
        model = keras.Model(images, keras.layers.Dense(len(spec.labels["label"].classes))(pooled))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
        return model

    def fit(self, hp, model, *args, callbacks=(), **options):  # noqa: ANN001, ANN002, ANN003, ANN201 - KerasTuner's
        # Subscriptions of its own let each trial begin at epoch 0, and a folder of its own keeps its place apart.
        with self.client.subscribe("train") as train, self.client.subscribe("validation") as validation:
            data = fit_data(train)
            resume = ResumeCallback(data, self.run / f"filters-{hp.get('filters')}")
            options |= {"validation_data": fit_data(validation), "callbacks": [*callbacks, resume]}
            return model.fit(data, *args, epochs=EPOCHS, **options)


def main(run: Path) -> None:
    """Searches, and saves the weights of the best model."""
    with streamd.connect() as client:
        tuner = keras_tuner.GridSearch(
            Classifier(client, run), objective="val_loss", directory=run, project_name="search"
        )
        tuner.search(verbose=2)
        tuner.get_best_models()[0].save_weights(run / "model.weights.h5")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
