"""Gives weights the shape of a user's own loss, where it returns a number for each sample. Imports Keras."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import keras
from keras.src.backend import compute_output_spec
from keras.src.losses.losses import LossFunctionWrapper

from streamd.core.spec import StreamSpec
from streamd.errors import ConfigError
from streamd.frameworks.keras.frames import find_model_graph
from streamd.frameworks.model_inputs import ModelFeed, build_blank_batch

_KERAS: Final = "keras"


def match_own_loss(feed: ModelFeed, spec: StreamSpec, model: Any) -> ModelFeed:
    """Returns the feed, with weights (B,) if the model's loss is the user's own and returns a number for each sample.

    Without that, Keras would fail, or weigh the numbers wrongly where two dimensions are equal by chance. Raises
    ConfigError if pixels have weights by their class, for which such a loss has no place.
    """
    if not feed.weighted or len(feed.targets) != 1 or feed.value_ranks[feed.targets[0]] == 1:
        return feed
    if _count_loss_dimensions(model, feed.build_arrays(build_blank_batch(spec))[1].shape) != 1:
        return feed
    name = feed.targets[0]
    if feed.class_weights is not None:
        raise ConfigError(
            f"the model's loss returns one number for each sample, and class_weight weighs each pixel of {name!r}: "
            "return one number for each pixel, or leave class_weight out"
        )
    return replace(feed, value_ranks={name: 1})


def _count_loss_dimensions(model: Any, shape: tuple[int, ...]) -> int | None:
    """Returns the dimensions of what the user's own loss returns for targets of `shape`; None if it is not known."""
    loss, graph = model.loss, find_model_graph(model)
    if graph is None or not isinstance(graph.output, keras.KerasTensor) or not callable(loss) or _is_keras_own(loss):
        return None
    measure = loss if isinstance(loss, keras.losses.Loss) else LossFunctionWrapper(loss, reduction=None)
    true, predicted = keras.KerasTensor(shape), keras.KerasTensor((shape[0], *graph.output.shape[1:]))
    try:
        found = compute_output_spec(measure.call, true, predicted)
    except Exception:  # noqa: BLE001 - the user's own code, which Keras calls again, and whose error it then shows
        return None
    return len(found.shape) if isinstance(found, keras.KerasTensor) else None


def _is_keras_own(loss: Any) -> bool:
    kind = type(loss) if isinstance(loss, keras.losses.Loss) else loss
    return str(getattr(kind, "__module__", "")).split(".")[0] == _KERAS
