"""Makes a model's inputs, targets and sample weights from a batch. Pure NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar, overload

import numpy as np
import numpy.typing as npt

from streamd.core.receipt import Receipt
from streamd.core.sampler import PAD_ID
from streamd.core.slot_layout import build_blank_label
from streamd.core.spec import StreamSpec
from streamd.errors import ConfigError, StreamdError
from streamd.frameworks.feed_names import (
    ArrayNames,
    ClassWeights,
    GivenWeights,
    build_class_weights,
    check_keras_class_numbers,
    choose_inputs,
    choose_targets,
    describe_arrays,
)

Array = npt.NDArray[Any]
Step = TypeVar("Step")


class FeedBatch(Protocol):
    """The attributes of a batch that a feed uses: see `streamd.client`."""

    @property
    def arrays(self) -> Mapping[str, Array]: ...
    @property
    def labels(self) -> Mapping[str, Array]: ...
    @property
    def weights(self) -> npt.NDArray[np.float32]: ...
    @property
    def sample_ids(self) -> npt.NDArray[np.int64]: ...
    @property
    def epoch(self) -> int: ...
    @property
    def index(self) -> int: ...
    @property
    def make_token(self) -> Callable[[], str]: ...


class FeedStream(Protocol):
    """The attributes of a stream that a feed uses.

    `epoch` is that of the next batch. `len` is the number of steps of a whole epoch, `steps_left` that of the rest of
    the present one. `epochs_left` is the number of epochs with steps left, including the present one; None for no end.
    """

    @property
    def spec(self) -> StreamSpec: ...
    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def receipts(self) -> Sequence[Receipt]: ...
    @property
    def epoch(self) -> int: ...
    @property
    def steps_left(self) -> int: ...
    @property
    def token(self) -> str: ...
    @property
    def epochs_left(self) -> int | None: ...
    def names(self, sample_ids: Iterable[int], /) -> list[str]: ...
    def __len__(self) -> int: ...
    @overload
    def epochs(self, *, anew: bool = False) -> Iterator[Iterator[FeedBatch]]: ...
    @overload
    def epochs(self, *, anew: bool = False, convert: Callable[[Any], Step]) -> Iterator[Iterator[Step]]: ...
    def end_epoch(self, limit_s: float | None = None, /) -> bool: ...
    def look_ahead(self, batches: int, /, *, anew: bool = False, token: str | None = None) -> Sequence[FeedBatch]: ...
    def seek(self, token: str, /, *, after: Literal["step", "epoch"] = "step") -> None: ...
    def advance_to_epoch(self, epoch: int, /) -> None: ...
    def rewind(self) -> None: ...
    def return_to(self, token: str, /) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelFeed:
    """Turns a batch into `(x,)`, `(x, y)` or `(x, y, weights)`, with the same structure for every batch.

    One input or target is an array, several are a dict by name.

    inputs: the images and labels that go into the model, by the names under which it receives them.
    targets: the names of the images and labels that it learns.
    value_ranks: the dimensions of the values of a usual loss for each target: 1 where there is one value per sample.
    one_hot: the number of classes of each target that is expanded, by name.
    weighted: weights are part of the structure.
    """

    inputs: Mapping[str, str]
    targets: tuple[str, ...] = ()
    value_ranks: Mapping[str, int] = field(default_factory=dict)
    one_hot: Mapping[str, int] = field(default_factory=dict)
    class_weights: ClassWeights | None = None
    weighted: bool = False

    @property
    def array_names(self) -> tuple[str, ...]:
        """The names of all images and labels that the model receives, each once."""
        return tuple(dict.fromkeys((*self.inputs.values(), *self.targets)))

    def build_arrays(self, batch: FeedBatch) -> tuple[Any, ...]:
        """Returns the arrays of a batch.

        Raises StreamdError when a sample has a weight other than 1 and the structure has no weights.
        """
        x = self.build_inputs(batch)
        if self.weighted:
            return x, self.build_targets(batch), self._build_weights(batch)
        if not (batch.weights == 1).all():
            raise StreamdError(
                f"batch {batch.epoch}:{batch.index} has samples of weight 0 (no image of it could be read, or it pads "
                "an uneven epoch), but this stream was not expected to have any: set  bad_samples: {policy: mask}  "
                'for it, and subscribe with uneven="drop"'
            )
        return (x, self.build_targets(batch)) if self.targets else (x,)

    def build_inputs(self, batch: FeedBatch) -> Array | dict[str, Array]:
        """Returns the only input, or a dict of several."""
        found = {key: get_array(batch, name) for key, name in self.inputs.items()}
        return found if len(found) > 1 else next(iter(found.values()))

    def build_targets(self, batch: FeedBatch) -> Array | dict[str, Array] | None:
        """Returns the only target, a dict of several, or None if there are no targets."""
        found = {name: self._build_target_array(batch, name) for name in self.targets}
        return found if len(found) > 1 else next(iter(found.values()), None)

    def _build_target_array(self, batch: FeedBatch, name: str) -> Array:
        values = get_array(batch, name)
        if name not in self.one_hot:
            return values
        expanded: Array = values[..., None] == np.arange(self.one_hot[name])
        return expanded.astype(np.float32)

    def _build_weights(self, batch: FeedBatch) -> Array | dict[str, Array]:
        """Returns a weight for each row, or for each value of a usual loss if a target has several values per sample.

        Keras multiplies the values of a loss by weights of the same shape. Weights of another shape it broadcasts, or
        counts too few of them when it divides by their sum.
        """
        if all(rank == 1 for rank in self.value_ranks.values()):
            return self._build_target_weights(batch, next(iter(self.targets), ""))
        found = {name: self._build_target_weights(batch, name) for name in self.targets}
        return found if len(found) > 1 else next(iter(found.values()))

    def _build_target_weights(self, batch: FeedBatch, name: str) -> npt.NDArray[np.float32]:
        rank = self.value_ranks.get(name, 1)
        weights = batch.weights if rank == 1 else expand_weights(batch.weights, get_array(batch, name).shape[:rank])
        if self.class_weights is None:
            return weights
        return weights * self.class_weights.lookup_weights(get_array(batch, self.class_weights.target))


def get_array(batch: FeedBatch, name: str) -> Array:
    """Returns an image or a label of a batch by its name; no label has the name of an image."""
    return batch.labels[name] if name in batch.labels else batch.arrays[name]


def expand_weights(weights: npt.NDArray[np.float32], shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Returns the weight of each row for each of its values: float32 of `shape`, an array of its own."""
    expanded = np.empty(shape, np.float32)
    expanded[...] = weights.reshape(-1, *(1 for _ in shape[1:]))
    return expanded


def build_model_feed(
    spec: StreamSpec,
    *,
    inputs: ArrayNames = None,
    targets: ArrayNames = "auto",
    one_hot: bool = False,
    class_weight: GivenWeights | None = None,
) -> ModelFeed:
    """Decides, once for all batches, which arrays go to the model. Raises ConfigError for those the stream lacks.

    Weights are part of the structure if any sample can have a weight other than 1: samples or classes have weights, bad
    samples are masked, or the last batch is padded. The weights of a sample and of its class are multiplied.
    """
    chosen = choose_inputs(spec, inputs)
    names = choose_targets(spec, chosen.values(), targets)
    weights = None if class_weight is None else build_class_weights(spec, names, class_weight)
    return ModelFeed(
        inputs=chosen,
        targets=names,
        value_ranks={name: _count_value_dimensions(spec, name) for name in names},
        one_hot=_count_expanded_classes(spec, names, one_hot),
        class_weights=weights,
        weighted=weights is not None or spec.weighted or spec.bad_policy == "mask" or spec.remainder == "pad",
    )


def _count_expanded_classes(spec: StreamSpec, targets: tuple[str, ...], one_hot: object) -> dict[str, int]:
    """Returns the number of classes of each target that `one_hot` expands. Raises ConfigError if it expands none."""
    if not isinstance(one_hot, bool | np.bool_):
        raise ConfigError(f"one_hot must be True or False, not {one_hot!r}")
    labels = [spec.labels[name] for name in targets if name in spec.labels]
    categories = {label.name: len(label.classes) for label in labels if label.type == "category"}
    if one_hot and not categories:
        raise ConfigError(
            f"one_hot needs a target that is a category; {describe_arrays(spec)}. The class numbers of an image are "
            "taken as they are by a sparse loss"
        )
    return categories if one_hot else {}


def _count_value_dimensions(spec: StreamSpec, name: str) -> int:
    """Returns the dimensions, with that of the batch, of a usual loss's values for a target.

    There is a value for each class number, and otherwise one over the numbers along the last axis, such as the channels
    of a pixel or the numbers of a vector.
    """
    if name in spec.images:
        image = spec.images[name]
        return len(image.shape) + (1 if image.mode == "index" else 0)
    label = spec.labels[name]
    return len(label.shape) + 1 if label.type == "category" else max(1, len(label.shape))


def begins_anew(spec: StreamSpec, evaluate: object) -> bool:
    """Returns whether every pass of an adapter begins at index 0, by its argument `evaluate`. Raises ConfigError.

    None decides by the shuffle: a stream without one is for evaluation.
    """
    if evaluate is None:
        return spec.shuffle == "none"
    if not isinstance(evaluate, bool | np.bool_):
        raise ConfigError(
            f"evaluate={evaluate!r}: write True for passes that each begin at index 0, False for passes that are one "
            "epoch after the other, or None to let the stream's shuffle decide"
        )
    return bool(evaluate)


def check_is_stream(given: object, function: str) -> None:
    """Raises ConfigError, which shows the correct call of `function`, if `given` is not a stream."""
    if hasattr(given, "spec") and hasattr(given, "epochs"):
        return
    if hasattr(given, "subscribe"):
        what, remedy = "a client", f'{function}(client.subscribe("train"))'
    elif isinstance(given, str):
        what, remedy = f"the name {given!r}", f"{function}(client.subscribe({given!r}))"
    else:
        what, remedy = type(given).__name__, f'{function}(client.subscribe("train"))'
    raise ConfigError(f"{function} takes a stream, not {what}: write  {remedy}")


def add_class_weights(feed: ModelFeed, spec: StreamSpec, class_weight: GivenWeights) -> ModelFeed:
    """Returns the feed with `fit`'s class_weight, whose keys are the class numbers that the model sees.

    Raises ConfigError if it fits no target, or if a key is ambiguous: a class's own number, or its position among the
    classes.
    """
    weights = build_class_weights(spec, feed.targets, class_weight)
    if class_weight != "balanced":
        check_keras_class_numbers(spec, weights)
    return replace(feed, class_weights=weights, weighted=True)


# --- a batch to build a model by


@dataclass(frozen=True, slots=True)
class BlankBatch:
    """A batch of black images, labels of value 0 and weights of 1, with the fields of `client.batch.Batch`.

    It has no position in a stream.
    """

    arrays: Mapping[str, Array]
    labels: Mapping[str, Array]
    weights: npt.NDArray[np.float32]
    sample_ids: npt.NDArray[np.int64]
    epoch: int = 0
    index: int = 0
    make_token: Callable[[], str] = str


def build_blank_batch(spec: StreamSpec) -> BlankBatch:
    """Builds a blank batch of the stream's full size. Its images take no memory."""
    rows = spec.batch_size
    arrays = {
        name: np.broadcast_to(np.zeros((), image.dtype), (rows, *image.shape)) for name, image in spec.images.items()
    }
    labels = {name: build_blank_label(label, rows) for name, label in spec.labels.items()}
    return BlankBatch(arrays, labels, np.ones(rows, np.float32), np.full(rows, PAD_ID))
