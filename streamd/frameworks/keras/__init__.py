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
from streamd.frameworks import import_library
from streamd.frameworks.model_inputs import (
    ArrayNames,
    FeedStream,
    GivenWeights,
    build_model_feed,
    check_is_stream,
    compute_pixel_scaling,
)

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
    """Imports Keras only when a callback is accessed, since callbacks are subclasses of a Keras class."""
    if name in _CALLBACKS:
        load_keras()
        _load_adapter_type()
        return getattr(import_module(_CALLBACKS[name]), name)
    raise AttributeError(f"module 'streamd.frameworks.keras' has no attribute {name!r}")


def load_keras() -> Any:
    """Imports and returns `keras`, with TensorFlow unless KERAS_BACKEND names another. Raises MissingExtraError."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    return import_library("keras", "train", "training with Keras")


def fit_data(
    stream: FeedStream,
    inputs: ArrayNames = None,
    targets: ArrayNames = "auto",
    one_hot: bool = False,
    class_weight: GivenWeights | None = None,
    steps: int | None = None,
    evaluate: bool | None = None,
) -> StreamAdapter:
    """Wraps a stream for use as `x` or `validation_data` of `Model.fit`, or as `x` of `evaluate` and `predict`.

    An epoch of `fit` is one of the stream, or the rest of one that was left early; nothing is fetched before it begins.
    Validation, `evaluate` and `predict` begin each call at the first batch of the subscription's first epoch, so that
    they see the same samples each time; `fit` then continues where it was. Within a `fit`, they need their own
    subscription. Images are uint8 (B, H, W, C) unless the stream says otherwise. TensorFlow computes over the batch's
    own memory; JAX and torch do so if they have released the previous batch, and otherwise get a copy. Subscribe
    without `epochs`, so that only `fit` sets their number; a `fit` of more epochs than the subscription has is refused
    at once.

    Every argument of Keras's methods is honoured, or refused with a message that says what to write instead. After
    `predict`, its `labels` and `names()` (file names) are those of the rows of the result. Replicas of a
    MirroredStrategy, and on JAX the devices of a keras.distribution, share each batch; if each device has its own
    process, subscribe with rank="auto".

    ResumeCallback restores weights and position together. A `fit` with Keras's BackupAndRestore, or with initial_epoch
    on a stream at its beginning, says on stderr that it does not. Methods of tf.data.Dataset raise an error that says
    what to write.

    Each loop over the returned object is a pass, for a training loop of your own: the next epoch, as in `fit`, or the
    rest of one that was left early, of copies of the batches as the model receives them. A loop that takes exactly
    `len` batches has ended its epoch. `preview(batches=1)` returns the first batches of the next pass and moves
    nothing.

    inputs: the images and labels that go into the model: an array for one, a dict for several. None: all images but
        those of mode index. Labels alone: these, and the first image as "images". Otherwise exactly what is named.
    targets: the labels and images that the model learns. "auto": all labels but text, and all images of mode index,
        without those among the inputs. None: nothing. An autoencoder is `targets=["image"]`.
    one_hot: expands categories among the targets to float32 (B, classes).
    class_weight: {class: weight}, or "balanced" for samples / (classes * samples of the class), where only classes with
        samples count. Other classes have weight 1. For an image of mode index, {class number: weight} of its pixels.
    steps: ends each epoch of `fit`, validation, `evaluate` and `predict` after this many steps, if the stream's epoch
        is longer. The next epoch of `fit` continues after them, so that no batch is skipped and several epochs of `fit`
        make one of the stream.
    evaluate: True makes each loop over the returned object begin anew at index 0 of the same epoch, so that a
        validation loop sees the same samples each time; only the first one after `resume=` or `seek` goes on there. A
        pass that breaks off gets a receipt `complete: false, ok: true`, and `epochs` of the subscription counts whole
        passes. Default: True for a stream whose shuffle is none, else False. Keras's own methods do not need it.

    Batches are `(x, y)`, or `(x, y, weights)` if samples or classes have weights (which are multiplied), bad samples
    are masked, or the last batch is padded. Weights are (B,), but (B, H, W) for an image and (B, max) for boxes. Rows
    of weight 0 do not count in `weighted_metrics`, nor in a loss with `reduction="mean_with_sample_weight"`, where a
    batch of padding alone is a loss of 0. Raises ConfigError for images and labels that the stream lacks.
    """
    check_is_stream(stream, "fit_data")
    load_keras()
    given: object = steps
    if given is not None and (isinstance(given, bool) or not isinstance(given, Integral) or int(given) < 1):
        raise ConfigError(f"steps must be a whole number, 1 or more, not {given!r}")
    steps = None if steps is None else int(steps)
    feed = build_model_feed(stream.spec, inputs=inputs, targets=targets, one_hot=one_hot, class_weight=class_weight)
    return _load_adapter_type()(stream, feed, steps, evaluate)


def _load_adapter_type() -> type[StreamAdapter]:
    try:
        from streamd.frameworks.keras.adapter import StreamAdapter  # noqa: PLC0415 - imports Keras
    except ImportError as error:
        raise ConfigError(
            f"this version of Keras keeps its data adapters elsewhere ({error}): run  "
            f"{format_install_command('train')}  for one that streamd is tested with"
        ) from error
    return StreamAdapter


def normalization(spec: StreamSpec, image: str | None = None) -> Any:
    """Returns a standard Keras layer that applies the stream's `normalize`: (B, H, W, C) of any dtype in, float out.

    image: which of several images of a sample; default: the first. `none` only converts to float. As part of the
    model the layer is saved with it, so inference uses the same numbers. The layer computes in float32 unless pixels
    are uint8: float16 has no number for 65535.
    """
    layers, numbers = load_keras().layers, compute_pixel_scaling(spec, image)
    is_wide = (spec.image if image is None else spec.images[image]).dtype != "uint8"
    options = {"dtype": "float32"} if is_wide else {}  # else that of the present policy
    if numbers.even:
        mean, std = numbers.mean[0], numbers.std[0]
        return layers.Rescaling(1 / std, offset=0.0 - mean / std, **options)
    return layers.Normalization(mean=list(numbers.mean), variance=[value * value for value in numbers.std], **options)
