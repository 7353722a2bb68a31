"""A network that sees three frames at once, as nine channels."""

from __future__ import annotations

import keras
from keras import layers

EPOCHS = 20


def build_foreteller() -> keras.Model:
    """Returns a model from clips (B, 3, 32, 48, 3) to the next angle in degrees (B, 1)."""
    clip = keras.Input((3, 32, 48, 3))
    x = layers.Reshape((32, 48, 9))(layers.Permute((2, 3, 1, 4))(clip))
    x = layers.Rescaling(1 / 127.5, -1)(x)
    for channels in (16, 24, 32):
        x = layers.Conv2D(channels, 3, strides=2, activation="relu")(x)
    x = layers.Dense(32, activation="relu")(layers.Flatten()(x))
    model = keras.Model(clip, layers.Dense(1)(x))
    model.compile(keras.optimizers.Adam(0.002), "mse", metrics=["mae"])
    return model
