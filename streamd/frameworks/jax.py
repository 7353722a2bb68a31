"""Batches as JAX arrays. JAX is imported by the first call."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from streamd.frameworks.lazy_import import import_library


def array(values: npt.NDArray[Any], sharding: Any = None) -> Any:
    """A jax.Array of `values` on the default device, or shared by devices as `sharding` says.

    On the CPU it lies over the memory of `batch.images` and holds the batch's lease until it dies. JAX itself copies
    what is strided or not aligned, 64-bit numbers to its own width, a donated array that lies over others' memory, and
    whatever goes to an accelerator. What may be written, as labels may, is copied here: JAX would show what its owner
    writes later.

    sharding: how rows lie on a mesh of devices. With several processes the array is the global one, to which each gives
        the rows of its own batch; the devices take equal parts, so serve such a stream with `drop_remainder: true` or
        `pad` and a batch_size that the devices of a process divide:

            mesh = jax.sharding.Mesh(jax.devices(), "batch")
            rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
            with client.subscribe("train", rank=jax.process_index(), world=jax.process_count()) as stream:
                for batch in stream:
                    state = step(state, array(batch.images, rows), array(batch.labels["label"], rows))

    Raises MissingExtraError; JAX says ValueError of rows that cannot be shared.
    """
    jax = import_library("jax", "jax", "a batch as a JAX array")
    own = values.copy() if values.flags.writeable else values
    return jax.device_put(own) if sharding is None else jax.make_array_from_process_local_data(sharding, own)
