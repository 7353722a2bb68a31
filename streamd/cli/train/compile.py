"""How a model of `streamd-train` learns: its loss, which follows from the label, its optimizer and its precision."""

from __future__ import annotations

from typing import Any, Final

from streamd.core.spec import LabelSpec
from streamd.errors import ConfigError, suggest_name
from streamd.frameworks.keras import load_keras
from streamd.frameworks.lazy_import import import_library

# (loss, metric) by the type of the label; a label of several values has one of them for each.
_LOSSES_AND_METRICS: Final = {
    "category": ("sparse_categorical_crossentropy", "accuracy"),
    "tags": ("binary_crossentropy", "binary_accuracy"),
    "float": ("mse", "mae"),
    "int": ("mse", "mae"),
}
_WRAPPING_OPTIMIZERS: Final = frozenset(
    {"Optimizer", "LossScaleOptimizer", "MultiOptimizer"}
)  # these are made of others


def compile_model(model: Any, label: LabelSpec, optimizer: Any = "adam") -> None:
    """Compiles a model with the loss for a label. The metrics heed weights, which masked samples need."""
    loss, metric = _LOSSES_AND_METRICS[label.type]
    model.compile(optimizer, loss, weighted_metrics=[metric])


def choose_optimizer(name: str | None, learning_rate: float | None) -> Any:
    """One of Keras's optimizers, adam by default, by its name in any case. Raises ConfigError with the near name."""
    found = vars(load_keras().optimizers)
    kind = found["Optimizer"]
    known = {
        each.lower(): value
        for each, value in found.items()
        if isinstance(value, type) and issubclass(value, kind) and each not in _WRAPPING_OPTIMIZERS
    }
    wanted = (name or "adam").lower()
    if wanted not in known:
        hint = suggest_name(wanted, known)
        raise ConfigError(f"Keras has no optimizer {name!r}{hint}; it has {', '.join(sorted(known))}")
    return known[wanted]() if learning_rate is None else known[wanted](learning_rate=learning_rate)


def set_mixed_precision() -> str:
    """Has models that are built from here on compute with 16 bits and keep their weights in 32; returns the policy.

    float16 on a GPU, which every one is fast with, and where Keras scales the loss for its narrow range; bfloat16 where
    there is none, since processors know no other.
    """
    policy = "mixed_float16" if _has_gpu() else "mixed_bfloat16"
    load_keras().mixed_precision.set_global_policy(policy)
    return policy


def _has_gpu() -> bool:
    match load_keras().backend.backend():
        case "torch":
            return bool(import_library("torch", "torch", "Keras on torch").cuda.is_available())
        case "jax":
            return bool(import_library("jax", "jax", "Keras on JAX").default_backend() == "gpu")
        case _:
            tensorflow = import_library("tensorflow", "train", "Keras on TensorFlow")
            return bool(tensorflow.config.list_physical_devices("GPU"))
