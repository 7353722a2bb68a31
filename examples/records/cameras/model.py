"""A network that looks through all cameras with the same eyes, and then compares what they saw."""

from __future__ import annotations

import keras
from keras import layers

CAMERAS = ("left", "centre", "right")
EPOCHS = 12


def build_driver() -> keras.Model:
    """Returns a model from a dict of photos (B, 48, 96, 3) to the angle in degrees (B, 1)."""
    photos = {name: keras.Input((48, 96, 3), name=name) for name in CAMERAS}
    steps: list[keras.Layer] = [layers.Rescaling(1 / 127.5, -1)]
    for channels in (12, 24, 32):
        steps += [layers.Conv2D(channels, 5, strides=2, activation="relu")]
    eye = keras.Sequential([*steps, layers.Flatten(), layers.Dense(24, activation="relu")], name="eye")
    x = layers.Concatenate()([eye(photos[name]) for name in CAMERAS])
    model = keras.Model(photos, layers.Dense(1)(layers.Dense(16, activation="relu")(x)))
    model.compile(keras.optimizers.Adam(0.002), "mse", metrics=["mae"])
    return model
