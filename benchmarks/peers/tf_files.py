"""What the rows of tf.data share: shuffled paths, mapped to images, batched, as TensorFlow's guide has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import contest
import tensorflow as tf

CHOSEN = (
    "paths shuffled in full; parallel map with AUTOTUNE and deterministic=False; decode_jpeg with dct_method "
    "INTEGER_FAST and the ratio that covers the target; batch; prefetch(AUTOTUNE)"
)
SOURCE = "tensorflow.org: 'Better performance with the tf.data API', tf.io.decode_jpeg"
RATIOS = (8, 4, 2, 1)  # by which decode_jpeg can shrink


def covering_ratio(path: str) -> int:
    """How far a file may shrink in decoding and still cover the target. One for a set: the op takes no tensor."""
    height, width, _ = tf.io.decode_jpeg(tf.io.read_file(path)).shape
    return next(ratio for ratio in RATIOS if ratio == 1 or min(height, width) >= ratio * contest.SIDE)


def loading(path: str) -> Callable[[Any, Any], tuple[Any, Any]]:
    """The map of the graph, (path, id) to (uint8 (128, 128, 3), id). `path` is any file of the set."""
    ratio = covering_ratio(path)
    exact = tf.io.decode_jpeg(tf.io.read_file(path), ratio=ratio).shape == (contest.SIDE, contest.SIDE, 3)

    def load(file: Any, sample: Any) -> tuple[Any, Any]:
        image = tf.io.decode_jpeg(tf.io.read_file(file), channels=3, ratio=ratio, dct_method="INTEGER_FAST")
        if not exact:
            image = tf.cast(tf.image.resize(image, (contest.SIDE, contest.SIDE)), tf.uint8)
        return tf.ensure_shape(image, (contest.SIDE, contest.SIDE, 3)), sample

    return load


def shuffled(options: contest.Options) -> Any:
    """A dataset of (path, id), in another order each time it is iterated or repeated."""
    files = [str(file) for file in options.files()]
    pairs = tf.data.Dataset.from_tensor_slices((files, tf.range(len(files), dtype=tf.int64)))
    return pairs.shuffle(len(files), seed=options.trainer)


def batches(options: contest.Options, pairs: Any) -> Any:
    """A dataset of (uint8 (32, 128, 128, 3), ids)."""
    load = loading(str(options.files()[0]))
    return pairs.map(load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False).batch(contest.BATCH)


def epochs(batches: Any) -> contest.Epoch:
    """Each is one pass over a dataset of batches."""

    def epoch(_: int) -> Iterator[contest.Batch]:
        yield from batches.as_numpy_iterator()

    return epoch
