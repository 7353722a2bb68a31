"""A network that looks at each frame with the same eyes, and then at what has changed between them."""

from __future__ import annotations

import keras
from keras import layers

FRAMES, HEIGHT, WIDTH = 3, 32, 64
EPOCHS = 10


def build_driver() -> keras.Model:
    """Returns a model from clips (B, 3, 32, 64, 3) to the angle a little later, in degrees (B, 1)."""
    clip = keras.Input((FRAMES, HEIGHT, WIDTH, 3), name="clip")
    steps: list[keras.Layer] = [layers.Rescaling(1 / 127.5, -1)]
    for channels in (12, 24, 32):
        steps += [layers.Conv2D(channels, 3, strides=2, activation="relu")]
    eye = keras.Sequential([*steps, layers.Flatten(), layers.Dense(16, activation="relu")], name="eye")
    x = layers.Flatten()(layers.TimeDistributed(eye)(clip))
    model = keras.Model(clip, layers.Dense(1)(layers.Dense(32, activation="relu")(x)))
    model.compile(keras.optimizers.Adam(0.002), "mse", metrics=["mae"])
    return model
