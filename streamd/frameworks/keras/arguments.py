"""Rules for the arguments of Keras's fit, evaluate and predict that concern a stream. Pure.

Keras does not pass the arguments of its methods to an adapter. So each argument on which Keras does not act itself has
a rule here. The rule accepts a value if the stream does the same anyway or the adapter acts on it, and otherwise
returns what to write instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import index
from typing import Any, Final, Literal

from streamd.core.spec import StreamSpec
from streamd.core.text import format_count
from streamd.errors import ConfigError

KerasMethod = Literal["fit", "evaluate", "predict"]


@dataclass(frozen=True, slots=True)
class FedStream:
    """The facts about a stream that the rules use; `steps` is the number of steps of a whole epoch.

    `inputs` and `targets` are the names under which the model receives them: an array for one, a dict for several.
    """

    spec: StreamSpec
    steps: int
    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    has_class_weights: bool = False


@dataclass(frozen=True, slots=True)
class ModelForm:
    """What is known of a model. A step or a loss of its own may use what it is given in any way.

    needs_targets: its loss would fail without targets.
    has_one_input, has_one_output: it takes, or returns, one array without a name.
    input_names: those of its inputs, if it takes a dict.
    """

    needs_targets: bool = False
    has_one_input: bool = False
    input_names: tuple[str, ...] | None = None
    has_one_output: bool = False


@dataclass(frozen=True, slots=True)
class KerasCall:
    """A call of one of Keras's methods: its arguments by name, and the streams among them.

    stream: the `x` argument, None for other data.
    validation: the `x` of the validation data, None for other data.
    validation_parts: the validation data as Keras splits them into x, y and sample_weight; None without any.
    form, validation_form: the model as the method uses it, and as validation does.
    """

    method: KerasMethod
    values: Mapping[str, Any]
    stream: FedStream | None = None
    validation: FedStream | None = None
    validation_parts: tuple[Any, Any, Any] | None = None
    form: ModelForm = field(default_factory=ModelForm)
    validation_form: ModelForm = field(default_factory=ModelForm)

    def get_value(self, name: str) -> Any:
        """Returns the argument of this name; None if the method does not have it."""
        return self.values.get(name)


Rule = Callable[[KerasCall], str | None]  # returns the objection to a call's value; None if it is honoured


def check_arguments(call: KerasCall) -> None:
    """Raises ConfigError for the first argument that would be ignored; the message says what to write instead."""
    for name, rule in ARGUMENTS[call.method].items():
        objection = rule(call)
        if objection is not None:
            raise ConfigError(f"{call.method}({name}={_shorten(call.get_value(name))}): {objection}")


def check_epochs_left(name: str, wanted: tuple[int, int], available: tuple[int, int]) -> None:
    """Raises ConfigError if `fit` would reach the end of the subscription to stream `name`.

    `wanted` and `available` are (epochs, steps).
    """
    if wanted[1] <= available[1]:
        return
    where = f"ends after {_describe_epochs(*available)}" if available[1] else "has no epoch left"
    raise ConfigError(
        f"fit has {_describe_epochs(*wanted)} to go, but the subscription to {name!r} {where}: subscribe with "
        "epochs=None, which never ends, or with as many epochs as all calls of fit take together"
    )


def _describe_epochs(epochs: int, steps: int) -> str:
    return f"{format_count(epochs, 'epoch')} ({format_count(steps, 'step')})"


def _honour(_: KerasCall) -> None:
    """Accepts any value: Keras itself acts on the argument, or the adapter does."""


# --- data that a stream brings itself


def _check_stream(call: KerasCall) -> str | None:
    return None if call.stream is None else _compare_forms(call.form, call.stream)


def _check_predicted_stream(call: KerasCall) -> str | None:
    return None if call.stream is None else _compare_inputs(call.form, call.stream)


def _compare_forms(form: ModelForm, stream: FedStream) -> str | None:
    """Returns why a model cannot learn from what a stream gives; None if it can, as far as that is known."""
    return _compare_inputs(form, stream) or (_compare_targets(form, stream) if form.needs_targets else None)


def _compare_inputs(form: ModelForm, stream: FedStream) -> str | None:
    given, first = ", ".join(stream.inputs), stream.inputs[0]
    if form.has_one_input and len(stream.inputs) > 1:
        return (
            f"the model takes one array, and stream {stream.spec.name!r} gives a dict of {len(stream.inputs)}, "
            f"{given}: choose one, as in  fit_data(stream, inputs=[{_choose_one_image(stream)!r}]),  or build the "
            f"model with an input for each, as in  keras.Model({{{first!r}: keras.Input(...), ...}}, outputs)"
        )
    missing = [name for name in form.input_names or () if name not in stream.inputs]
    if not missing or len(form.input_names or ()) == 1:  # Keras takes one array for the only input, whatever its name
        return None
    return (
        f"the model has the inputs {', '.join(form.input_names or ())}, and stream {stream.spec.name!r} gives {given}: "
        "choose images and labels with  fit_data(stream, inputs=[...]),  and give the model's inputs their names"
    )


def _choose_one_image(stream: FedStream) -> str:
    """Returns the first image among the inputs, which may go by another name; else the stream's first."""
    return next((name for name in stream.inputs if name in stream.spec.images), next(iter(stream.spec.images)))


def _compare_targets(form: ModelForm, stream: FedStream) -> str | None:
    if not stream.targets:
        return _require_targets(stream)
    if form.has_one_output and len(stream.targets) > 1:
        return (
            f"the model has one output, and stream {stream.spec.name!r} gives a dict of {len(stream.targets)} targets, "
            f"{', '.join(stream.targets)}: choose one, as in  fit_data(stream, targets={stream.targets[-1]!r}),  or "
            "build the model with an output for each, in a dict by these names"
        )
    return None


def _require_targets(stream: FedStream) -> str:
    spec = stream.spec
    images = ", ".join(spec.images)
    remedy = (
        f"choose with  fit_data(stream, targets=...)  among its labels ({', '.join(spec.labels)}) and images ({images})"
        if spec.labels
        else "serve it with labels, which config.yaml names for each stream, or let the model learn an image, with  "
        f"fit_data(stream, targets=[{next(iter(spec.images))!r}])"
    )
    return (
        f"the model's loss needs targets, and stream {spec.name!r} gives none: {remedy}; or compile a model without "
        "loss= where its own train_step computes the loss from the images"
    )


def _check_targets(call: KerasCall) -> str | None:
    if call.stream is None or call.get_value("y") is None:
        return None
    return "a stream brings its own targets: leave y out, and choose with  fit_data(stream, targets=...)"


def _check_sample_weight(call: KerasCall) -> str | None:
    if call.stream is None or call.get_value("sample_weight") is None:
        return None
    return (
        "a stream brings its own weights: leave sample_weight out, and name the column that has them in config.yaml, "
        "weights: COLUMN"
    )


def _check_validation_split(call: KerasCall) -> str | None:
    if call.stream is None or not call.get_value("validation_split"):
        return None
    return VALIDATION_SPLIT_REMEDY


VALIDATION_SPLIT_REMEDY: Final = (
    "Keras cannot divide a stream: serve both parts, with  split: {validation: 0.2}  in config.yaml, and give  "
    'validation_data=fit_data(client.subscribe("validation"))'
)


def _check_validation_data(call: KerasCall) -> str | None:
    data, *beside = call.validation_parts or (None,)
    if call.validation is None:
        return _explain_unfed_stream(data)
    if all(each is None for each in beside):
        return _compare_forms(call.validation_form, call.validation)
    return "a stream brings its own targets and weights: give  validation_data=fit_data(stream)  alone"


def _explain_unfed_stream(data: object) -> str | None:
    """What to write for a stream, a client or a stream's name as validation data; None for other data."""
    if hasattr(data, "spec") and hasattr(data, "epochs"):
        return "a stream must be passed to Keras through fit_data:  validation_data=fit_data(stream)"
    if not hasattr(data, "subscribe") and not isinstance(data, str):
        return None
    what, name = (f"the name {data!r}", data) if isinstance(data, str) else ("a client", "validation")
    return f"{what} is not data for Keras: give  validation_data=fit_data(client.subscribe({name!r}))"


# --- the size of batches


def _check_batch_size(call: KerasCall) -> str | None:
    return None if call.stream is None else _compare_batch_size(call.get_value("batch_size"), call.stream, "batch_size")


def _check_validation_batch_size(call: KerasCall) -> str | None:
    given = call.get_value("validation_batch_size")
    if call.validation_parts is None:
        return _require_validation_data(given is not None)
    if call.validation is None:
        return None
    if given is not None or call.stream is None:
        size = given or call.get_value("batch_size")
        return _compare_batch_size(size, call.validation, "validation_batch_size")
    return None


def _compare_batch_size(given: Any, stream: FedStream, name: str) -> str | None:
    spec = stream.spec
    if given is None or given == spec.batch_size:
        return None
    return (
        f"batches of stream {spec.name!r} have {spec.batch_size} samples: leave {name} out, or take others with  "
        f"client.subscribe({spec.name!r}, batch_size={_shorten(given)})"
    )


# --- how many steps


def _check_steps(call: KerasCall, name: str) -> str | None:
    return None if call.stream is None else _compare_steps(call.get_value(name), call.stream, name)


def _check_validation_steps(call: KerasCall) -> str | None:
    given = call.get_value("validation_steps")
    if call.validation_parts is None:
        return _require_validation_data(given is not None)
    return None if call.validation is None else _compare_steps(given, call.validation, "validation_steps")


def _compare_steps(given: Any, stream: FedStream, name: str) -> str | None:
    if given is None or (_is_count(given) and 1 <= given <= stream.steps):
        return None
    whole = format_count(stream.steps, "step")
    return (
        f"an epoch of stream {stream.spec.name!r} has {whole}: leave {name} out, which takes all of them, or give a "
        f"whole number from 1 to {stream.steps}"
    )


def _check_validation_freq(call: KerasCall) -> str | None:
    if call.validation_parts is None:
        return _require_validation_data(call.get_value("validation_freq") not in (None, 1))
    given = call.get_value("validation_freq")
    if isinstance(given, list) or (isinstance(given, int) and given >= 1):
        return None
    return "give a whole number of epochs, 1 or more, or a list of the epochs after which to validate, counted from 1"


def _require_validation_data(is_given: bool) -> str | None:
    return (
        "this argument needs validation_data, which is missing: give validation_data too, or leave this argument out"
        if is_given
        else None
    )


# --- order and weights of classes


def _check_shuffle(call: KerasCall) -> str | None:
    given = call.get_value("shuffle")
    if call.stream is None or given is None or given is True:
        return None
    spec = call.stream.spec
    if given not in (True, False):
        return "a stream comes in the order that config.yaml says,  shuffle: full | none | chunk:  leave shuffle out"
    if given or spec.shuffle == "none":
        return None
    return (
        f"stream {spec.name!r} comes shuffled ({spec.shuffle}), whatever shuffle is set to in Keras: leave shuffle "
        "out, or serve a stream with  shuffle: none  in config.yaml"
    )


def _check_class_weight(call: KerasCall) -> str | None:
    given = call.get_value("class_weight")
    if call.stream is None or given is None:
        return None
    if call.stream.has_class_weights:
        return "fit_data already has a class_weight: give class_weight to fit_data or to fit, not to both"
    return None


def _is_count(given: Any) -> bool:
    try:
        return index(given) >= 0
    except TypeError:
        return False


def _shorten(value: Any) -> str:
    """Returns a short value's repr; "..." for a long one, and for arrays and other objects."""
    text = repr(value)
    is_short = len(text) <= 40 and "\n" not in text  # noqa: PLR2004 - half a line
    return text if is_short and isinstance(value, bool | int | float | str | dict) else "..."


# Every parameter of Keras's methods, which a test compares with Keras's own signatures. Parameters on which Keras acts
# itself, whatever the data are, have the rule `_honour`.
ARGUMENTS: Final[Mapping[KerasMethod, Mapping[str, Rule]]] = {
    "fit": {
        "x": _check_stream,
        "y": _check_targets,
        "batch_size": _check_batch_size,
        "epochs": _honour,  # compared with the subscription when the first epoch begins: see check_epochs_left
        "verbose": _honour,
        "callbacks": _honour,
        "validation_split": _check_validation_split,
        "validation_data": _check_validation_data,
        "shuffle": _check_shuffle,
        "class_weight": _check_class_weight,  # the adapter multiplies by it
        "sample_weight": _check_sample_weight,
        "initial_epoch": _honour,
        "steps_per_epoch": partial(_check_steps, name="steps_per_epoch"),  # the adapter makes epochs of that length
        "validation_steps": _check_validation_steps,
        "validation_batch_size": _check_validation_batch_size,
        "validation_freq": _check_validation_freq,
    },
    "evaluate": {
        "x": _check_stream,
        "y": _check_targets,
        "batch_size": _check_batch_size,
        "verbose": _honour,
        "sample_weight": _check_sample_weight,
        "steps": partial(_check_steps, name="steps"),
        "callbacks": _honour,
        "return_dict": _honour,
        "kwargs": _honour,  # Keras refuses unknown ones itself
    },
    "predict": {
        "x": _check_predicted_stream,
        "batch_size": _check_batch_size,
        "verbose": _honour,
        "steps": partial(_check_steps, name="steps"),
        "callbacks": _honour,
    },
}

# What to write in place of a method or attribute of tf.data.Dataset, by its name. TensorFlow itself reads the last two,
# of a data set that a strategy is to distribute.
_PER_BATCH: Final = (
    "write the function into the model or the training step, or serve its result with  transform:  in config.yaml"
)
_DISTRIBUTED: Final = (
    "model.fit(fit_data(stream)) under the strategy gives each replica a part of each batch; a training loop of your "
    "own does so with  strategy.experimental_distribute_values_from_function"
)
DATASET_REMEDIES: Final[Mapping[str, str]] = {
    "map": _PER_BATCH,
    "apply": _PER_BATCH,
    "filter": "serve a part of the samples: with  where:  of a table, or from a folder of their own",
    "batch": "a stream comes in batches; others are  client.subscribe(NAME, batch_size=N)",
    "padded_batch": "a stream comes in batches; others are  client.subscribe(NAME, batch_size=N)",
    "rebatch": "write  client.subscribe(NAME, batch_size=N)",
    "ragged_batch": "a stream comes in batches; others are  client.subscribe(NAME, batch_size=N)",
    "unbatch": "loop over the rows of each batch",
    "shuffle": "a stream comes in the order that config.yaml says, anew in each epoch: leave it out",
    "prefetch": "the daemon makes batches ahead: leave it out, or set  client.subscribe(NAME, prefetch=N)",
    "repeat": "each epoch of fit, and each loop, is the next epoch: leave it out",
    "cache": "the daemon decodes once for all trainers: leave it out, or set  cache:  in config.yaml",
    "take": "write  fit_data(stream, steps=N),  or  preview(N)  to look at batches",
    "skip": "write  client.subscribe(NAME, resume=TOKEN),  or  stream.advance_to_epoch(N)",
    "shard": 'write  client.subscribe(NAME, rank="auto")',
    "enumerate": "write  enumerate(data)",
    "as_numpy_iterator": "loop over  stream,  whose batches are NumPy arrays",
    "with_options": "there are no options to set: leave it out",
    "cardinality": "write  len(data)",
    "concatenate": "serve both as one stream, from one folder or table; a loop may read  itertools.chain(one, other)",
    "_variant_tensor": _DISTRIBUTED,
    "element_spec": _DISTRIBUTED,
}
