"""The same with tf.data: each frame is read and decoded once for every clip that it is in."""

import csv
from collections import defaultdict

import tensorflow as tf
from model import EPOCHS, build_foreteller

OFFSETS = (-4, -2, 0)
SIZE = (32, 48)
BATCH = 16


def read(paths, angle):
    clip = tf.map_fn(read_frame, paths, fn_output_signature=tf.uint8)
    return tf.ensure_shape(clip, (len(OFFSETS), *SIZE, 3)), angle


def read_frame(path):
    frame = tf.io.decode_jpeg(tf.io.read_file(path), 3, dct_method="INTEGER_ACCURATE")
    return tf.cast(tf.round(tf.image.resize(frame, SIZE, antialias=True)), tf.uint8)


def load(split):
    swings = defaultdict(list)
    with open("frames.csv", newline="") as file:
        for row in csv.DictReader(file):
            if row["split"] == split:
                swings[row["swing"]].append(row)
    clips, angles = [], []
    for rows in swings.values():
        rows.sort(key=lambda row: int(row["frame"]))
        for place in range(-min(OFFSETS), len(rows) - max(OFFSETS)):
            clips.append([rows[place + offset]["path"] for offset in OFFSETS])
            angles.append(float(rows[place]["next_angle"]))
    return tf.data.Dataset.from_tensor_slices((clips, angles))


train = load("train").shuffle(1000).map(read, tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)
validation = load("validation").map(read, tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)

model = build_foreteller()
history = model.fit(train, validation_data=validation, epochs=EPOCHS, verbose=2)
