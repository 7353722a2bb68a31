"""Differences between Keras's backends: how arrays are converted, and which devices share a batch. Imports Keras."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf
from keras.src.distribution import distribution_lib

from streamd.core.text import format_count
from streamd.errors import ConfigError
from streamd.frameworks import tensorflow, torch
from streamd.frameworks.dlpack import Array
from streamd.frameworks.lazy_import import import_library
from streamd.frameworks.tensorflow import tensor
from streamd.frameworks.torch.data_loader import build_device_mover

Convert = Callable[[Array], Any]


class LeaseSparingConverter:
    """Lends a batch's memory to a framework only if the previous batch was released; otherwise copies.

    The images of a batch lie in the same memory, and are lent together.

    So at most one lease outlives its step in a framework that ends leases late. JAX may be many steps behind, and
    releases used memory only when it is called again, which does not happen while the loop waits for the next batch. On
    torch, Keras's tree functions leave reference cycles that hold each tensor until garbage is collected. `collect`
    makes the framework release what it can.
    """

    def __init__(self, lend: Convert, copy: Convert, collect: Callable[[], object]) -> None:
        self._lend = lend
        self._copy = copy
        self._collect = collect
        self._lent: Callable[[], object] = lambda: None

    def __call__(self, array: Array) -> Any:
        """Converts `array` for the framework. A writable array belongs to its owner and is copied."""
        if array.flags.writeable:
            return self._copy(array)
        memory = array if array.base is None else array.base
        if self._lent() is not memory:
            if self._is_batch_still_held():
                return self._copy(array)
            # Every view keeps the base alive, so the weak reference dies only after the framework's last use.
            self._lent = weakref.ref(memory)
        return self._lend(array)

    def _is_batch_still_held(self) -> bool:
        if self._lent() is not None:
            self._collect()
        return self._lent() is not None


def build_converter(backend: str) -> Convert:
    """Returns the function that converts a batch's arrays for `backend`. Raises ConfigError for an unknown backend.

    TensorFlow computes over the batch's memory and releases it with the step; JAX and torch use
    `LeaseSparingConverter`. JAX accepts NumPy arrays.
    """
    if backend == "tensorflow":
        return tensorflow.tensor
    if backend == "jax":
        return LeaseSparingConverter(lambda array: array, np.copy, _find_jax_garbage_collector())
    if backend == "torch":
        return _build_torch_converter()
    raise ConfigError(
        f"fit_data works with Keras on TensorFlow, JAX or torch, but here Keras runs on {backend}: set KERAS_BACKEND "
        "to one of these before Keras is imported"
    )


def _find_jax_garbage_collector() -> Callable[[], object]:
    """Returns JAX's own hook, which is cheap; if this version has none, a garbage collection, which calls it."""
    try:
        return import_module("jaxlib._jax").collect_garbage  # type: ignore[no-any-return]  # JAX has no types here
    except (ImportError, AttributeError):
        return _collect_youngest_garbage


def _collect_youngest_garbage() -> None:
    """Collects the youngest generation, which has what the last step left; a full collection takes milliseconds."""
    gc.collect(0)


def _build_torch_converter() -> Convert:
    """Returns a converter to tensors on the device on which Keras computes."""
    from keras.src.backend.torch.core import get_device  # noqa: PLC0415 - imports torch

    library = import_library("torch", "torch", "Keras on torch")
    device = library.device(get_device())
    if device.type == "cpu":
        return LeaseSparingConverter(
            torch.tensor, lambda array: library.from_numpy(array.copy()), _collect_youngest_garbage
        )
    move = build_device_mover(library, device)
    return lambda array: move(torch.tensor(array))


def check_distribution(row_counts: Iterable[int]) -> None:
    """Raises ConfigError if a keras.distribution is set and cannot share batches of these row counts among devices."""
    distribution, backend = distribution_lib.distribution(), keras.backend.backend()
    if distribution is None:
        return
    if backend != "jax":
        raise ConfigError(
            f"keras.distribution divides batches among devices on JAX only; on {backend}, one device would do all the "
            'work: set KERAS_BACKEND=jax, or start one trainer per device, each with its own subscribe(rank="auto")'
        )
    mesh = distribution.device_mesh
    devices = mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)]
    parts = max(1, devices // import_library("jax", "jax", "Keras on JAX").process_count())
    for rows in row_counts:
        if rows % parts:
            raise ConfigError(
                f"a batch of {format_count(rows, 'row')} cannot be shared equally by {parts} devices: serve the "
                f"stream with a batch_size that {parts} divides, and with  drop_remainder: true  or  drop_remainder: "
                "pad"
            )


def looks_ahead() -> bool:
    """Returns whether Keras takes each batch one step early, as it does on JAX with an accelerator."""
    if keras.backend.backend() != "jax" or distribution_lib.distribution() is not None:
        return False
    return bool(import_library("jax", "jax", "Keras on JAX").default_backend() != "cpu")


# --- Splits the rows of a batch among the replicas of a tf.distribute strategy. Imports TensorFlow.
#
# Keras accepts an instance of DistributedDataset as it is, its trainer accepts any Python iterator in place of one of
# TensorFlow's, and a strategy builds per-replica values from any tensors. So tf.data is not involved: a batch is
# pulled when a step needs it, as without a strategy, and a fit that stops early has read nothing ahead.


# Keras 3 fails under MultiWorkerMirroredStrategy with any data.
_SYNCHRONOUS_STRATEGIES: Final = (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy)


@dataclass(frozen=True, slots=True)
class ReplicaParts:
    """Gives each replica of a strategy a part of the rows, in the order of the replicas: `predict` relies on it.

    The parts of a batch differ by one row at most; the rows of a larger part weigh less, as with tf.data.
    """

    strategy: Any

    def __len__(self) -> int:
        return len(self.strategy.extended.worker_devices)

    def __call__(self, array: Array) -> Any:
        """Returns a per-replica value: for each replica a tensor over its rows, or a copy if `tensor` needs one.

        Raises ConfigError when a replica would get no rows.
        """
        self.check_row_counts({len(array)})
        return self.strategy.experimental_distribute_values_from_function(
            lambda replica: self._slice_replica_part(array, replica)
        )

    def check_row_counts(self, row_counts: Iterable[int]) -> None:
        """Raises ConfigError when a replica would get no rows: BatchNormalization over none makes all weights NaN."""
        for rows in row_counts:
            if rows < len(self):
                raise ConfigError(
                    f"a batch of {format_count(rows, 'row')} cannot be shared by {len(self)} replicas: serve the "
                    "stream with  drop_remainder: true  or with a larger batch_size"
                )

    def _slice_replica_part(self, array: Array, replica: Any) -> Any:
        parts, number = len(self), replica.replica_id_in_sync_group
        return tensor(array[len(array) * number // parts : len(array) * (number + 1) // parts])


class SharedDataset(tf.distribute.DistributedDataset):  # type: ignore[misc]  # TensorFlow has no types
    """Takes the place of a strategy's own dataset in Keras: each `iter` yields the steps of one more epoch.

    The arrays of a step are per-replica values from `ReplicaParts`.
    """

    def __init__(self, epochs: Iterable[Any]) -> None:
        self._epochs = epochs

    def __iter__(self) -> Iterator[Any]:
        return iter(self._epochs)


def build_replica_parts(strategy: Any) -> ReplicaParts | None:
    """Returns how a strategy splits batches; None for TensorFlow's default strategy and for unsupported ones."""
    return ReplicaParts(strategy) if isinstance(strategy, _SYNCHRONOUS_STRATEGIES) else None
