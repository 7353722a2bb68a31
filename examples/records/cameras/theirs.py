"""The same with tf.data."""

import csv

import numpy as np
import tensorflow as tf
from model import CAMERAS, EPOCHS, build_driver

SIZE = (48, 96)
BATCH = 16


def read(paths, angle):
    return {name: read_photo(paths[name]) for name in CAMERAS}, angle


def read_photo(path):
    photo = tf.io.decode_jpeg(tf.io.read_file(path), 3, dct_method="INTEGER_ACCURATE")
    photo = tf.image.resize(photo, SIZE, antialias=True)
    return tf.cast(tf.round(photo), tf.uint8)


def load(split):
    with open("drive.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == split]
    angles = np.array([row["angle"] for row in rows], np.float32)
    return tf.data.Dataset.from_tensor_slices(({name: [row[name] for row in rows] for name in CAMERAS}, angles))


train = load("train").shuffle(1000).map(read, tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)
validation = load("validation").map(read, tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)

model = build_driver()
history = model.fit(train, validation_data=validation, epochs=EPOCHS, verbose=2)
