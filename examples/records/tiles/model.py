"""A small network for tiles of four channels, whose numbers it gets as they are stored."""

from __future__ import annotations

import keras
from keras import layers

GROUNDS = ("lawn", "meadow", "sand", "water")
EPOCHS = 8


def build_judge(normalization: keras.Layer) -> keras.Model:
    """Returns a model from tiles (B, 32, 32, 4) of uint16 to the scores of the grounds (B, 4)."""
    tile = keras.Input((32, 32, 4), dtype="uint16")
    x = normalization(tile)
    for channels in (12, 24):
        x = layers.Conv2D(channels, 3, strides=2, activation="relu")(x)
    model = keras.Model(tile, layers.Dense(len(GROUNDS))(layers.GlobalAveragePooling2D()(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model
