"""Keras's image_dataset_from_directory, cast to uint8 at the end.

Its labels may be given as a list in the order of the sorted paths: they are the ids here.
"""

from __future__ import annotations

import contest
import keras
import tensorflow as tf
import tf_files

SETTINGS = contest.Settings(
    library=f"keras {keras.__version__} on tensorflow {tf.__version__}",
    chosen="image_dataset_from_directory(image_size=(128, 128), shuffle=True), which maps and prefetches by AUTOTUNE; "
    "then a map to uint8 and prefetch(AUTOTUNE)",
    source="keras.io: 'Image data loading'; tensorflow.org: 'Load and preprocess images'",
)


def as_uint8(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.cast(images, tf.uint8), labels


def begin(options: contest.Options) -> contest.Epoch:
    batches = keras.utils.image_dataset_from_directory(
        options.data,
        labels=list(range(len(options.files()))),
        image_size=(contest.SIDE, contest.SIDE),
        batch_size=contest.BATCH,
        shuffle=True,
        seed=options.trainer,
        verbose=False,
    )
    batches = batches.map(as_uint8, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    return tf_files.epochs(batches)


if __name__ == "__main__":
    contest.run(begin, settings=SETTINGS)
