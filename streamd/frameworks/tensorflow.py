"""Batches as TensorFlow tensors. TensorFlow is imported by the first call."""

from __future__ import annotations

from typing import Any

from streamd.frameworks.dlpack import Array, copy_to_aligned_memory, export
from streamd.frameworks.lazy_import import import_library


def tensor(array: Array) -> Any:
    """A tensor of `array` on the CPU: over the memory of `batch.images`, or a copy where `export` says so.

    Over that memory, it holds the batch's lease until it dies: whoever keeps more of them than the credit allows gets
    BatchesHeldError, as with `batch.images` itself; `tf.constant(batch.images)` copies. Raises MissingExtraError.
    """
    tf = import_library("tensorflow", "train", "a batch as a TensorFlow tensor")
    shared = export(array)
    if shared is None:
        shared = copy_to_aligned_memory(array)
    if shared is None:
        return tf.constant(array)
    try:
        return tf.experimental.dlpack.from_dlpack(shared.__dlpack__())
    except tf.errors.OpError:  # what this release refuses: the pixels are the same by copy
        return tf.constant(array)
