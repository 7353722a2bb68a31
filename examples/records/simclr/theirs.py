"""The same with tf.data."""

from pathlib import Path

import tensorflow as tf
from model import EPOCHS, SimCLR, judge

SIZE = (32, 32)
BATCH = 64


def read(path):
    return tf.io.decode_jpeg(tf.io.read_file(path), 3, dct_method="INTEGER_ACCURATE")


def crop(photo):
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.shape(photo), tf.zeros((1, 0, 4)), area_range=(0.2, 0.8), use_image_if_no_bounding_boxes=True
    )
    return scale(tf.slice(photo, begin, size))


def scale(photo):
    return tf.cast(tf.round(tf.image.resize(photo, SIZE, antialias=True)), tf.uint8)


def read_views(path):
    photo = read(path)
    return tf.stack([crop(photo), crop(photo)])


def read_labelled(path, pattern):
    photo = read(path)
    side = tf.reduce_min(tf.shape(photo)[:2])
    return scale(tf.image.resize_with_crop_or_pad(photo, side, side)), pattern


paths = sorted(map(str, Path("train").glob("*/*.jpg")))
train = tf.data.Dataset.from_tensor_slices(paths).shuffle(1000).map(read_views, tf.data.AUTOTUNE)
train = train.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

paths = sorted(map(str, Path("validation").glob("*/*.jpg")))
patterns = sorted({Path(path).parent.name for path in paths})
labels = [patterns.index(Path(path).parent.name) for path in paths]
validation = tf.data.Dataset.from_tensor_slices((paths, labels)).map(read_labelled, tf.data.AUTOTUNE).batch(BATCH)

model = SimCLR()
history = model.fit(train, epochs=EPOCHS, verbose=2)
score = judge(model.encoder, validation)
print(f"validation: {score:.0%} of the nearest neighbours have the same pattern")
