"""Makes a model's inputs, targets and sample weights from a batch. Pure NumPy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from streamd.core.receipt import Receipt
from streamd.core.sampler import PAD_ID
from streamd.core.slot_layout import build_blank_label
from streamd.core.spec import LabelSpec, StreamSpec
from streamd.core.text import format_list
from streamd.errors import ConfigError, StreamdError, suggest_name

Array = npt.NDArray[Any]
LabelNames = str | Sequence[str] | None
Targets = str | tuple[str, ...] | None  # the only target, several, or none
ClassWeight = Mapping[int | str, float] | Literal["balanced"] | None

IMAGES = "images"
_SHOWN_CLASSES: Final = 5  # of a label, in a message


class FeedBatch(Protocol):
    """The attributes of a batch that a feed uses: see `streamd.client`."""

    @property
    def images(self) -> npt.NDArray[np.uint8]: ...
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

    `len` is the number of steps of a whole epoch, `steps_left` that of the rest of the present one. `epochs_left` is
    the number of epochs with steps left, including the present one; None for no end.
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
    def steps_left(self) -> int: ...
    @property
    def token(self) -> str: ...
    @property
    def epochs_left(self) -> int | None: ...
    def names(self, sample_ids: Iterable[int], /) -> list[str]: ...
    def __len__(self) -> int: ...
    def epochs(self) -> Iterator[Iterator[FeedBatch]]: ...
    def seek(self, token: str, /, *, after: Literal["step", "epoch"] = "step") -> None: ...
    def rewind(self) -> None: ...
    def return_to(self, token: str, /) -> None: ...


@dataclass(frozen=True, slots=True)
class ClassWeights:
    """The weight of a sample by its class: `table[label]`, float32 (classes,)."""

    label: str
    table: npt.NDArray[np.float32]

    def lookup_weights(self, batch: FeedBatch) -> npt.NDArray[np.float32]:
        """Returns the weight of each row, float32 (B,)."""
        return self.table[batch.labels[self.label]]


@dataclass(frozen=True, slots=True)
class ModelFeed:
    """Turns a batch into `(x,)`, `(x, y)` or `(x, y, weights)`, with the same structure for every batch.

    one_hot: the number of classes of each target that is expanded, by name.
    weighted: weights are part of the structure.
    """

    inputs: tuple[str, ...] = ()
    targets: Targets = None
    one_hot: Mapping[str, int] | None = None
    class_weights: ClassWeights | None = None
    weighted: bool = False

    @property
    def target_names(self) -> tuple[str, ...]:
        return list_target_names(self.targets)

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
        return (x,) if self.targets is None else (x, self.build_targets(batch))

    def build_inputs(self, batch: FeedBatch) -> Array | dict[str, Array]:
        """Returns the images, or a dict of "images" and the labels among the inputs."""
        if not self.inputs:
            return batch.images
        return {IMAGES: batch.images, **{name: batch.labels[name] for name in self.inputs}}

    def build_targets(self, batch: FeedBatch) -> Array | dict[str, Array] | None:
        """Returns the target's array, a dict of several by name, or None if there are no targets."""
        if self.targets is None:
            return None
        if isinstance(self.targets, str):
            return self._build_target_array(batch, self.targets)
        return {name: self._build_target_array(batch, name) for name in self.targets}

    def _build_target_array(self, batch: FeedBatch, name: str) -> Array:
        labels = batch.labels[name]
        if not self.one_hot or name not in self.one_hot:
            return labels
        expanded: Array = labels[..., None] == np.arange(self.one_hot[name])
        return expanded.astype(np.float32)

    def _build_weights(self, batch: FeedBatch) -> npt.NDArray[np.float32]:
        return batch.weights if self.class_weights is None else batch.weights * self.class_weights.lookup_weights(batch)


def build_model_feed(
    spec: StreamSpec,
    *,
    inputs: LabelNames = None,
    targets: LabelNames = "auto",
    one_hot: bool = False,
    class_weight: ClassWeight = None,
) -> ModelFeed:
    """Decides, once for all batches, which arrays go to the model. Raises ConfigError for labels the stream lacks.

    Weights are part of the structure if any sample can have a weight other than 1: samples or classes have weights, bad
    samples are masked, or the last batch is padded. The weights of a sample and of its class are multiplied.
    """
    _check_label_names("inputs", inputs, "a label's name, a list of names or None")
    _check_label_names("targets", targets, 'a label\'s name, a list of names, "auto" or None')
    if not isinstance(one_hot, bool | np.bool_):
        raise ConfigError(f"one_hot must be True or False, not {one_hot!r}")
    beside = (inputs,) if isinstance(inputs, str) else tuple(inputs or ())
    chosen = _choose_targets(spec, beside, targets)
    names = list_target_names(chosen)
    _check_labels_usable(spec, beside, names)
    categories = [spec.labels[name] for name in names if spec.labels[name].type == "category"]
    if one_hot and not categories:
        raise ConfigError(
            f"one_hot needs a target that is a category; the labels of stream {spec.name!r} are: "
            f"{_describe_labels(spec)}"
        )
    weights = None if class_weight is None else _build_class_weights(spec, names, class_weight)
    return ModelFeed(
        inputs=beside,
        targets=chosen,
        one_hot={label.name: len(label.classes) for label in categories} if one_hot else None,
        class_weights=weights,
        weighted=weights is not None or spec.weighted or spec.bad_policy == "mask" or spec.remainder == "pad",
    )


def list_target_names(targets: Targets) -> tuple[str, ...]:
    """Returns the names of the targets: one, several or none."""
    return (targets,) if isinstance(targets, str) else targets or ()


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


def add_class_weights(feed: ModelFeed, spec: StreamSpec, class_weight: ClassWeight) -> ModelFeed:
    """Returns the feed with `fit`'s class_weight, whose keys are the class numbers that the model sees.

    Raises ConfigError if it fits no target, or if a key is ambiguous: a class's own number, or its position among the
    classes.
    """
    weights = _build_class_weights(spec, feed.target_names, class_weight)
    classes = spec.labels[weights.label].classes
    if class_weight != "balanced" and classes != tuple(range(len(classes))) and not isinstance(classes[0], str):
        more = ", ..." if len(classes) > 3 else ""  # noqa: PLR2004 - enough to see what they are
        raise ConfigError(
            f"Keras numbers the classes of {weights.label!r} from 0, but the classes are "
            f"{', '.join(map(str, classes[:3]))}{more}: give  fit_data(stream, class_weight={{class: weight}}), which "
            "takes the classes by these numbers"
        )
    return replace(feed, class_weights=weights, weighted=True)


def find_label(spec: StreamSpec, name: str) -> LabelSpec:
    """Returns the label `name` of a stream. Raises ConfigError, which suggests a similar name, if there is none."""
    if name not in spec.labels:
        hint = suggest_name(name, spec.labels)
        raise ConfigError(f"stream {spec.name!r} has no label {name!r}; its labels are: {_describe_labels(spec)}{hint}")
    return spec.labels[name]


def _check_label_names(argument: str, given: object, expected: str) -> None:
    is_names = isinstance(given, Collection) and all(isinstance(name, str) for name in given)
    if given is not None and not is_names:
        raise ConfigError(f"{argument} must be {expected}, not {given!r}")


def _check_labels_usable(spec: StreamSpec, inputs: tuple[str, ...], targets: tuple[str, ...]) -> None:
    """Raises ConfigError for a name that is no label, for text, and if every target is an input as well."""
    for name in (*inputs, *targets):
        if name == IMAGES and name not in spec.labels:
            raise ConfigError(
                "the images are always an input: inputs= names labels that go into the model together with them, and "
                f"targets= names labels that the model learns; leave {IMAGES!r} out (the labels of stream "
                f"{spec.name!r} are: {_describe_labels(spec)})"
            )
        _check_label_not_text(spec, find_label(spec, name))
    if targets and set(targets) <= set(inputs):
        raise ConfigError(
            f"label {targets[0]!r} of stream {spec.name!r} is both an input and a target, so the model would be given "
            "the answer: name it in inputs= or in targets= only"
        )


def _check_label_not_text(spec: StreamSpec, label: LabelSpec) -> None:
    if label.type == "string":
        raise ConfigError(
            f"label {label.name!r} of stream {spec.name!r} is text, which no model takes; serve it as type category or "
            "tags, or read batch.labels yourself"
        )


def _describe_labels(spec: StreamSpec) -> str:
    return ", ".join(f"{label.name} ({label.type})" for label in spec.labels.values()) or "none"


def _choose_targets(spec: StreamSpec, inputs: tuple[str, ...], targets: LabelNames) -> Targets:
    if targets == "auto":
        rest = tuple(name for name, label in spec.labels.items() if name not in inputs and label.type != "string")
        return rest[0] if len(rest) == 1 else rest or None
    return targets if targets is None or isinstance(targets, str) else tuple(targets)


def _build_class_weights(spec: StreamSpec, targets: tuple[str, ...], weights: ClassWeight) -> ClassWeights:
    if len(targets) > 1:
        raise ConfigError(
            f"class_weight would weigh all {len(targets)} targets of stream {spec.name!r} by the class of one "
            f"({', '.join(targets)}): choose that one with targets="
        )
    categories = [spec.labels[name] for name in targets if spec.labels[name].type == "category"]
    if not categories or categories[0].width:
        raise ConfigError(
            "class_weight needs exactly one target that is a category, one value per sample; the labels of stream "
            f"{spec.name!r} are: {_describe_labels(spec)}; choose with targets="
        )
    if weights != "balanced" and not isinstance(weights, Mapping):
        raise ConfigError(f'class_weight is {{class: weight}}, or "balanced", not {weights!r}')
    label = categories[0]
    table = _compute_balanced_weights(label) if weights == "balanced" else _parse_class_weights(label, weights)
    return ClassWeights(label.name, table)


def _compute_balanced_weights(label: LabelSpec) -> npt.NDArray[np.float32]:
    if len(label.counts) != len(label.classes):
        raise ConfigError(f"class_weight='balanced' needs the counts of {label.name!r}: give {{class: weight}} instead")
    counts = np.array(label.counts, dtype=np.float64)
    even = counts.sum() / max(1, np.count_nonzero(counts))
    return np.asarray(np.divide(even, counts, out=np.ones_like(counts), where=counts > 0), np.float32)


def _parse_class_weights(label: LabelSpec, weights: Mapping[int | str, float]) -> npt.NDArray[np.float32]:
    table = np.ones(len(label.classes), dtype=np.float32)
    names_by_index: dict[int, int | str] = {}
    for name, weight in weights.items():
        index = _find_class_index(label, name)
        if index in names_by_index:
            raise ConfigError(
                f"class_weight gives class {label.classes[index]!r} of {label.name!r} twice, as "
                f"{names_by_index[index]!r} and as {name!r}: give it once"
            )
        names_by_index[index] = name
        table[index] = _parse_class_weight(name, weight)
    return table


def _parse_class_weight(name: int | str, weight: object) -> float:
    """Returns the weight of a class. Raises ConfigError for what is no number, or none that float32 holds."""
    if isinstance(weight, Real) and 0 <= float(weight) <= np.finfo(np.float32).max:
        return float(weight)
    raise ConfigError(f"class_weight: the weight of class {name!r} must be a finite number, 0 or more, not {weight!r}")


def _find_class_index(label: LabelSpec, name: object) -> int:
    """Returns the position of a class, given by its value; a named class may also be given by number, as in Keras."""
    if name in label.classes:
        return label.classes.index(name)
    named = all(isinstance(known, str) for known in label.classes)
    if named and isinstance(name, Integral) and 0 <= int(name) < len(label.classes):
        return int(name)
    hint = suggest_name(str(name), map(str, label.classes))
    numbers = f", or the numbers 0 to {len(label.classes) - 1}" if named else ""
    known = f"{format_list([repr(each) for each in label.classes], _SHOWN_CLASSES)}{numbers}"
    raise ConfigError(f"class_weight: {label.name!r} has no class {name!r}; its classes are: {known}{hint}")


# --- a batch to build a model by


@dataclass(frozen=True, slots=True)
class BlankBatch:
    """A batch of black images, labels of value 0 and weights of 1, with the fields of `client.batch.Batch`.

    It has no position in a stream.
    """

    images: npt.NDArray[np.uint8]
    labels: Mapping[str, npt.NDArray[Any]]
    weights: npt.NDArray[np.float32]
    sample_ids: npt.NDArray[np.int64]
    epoch: int = 0
    index: int = 0
    make_token: Callable[[], str] = str


def build_blank_batch(spec: StreamSpec) -> BlankBatch:
    """Builds a blank batch of the stream's full size. Its images take no memory."""
    rows = spec.batch_size
    images = np.broadcast_to(np.uint8(0), (rows, *spec.image_shape))
    labels = {name: build_blank_label(label, rows) for name, label in spec.labels.items()}
    return BlankBatch(images, labels, np.ones(rows, np.float32), np.full(rows, PAD_ID))
