"""tf.data from decoded images in the memory of each training process."""

from __future__ import annotations

import contest
import numpy as np
import tensorflow as tf
import tf_files

SETTINGS = contest.Settings(
    library=f"tensorflow {tf.__version__}",
    chosen="the array as one tensor; ids shuffled in full, batched, gathered by a parallel map, prefetch(AUTOTUNE)",
    source="tensorflow.org: 'tf.data: Build TensorFlow input pipelines', 'Better performance with the tf.data API' "
    "(vectorize: batch before map)",
)


def begin(options: contest.Options) -> contest.Epoch:
    images = tf.constant(np.load(options.data))
    count = images.shape[0]
    ids = tf.data.Dataset.range(count).shuffle(count, seed=options.trainer).batch(contest.BATCH)
    batches = ids.map(lambda each: (tf.gather(images, each), each), num_parallel_calls=tf.data.AUTOTUNE)
    batches = batches.prefetch(tf.data.AUTOTUNE)
    return tf_files.epochs(batches)


if __name__ == "__main__":
    contest.run(begin, settings=SETTINGS)
