"""Differences between Keras's backends: how arrays are converted, and which devices share a batch. Imports Keras."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import keras
import numpy as np
from keras.src.distribution import distribution_lib

from streamd.core.text import format_count
from streamd.errors import ConfigError
from streamd.frameworks import tensorflow, torch
from streamd.frameworks.dlpack import Array
from streamd.frameworks.lazy_import import import_library
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
