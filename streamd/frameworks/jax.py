"""Batches as JAX arrays. JAX is imported by the first call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from streamd.core.spec import StreamSpec
from streamd.frameworks import import_library
from streamd.frameworks.model_inputs import compute_pixel_scaling


def array(values: npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]], sharding: Any = None) -> Any:
    """Returns a jax.Array of `values` on the default device, or distributed over devices by `sharding`.

    Of a mapping, such as `batch.arrays` or `batch.labels`, it returns a dict of arrays by the same names.

    On the CPU it uses the memory of `batch.images` and holds the batch's lease until it dies. JAX itself copies strided
    and unaligned arrays, 64-bit numbers to its own width, donated arrays over others' memory, and everything that goes
    to an accelerator. A writable array, as labels are, is copied here, since JAX would show later writes by its owner.

    sharding: the distribution of rows over a mesh of devices. With several processes the result is the global array, of
        which each process supplies the rows of its own batch. The devices take equal parts, so serve such a stream with
        `drop_remainder: true` or `pad`, and with a batch_size that the devices of a process divide:

            mesh = jax.sharding.Mesh(jax.devices(), "batch")
            rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
            with client.subscribe("train", rank=jax.process_index(), world=jax.process_count()) as stream:
                for batch in stream:
                    state = step(state, array(batch.images, rows), array(batch.labels["label"], rows))

    Raises MissingExtraError; JAX raises ValueError for rows that cannot be distributed.
    """
    jax = import_library("jax", "jax", "a batch as a JAX array")
    if isinstance(values, Mapping):
        return {name: array(each, sharding) for name, each in values.items()}
    own = values.copy() if values.flags.writeable else values
    return jax.device_put(own) if sharding is None else jax.make_array_from_process_local_data(sharding, own)


def normalization(spec: StreamSpec, image: str | None = None) -> Callable[[Any], Any]:
    """Returns a function that applies the stream's `normalize`: (..., H, W, C) of any dtype in, float32 out.

    image: which of several images of a sample; default: the first.

    The function can be compiled as a part of a step, and takes views as it takes a single picture. Raises ConfigError
    for a `normalize` that this version does not know, and for an image that the stream does not have or that holds
    class numbers.
    """
    numbers = compute_pixel_scaling(spec, image)
    mean, std = np.array(numbers.mean, np.float32), np.array(numbers.std, np.float32)
    return lambda images: (images.astype(np.float32) - mean) / std
