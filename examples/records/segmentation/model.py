"""A small U-Net: halves the photo three times, and joins what each step saw on the way back."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

CLASSES = 4  # cloth, apple, lime, plum
EPOCHS = 8
STEPS = (8, 16, 24)  # channels before each halving


def convolve(x: Any, channels: int) -> Any:
    """Two convolutions, which look at the neighbours of each pixel."""
    for _ in range(2):
        x = layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    return x


def build_unet() -> keras.Model:
    """Returns a model from photos (B, H, W, 3) to scores (B, H, W, classes); H and W are multiples of 8."""
    photo = keras.Input((None, None, 3), name="photo")
    x, seen = layers.Rescaling(1 / 255)(photo), []
    for channels in STEPS:
        x = convolve(x, channels)
        seen.append(x)
        x = layers.MaxPooling2D()(x)
    x = convolve(x, 2 * STEPS[-1])
    for channels, before in zip(reversed(STEPS), reversed(seen), strict=True):
        x = convolve(layers.Concatenate()([layers.UpSampling2D()(x), before]), channels)
    model = keras.Model(photo, layers.Conv2D(CLASSES, 1)(x))
    model.compile(
        keras.optimizers.Adam(0.005),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.MeanIoU(CLASSES, sparse_y_pred=False, name="iou")],
    )
    return model
