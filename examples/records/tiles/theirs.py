"""The same with tf.data, which reads no TIFF: another library does, in Python."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
import tifffile
from model import EPOCHS, GROUNDS, build_judge

BATCH = 16


def read(path, ground):
    return tf.ensure_shape(tf.numpy_function(read_tile, [path], tf.uint16), (32, 32, 4)), ground


def read_tile(path):
    tile = tifffile.imread(path.decode())
    if tile.shape != (4, 32, 32) or tile.dtype != np.uint16:
        raise ValueError(f"{path.decode()} has {tile.shape} of {tile.dtype}")
    return np.moveaxis(tile, 0, -1).copy()


def load(part):
    paths = sorted(map(str, Path(part).glob("*/*.tif")))
    return tf.data.Dataset.from_tensor_slices((paths, [GROUNDS.index(Path(path).parent.name) for path in paths]))


train = load("train").shuffle(1000).map(read, tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)
validation = load("validation").map(read, tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)

model = build_judge(keras.layers.Rescaling(1 / 10_000))
history = model.fit(train, validation_data=validation, epochs=EPOCHS, verbose=2)
