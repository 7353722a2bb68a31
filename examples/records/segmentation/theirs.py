"""The same with tf.data: the crop of a photo and that of its mask have to be kept equal by hand."""

from pathlib import Path

import numpy as np
import tensorflow as tf
from model import EPOCHS, build_unet
from PIL import Image

SIZE = (64, 64)
BATCH = 16


def read(photo, mask):
    photo = tf.io.decode_jpeg(tf.io.read_file(photo), 3, dct_method="INTEGER_ACCURATE")
    mask = tf.numpy_function(read_mask, [mask], tf.uint8)
    return photo, tf.ensure_shape(mask, (None, None))


def read_mask(path):
    # tf.io.decode_png would give the colours of the palette, not its numbers.
    with Image.open(path.decode()) as mask:
        return np.array(mask)


def crop(photo, mask):
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.shape(photo), tf.zeros((1, 0, 4)), area_range=(0.3, 1.0), use_image_if_no_bounding_boxes=True
    )
    photo = tf.image.resize(tf.slice(photo, begin, size), SIZE, antialias=True)
    mask = tf.image.resize(tf.slice(mask[..., None], begin, size), SIZE, "nearest")
    return tf.cast(tf.round(photo), tf.uint8), mask[..., 0]


def load(part):
    photos = sorted(map(str, Path(part, "photos").iterdir()))
    masks = [str(Path(part, "masks", Path(photo).stem + ".png")) for photo in photos]
    return tf.data.Dataset.from_tensor_slices((photos, masks))


train = load("train").shuffle(1000).map(read, tf.data.AUTOTUNE).map(crop, tf.data.AUTOTUNE)
train = train.batch(BATCH).prefetch(tf.data.AUTOTUNE)
validation = load("validation").map(read, tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)

model = build_unet()
history = model.fit(train, validation_data=validation, epochs=EPOCHS, verbose=2)
