"""What differs between Keras's backends: what the arrays of a batch become, and who shares them. Imports Keras."""

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
    """Lends a framework the memory of a batch only when it has let go of the one before; else it gets a copy.

    So one lease at most outlives its step, where the framework ends them late. JAX may be many steps behind, and lets
    go of memory that it has used only when it is called again, which it is not while the next batch is waited for. On
    torch, Keras's tree functions leave cycles that hold each tensor until garbage is collected. `collect` does either.
    """

    def __init__(self, lend: Convert, copy: Convert, collect: Callable[[], object]) -> None:
        self._lend = lend
        self._copy = copy
        self._collect = collect
        self._lent: Callable[[], object] = lambda: None

    def __call__(self, array: Array) -> Any:
        """`array` as the framework takes it. One that may be written is its owner's, and is copied."""
        if array.flags.writeable or self._is_batch_still_held():
            return self._copy(array)
        self._lent = weakref.ref(array if array.base is None else array.base)  # which every view of it keeps
        return self._lend(array)

    def _is_batch_still_held(self) -> bool:
        if self._lent() is not None:
            self._collect()
        return self._lent() is not None


def build_converter(backend: str) -> Convert:
    """What makes an array of a batch what `backend` takes. Raises ConfigError for one that is unknown.

    TensorFlow computes over the memory of the batch, and drops it with the step; the others do so as
    `LeaseSparingConverter` says. JAX takes NumPy's arrays.
    """
    if backend == "tensorflow":
        return tensorflow.tensor
    if backend == "jax":
        return LeaseSparingConverter(lambda array: array, np.copy, _find_jax_garbage_collector())
    if backend == "torch":
        return _build_torch_converter()
    raise ConfigError(
        f"fit_data works with Keras on TensorFlow, JAX and torch, and here Keras runs on {backend}: set KERAS_BACKEND "
        "to one of these before Keras is imported"
    )


def _find_jax_garbage_collector() -> Callable[[], object]:
    """JAX's own hook, which costs nothing; where this version has none, Python's collector calls it."""
    try:
        return import_module("jaxlib._jax").collect_garbage  # type: ignore[no-any-return]  # JAX has no types here
    except (ImportError, AttributeError):
        return _collect_youngest_garbage


def _collect_youngest_garbage() -> None:
    """What a step has left behind. The rest would take milliseconds."""
    gc.collect(0)


def _build_torch_converter() -> Convert:
    """To the device on which Keras computes."""
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
    """Raises ConfigError where keras.distribution cannot share batches of so many rows each among its devices."""
    distribution, backend = distribution_lib.distribution(), keras.backend.backend()
    if distribution is None:
        return
    if backend != "jax":
        raise ConfigError(
            f"keras.distribution shares batches on JAX only; on {backend} one device would do all the work: set "
            'KERAS_BACKEND=jax, or start one trainer a device, each with its own subscribe(rank="auto")'
        )
    mesh = distribution.device_mesh
    devices = mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)]
    parts = max(1, devices // import_library("jax", "jax", "Keras on JAX").process_count())
    for rows in row_counts:
        if rows % parts:
            raise ConfigError(
                f"a batch of {format_count(rows, 'row')} cannot be shared equally by {parts} devices: serve the "
                "stream with a "
                f"batch_size that {parts} divides, and with  drop_remainder: true  or  drop_remainder: pad"
            )


def looks_ahead() -> bool:
    """Whether Keras takes each batch one step early, as it does on JAX where that is not the CPU."""
    if keras.backend.backend() != "jax" or distribution_lib.distribution() is not None:
        return False
    return bool(import_library("jax", "jax", "Keras on JAX").default_backend() != "cpu")
