"""What differs between Keras's backends: what the arrays of a batch become, and who asks for a batch. Imports Keras."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterable
from importlib import import_module
from types import FrameType
from typing import Any, Final

import keras
import numpy as np
from keras.src.distribution import distribution_lib
from keras.src.trainers.epoch_iterator import EpochIterator

from streamd.errors import ConfigError
from streamd.frameworks import tensorflow, torch
from streamd.frameworks.dlpack import Array
from streamd.frameworks.lazy_import import load
from streamd.frameworks.torch.data_loader import mover

Convert = Callable[[Array], Any]

# Keras's own iterators, which hand on what they are asked for.
_BETWEEN: Final = frozenset({"__next__", "_one_batch_ahead_iterator", "_get_distributed_iterator"})
_METHODS: Final = frozenset({"fit", "evaluate", "predict"})
_TRAINERS: Final = "keras.src.backend."  # where each backend has the trainer with these methods
# Who takes a batch to see its shapes, and drops it; on TensorFlow, under a strategy only. On JAX `predict` does so
# itself; its steps ask from elsewhere.
_BUILDERS: Final = {
    "tensorflow": frozenset({"_maybe_symbolic_build"}),
    "jax": frozenset({"_symbolic_build", "predict"}),
    "torch": frozenset({"_symbolic_build"}),
}


class Sparing:
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
        if array.flags.writeable or self._is_lent():
            return self._copy(array)
        self._lent = weakref.ref(array if array.base is None else array.base)  # which every view of it keeps
        return self._lend(array)

    def _is_lent(self) -> bool:
        if self._lent() is not None:
            self._collect()
        return self._lent() is not None


def converter(backend: str) -> Convert:
    """What makes an array of a batch what `backend` takes. Raises ConfigError for one that is unknown.

    TensorFlow computes over the memory of the batch, and drops it with the step; the others do so as `Sparing` says.
    JAX takes NumPy's arrays.
    """
    if backend == "tensorflow":
        return tensorflow.tensor
    if backend == "jax":
        return Sparing(lambda array: array, np.copy, _jax_collector())
    if backend == "torch":
        return _torch_converter()
    raise ConfigError(
        f"fit_data works with Keras on TensorFlow, JAX and torch, and here Keras runs on {backend}: set KERAS_BACKEND "
        "to one of these before Keras is imported"
    )


def _jax_collector() -> Callable[[], object]:
    """JAX's own hook, which costs nothing; where this version has none, Python's collector calls it."""
    try:
        return import_module("jaxlib._jax").collect_garbage  # type: ignore[no-any-return]  # JAX has no types here
    except (ImportError, AttributeError):
        return _collect_young


def _collect_young() -> None:
    """What a step has left behind. The rest would take milliseconds."""
    gc.collect(0)


def _torch_converter() -> Convert:
    """To the device on which Keras computes."""
    from keras.src.backend.torch.core import get_device  # noqa: PLC0415 - imports torch

    library = load("torch", "torch", "Keras on torch")
    device = library.device(get_device())
    if device.type == "cpu":
        return Sparing(torch.tensor, lambda array: library.from_numpy(array.copy()), _collect_young)
    move = mover(library, device)
    return lambda array: move(torch.tensor(array))


def is_building() -> bool:
    """Whether Keras asks for a batch only to build a model of its shapes, before the first step.

    Such a batch would be missing from the epoch. Nothing but the function that asks tells it from a step's.
    """
    return _asking(sys._getframe(2)) in _BUILDERS[keras.backend.backend()]  # noqa: SLF001 - inspect's own is far slower


def _asking(frame: FrameType | None) -> str:
    """The name of the function that wants a batch, seen from `frame`."""
    while frame is not None and frame.f_code.co_name in _BETWEEN:
        frame = frame.f_back
    return frame.f_code.co_name if frame is not None else ""


def running_methods() -> list[FrameType]:
    """The frames of Keras's fit, evaluate and predict that this thread is in, the innermost first.

    Keras tells its adapter neither which of them asks nor when it is over.
    """
    frames = []
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as above
    while frame is not None:
        if frame.f_code.co_name in _METHODS and frame.f_globals.get("__name__", "").startswith(_TRAINERS):
            frames.append(frame)
        frame = frame.f_back
    return frames


def asking_iterator() -> weakref.ref[EpochIterator] | None:
    """Keras's own iterator, whose method asks the adapter's that calls this; None in a loop of one's own."""
    asking = sys._getframe(2).f_locals.get("self")  # noqa: SLF001 - as above
    return weakref.ref(asking) if isinstance(asking, EpochIterator) else None


def asking_strategy() -> Any:
    """The tf.distribute strategy whose model is to be fed; None where there is no such thing.

    Keras tells it to none but its own iterator, which asks for the dataset.
    """
    return getattr(sys._getframe(2).f_locals.get("self"), "_distribute_strategy", None)  # noqa: SLF001 - as above


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
    parts = max(1, devices // load("jax", "jax", "Keras on JAX").process_count())
    for rows in row_counts:
        if rows % parts:
            raise ConfigError(
                f"a batch of {rows} rows cannot be shared equally by {parts} devices: serve the stream with a "
                f"batch_size that {parts} divides, and with  drop_remainder: true  or  drop_remainder: pad"
            )


def looks_ahead() -> bool:
    """Whether Keras takes each batch one step early, as it does on JAX where that is not the CPU."""
    if keras.backend.backend() != "jax" or distribution_lib.distribution() is not None:
        return False
    return bool(load("jax", "jax", "Keras on JAX").default_backend() != "cpu")
