"""Batches as TensorFlow tensors. TensorFlow is imported by the first call."""

from __future__ import annotations

from typing import Any

from streamd.frameworks import import_library
from streamd.frameworks.dlpack import Array, copy_to_aligned_memory, export


def tensor(array: Array) -> Any:
    """Returns a tensor of `array` on the CPU: over the memory of `batch.images`, or a copy if `export` requires one.

    A tensor over that memory holds the batch's lease until it dies. A loop that keeps more of them than its credit
    allows gets BatchesHeldError, as with `batch.images` itself; `tf.constant(batch.images)` copies. Raises
    MissingExtraError.
    """
    tf = import_library("tensorflow", "train", "a batch as a TensorFlow tensor")
    shared = export(array)
    if shared is None:
        shared = copy_to_aligned_memory(array)
    if shared is None:
        return tf.constant(array)
    try:
        return tf.experimental.dlpack.from_dlpack(shared.__dlpack__())
    except tf.errors.OpError:  # this release refuses the memory: a copy has the same pixels
        return tf.constant(array)
