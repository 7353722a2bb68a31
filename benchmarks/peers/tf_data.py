"""tf.data as TensorFlow's guide to its performance builds it."""

from __future__ import annotations

import contest
import tensorflow as tf
import tf_files

SETTINGS = contest.Settings(
    library=f"tensorflow {tf.__version__}",
    chosen=tf_files.CHOSEN,
    source=tf_files.SOURCE,
)


def begin(options: contest.Options) -> contest.Epoch:
    batches = tf_files.batches(options, tf_files.shuffled(options)).prefetch(tf.data.AUTOTUNE)
    return tf_files.epochs(batches)


if __name__ == "__main__":
    contest.run(begin, settings=SETTINGS)
