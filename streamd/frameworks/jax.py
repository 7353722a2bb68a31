"""Batches as JAX arrays. JAX is imported by the first call."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from streamd.frameworks.extras import load


def array(values: npt.NDArray[Any]) -> Any:
    """A jax.Array of `values` on the default device.

    On the CPU it lies over the memory of `batch.images` and holds the batch's lease until it dies. JAX itself copies
    what is strided or not aligned, 64-bit numbers to its own width, a donated array that lies over others' memory, and
    whatever goes to an accelerator. What may be written, as labels may, is copied here: JAX would show what its owner
    writes later. Raises MissingExtraError.
    """
    own = values.copy() if values.flags.writeable else values
    return load("jax", "jax", "a batch as a JAX array").device_put(own)
