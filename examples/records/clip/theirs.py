"""The same with tf.data."""

import csv
from collections import defaultdict

import numpy as np
import tensorflow as tf
from model import EPOCHS, FRAMES, HEIGHT, WIDTH, build_driver

OFFSETS = (-4, -2, 0)
BATCH = 16


def read(paths, angle):
    frames = tf.map_fn(read_photo, paths, fn_output_signature=tf.uint8)
    return tf.ensure_shape(frames, (FRAMES, HEIGHT, WIDTH, 3)), angle


def read_photo(path):
    return tf.io.decode_jpeg(tf.io.read_file(path), 3, dct_method="INTEGER_ACCURATE")


def load(split):
    with open("frames.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == split]
    drives = defaultdict(list)
    for row in rows:
        drives[row["drive"]].append((int(row["frame"]), row["photo"]))
    for drive in drives.values():
        drive.sort()
    clips, angles = [], []
    for row in rows:
        drive = drives[row["drive"]]
        place = drive.index((int(row["frame"]), row["photo"]))
        wanted = [place + offset for offset in OFFSETS]
        if min(wanted) >= 0 and max(wanted) < len(drive):
            clips.append([drive[each][1] for each in wanted])
            angles.append(float(row["next_angle"]))
    return tf.data.Dataset.from_tensor_slices((clips, np.array(angles, np.float32)))


train = load("train").shuffle(1000).map(read, tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)
validation = load("validation").map(read, tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)

model = build_driver()
history = model.fit(train, validation_data=validation, epochs=EPOCHS, verbose=2)
