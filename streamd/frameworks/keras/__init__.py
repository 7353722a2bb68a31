"""Streams for Keras, on TensorFlow, JAX or torch.

    with streamd.connect() as client, client.subscribe("train") as stream:
        model.fit(fit_data(stream), epochs=10)

Keras and its backend are imported by the first call, not with this module.
"""

from __future__ import annotations

import os
from importlib import import_module
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final

from streamd.core.spec import StreamSpec
from streamd.errors import ConfigError, format_install_command
from streamd.frameworks.lazy_import import import_library
from streamd.frameworks.model_inputs import ClassWeight, FeedStream, LabelNames, build_model_feed, check_is_stream
from streamd.frameworks.normalize import compute_pixel_scaling

if TYPE_CHECKING:
    from streamd.frameworks.keras.adapter import StreamAdapter
    from streamd.frameworks.keras.nan_guard import NanGuard
    from streamd.frameworks.keras.resume import ResumeCallback

__all__ = ["NanGuard", "ResumeCallback", "fit_data", "load_keras", "normalization"]

_CALLBACKS: Final = {
    "NanGuard": "streamd.frameworks.keras.nan_guard",
    "ResumeCallback": "streamd.frameworks.keras.resume",
}


def __getattr__(name: str) -> Any:
    """Loads Keras only when a callback is wanted, which is a class of Keras's."""
    if name in _CALLBACKS:
        load_keras()
        _load_adapter_type()
        return getattr(import_module(_CALLBACKS[name]), name)
    raise AttributeError(f"module 'streamd.frameworks.keras' has no attribute {name!r}")


def load_keras() -> Any:
    """The module `keras`, on TensorFlow unless KERAS_BACKEND says otherwise. Raises MissingExtraError."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    return import_library("keras", "train", "training with Keras")


def fit_data(
    stream: FeedStream,
    inputs: LabelNames = None,
    targets: LabelNames = "auto",
    one_hot: bool = False,
    class_weight: ClassWeight = None,
    steps: int | None = None,
) -> StreamAdapter:
    """A stream as `x` or `validation_data` of `Model.fit`, or as `x` of `evaluate` and `predict`.

    An epoch of `fit` is an epoch of the stream, or the rest of one that was left early, in the stream's order; nothing
    is fetched before it begins. As `validation_data`, in `evaluate` and in `predict` each call begins at the first
    batch of the subscription's first epoch, so that the same samples come each time; `fit` goes on where it was.
    Within a `fit`, they need a subscription of their own. Images arrive as uint8 (B, H, W, C); TensorFlow computes over
    the batch's own memory, JAX and torch do when they have let go of the batch before, and get a copy else. Subscribe
    without `epochs`, so that only `fit` says how many there are; more than the subscription has are refused at once.

    Every argument of Keras's methods is honoured, or refused with what to write instead. A loop over what is returned
    sees the batches of `evaluate`, and leaves `fit` where it was; after `predict`, its `labels` and `names()`, the
    files, are those of the rows of the result.

    Replicas under tf.distribute's MirroredStrategy share each batch, and so do the devices of a keras.distribution on
    JAX; nothing is read ahead for them. Where each has a process of its own, subscribe with rank="auto".

    inputs: labels that go into the model beside the images; `x` is then a dict of "images" and these names.
    targets: "auto" is the only label, a dict of all if there are several (less those in `inputs`), nothing if there
        are none. A name gives that label, a list of names a dict, None nothing.
    one_hot: expands categories among the targets to float32 (B, classes).
    class_weight: {class: weight}, or "balanced" for samples / (classes * samples of the class), of the classes that
        have any; others weigh 1.
    steps: ends each epoch of `fit`, validation, `evaluate` and `predict` after so many steps, if the stream's is
        longer. The next epoch of `fit` goes on behind them, so that nothing is skipped and several epochs of `fit` make
        one of the stream.

    Batches are `(x, y)`, and `(x, y, weights)` where samples or classes have weights, which are multiplied, bad samples
    are masked or the last batch is padded. Compile with `weighted_metrics`, which leave rows of weight 0 out; `metrics`
    count them, and so does a loss without `reduction="mean_with_sample_weight"`. With it, a batch of padding alone is
    a loss of 0; the loss as a weighted metric is exact. Raises ConfigError for what a stream lacks, MissingExtraError.
    """
    check_is_stream(stream, "fit_data")
    load_keras()
    steps = None if steps is None else _parse_steps(steps)
    feed = build_model_feed(stream.spec, inputs=inputs, targets=targets, one_hot=one_hot, class_weight=class_weight)
    return _load_adapter_type()(stream, feed, steps)


def _parse_steps(given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, Integral) or int(given) < 1:
        raise ConfigError(f"steps must be a whole number, 1 or more, not {given!r}")
    return int(given)


def _load_adapter_type() -> type[StreamAdapter]:
    try:
        from streamd.frameworks.keras.adapter import StreamAdapter  # noqa: PLC0415 - imports Keras
    except ImportError as error:
        raise ConfigError(
            f"this version of Keras keeps its data adapters elsewhere ({error}): run  "
            f"{format_install_command('train')}  for one that streamd is tested with"
        ) from error
    return StreamAdapter


def normalization(spec: StreamSpec) -> Any:
    """A stock Keras layer that does what `normalize` of the stream says: uint8 (B, H, W, C) in, float out.

    `none` only converts to float. Being part of the model, it is saved with it and cannot be forgotten later.
    """
    layers, numbers = load_keras().layers, compute_pixel_scaling(spec)
    if numbers.even:
        mean, std = numbers.mean[0], numbers.std[0]
        return layers.Rescaling(1 / std, offset=0.0 - mean / std)
    return layers.Normalization(mean=list(numbers.mean), variance=[value * value for value in numbers.std])
