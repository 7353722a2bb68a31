"""Streams for Keras on TensorFlow.

    with streamd.connect() as client, client.subscribe("train", epochs=10) as stream:
        model.fit(fit_data(stream), epochs=10)

Keras and TensorFlow are imported by the first call, not with this module.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from streamd.errors import ConfigError, near_name
from streamd.frameworks.extras import load
from streamd.frameworks.feed import ClassWeight, Names, Stream, choose
from streamd.spec import StreamSpec

if TYPE_CHECKING:
    from streamd.frameworks.keras_adapter import StreamAdapter

# Of ImageNet's training images, in 0-255: what torchvision's and Keras's "torch" mode weights were trained with.
IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)


def load_keras() -> Any:
    """The module `keras`, on TensorFlow unless KERAS_BACKEND says otherwise. Raises MissingExtraError."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    return load("keras", "train", "training with Keras")


def fit_data(
    stream: Stream,
    inputs: Names = None,
    targets: Names = "auto",
    one_hot: bool = False,
    class_weight: ClassWeight = None,
    steps: int | None = None,
) -> StreamAdapter:
    """A stream as `x` or `validation_data` of `Model.fit`, or as `x` of `evaluate` and `predict`.

    An epoch of `fit` is an epoch of the stream, or the rest of one that was left early, in the stream's order; nothing
    is fetched before it begins. Images arrive as uint8 (B, H, W, C) and are not copied. Subscribe with `epochs=None`
    for validation and for several fits.

    inputs: labels that go into the model beside the images; `x` is then a dict of "images" and these names.
    targets: "auto" is the only label, a dict of all if there are several (less those in `inputs`), nothing if there
        are none. A name gives that label, a list of names a dict, None nothing.
    one_hot: expands categories among the targets to float32 (B, classes).
    class_weight: {class: weight}, or "balanced" for samples / (classes * samples of the class); others weigh 1.
    steps: ends each epoch of `fit` after so many steps, if the stream's is longer; the next goes on behind them, so
        that nothing is skipped and several epochs of `fit` make one of the stream.

    Batches are `(x, y)`, and `(x, y, weights)` where bad samples are masked, the last batch is padded or classes have
    weights; use `weighted_metrics` then. Raises ConfigError for what the stream lacks, MissingExtraError.
    """
    backend = load_keras().backend.backend()
    if backend != "tensorflow":
        raise ConfigError(
            f"fit_data works with Keras on TensorFlow, and here Keras runs on {backend}: set KERAS_BACKEND=tensorflow "
            "before Keras is imported"
        )
    if steps is not None and steps < 1:
        raise ConfigError(f"steps must be at least 1, not {steps}")
    feed = choose(stream.spec, inputs=inputs, targets=targets, one_hot=one_hot, class_weight=class_weight)
    return _adapter_type()(stream, feed, steps)


def _adapter_type() -> type[StreamAdapter]:
    try:
        from streamd.frameworks.keras_adapter import StreamAdapter  # noqa: PLC0415 - imports TensorFlow
    except ImportError as error:
        raise ConfigError(
            f"this version of Keras keeps its data adapters elsewhere ({error}): run  pip install 'streamd[train]'  "
            "for one that streamd is tested with"
        ) from error
    return StreamAdapter


def normalization(spec: StreamSpec) -> Any:
    """A stock Keras layer that does what `normalize` of the stream says: uint8 (B, H, W, C) in, float out.

    `none` only converts to float. Being part of the model, it is saved with it and cannot be forgotten later.
    """
    layers = load_keras().layers
    if isinstance(spec.normalize, Mapping):
        return _standardize(layers, spec, spec.normalize["mean"], spec.normalize["std"])
    known: dict[str, Callable[[], Any]] = {
        "none": lambda: layers.Rescaling(1.0),
        "unit": lambda: layers.Rescaling(1 / 255),
        "minus_one_one": lambda: layers.Rescaling(1 / 127.5, offset=-1.0),
        "imagenet": lambda: _standardize(layers, spec, IMAGENET_MEAN, IMAGENET_STD),
    }
    if spec.normalize not in known:
        raise ConfigError(f"stream {spec.name!r}: no normalize {spec.normalize!r}{near_name(spec.normalize, known)}")
    return known[spec.normalize]()


def _standardize(layers: Any, spec: StreamSpec, mean: tuple[float, ...] | list[float], std: Any) -> Any:
    if not len(mean) == len(std) == spec.image.channels:
        raise ConfigError(
            f"stream {spec.name!r}: normalize has {len(mean)} means and {len(std)} deviations for "
            f"{spec.image.channels} channels"
        )
    return layers.Normalization(mean=list(mean), variance=[value * value for value in std])
