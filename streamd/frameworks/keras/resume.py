"""The callback that saves a training and resumes it exactly. Imports Keras: `frameworks.keras` imports it.

Exact means that a run which was killed and started again ends with the same weights as one that was not. So a state is
saved after a finished step, or after an epoch with its validation, when all other callbacks have run. The stream then
continues after the batch of that step, however many batches were fetched beyond it.
"""

from __future__ import annotations

import json
import math
import random
import re
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, NoReturn

import keras
import numpy as np
import numpy.typing as npt

from streamd.client.waiting import print_stderr_line
from streamd.core.text import format_count
from streamd.errors import ConfigError, NoCopyError
from streamd.frameworks import import_library
from streamd.frameworks.checkpoint import Checkpoints, SavedState
from streamd.frameworks.keras.adapter import MakeToken, StreamAdapter
from streamd.frameworks.keras.calls import (
    FirstEpoch,
    PendingSteps,
    check_data_of_running_fit,
    find_fit_callbacks,
    is_callback_in_running_fit,
    set_keras_epoch_steps,
)
from streamd.frameworks.receipt_file import ReceiptFile, receipt_file_path
from streamd.limits import MAX_NESTING


@dataclass(frozen=True, slots=True)
class TrainingPlace:
    """The position of a training: `step` steps of `epoch` are finished, and `total` steps of all epochs.

    token: the position in the stream.
    validation: the position of the validation stream in states of older versions; unused, since validation now always
        begins at the same batch.
    over: a callback has ended the training.
    """

    epoch: int
    step: int
    total: int
    token: str
    validation: str | None = None
    over: bool = False


class ResumeCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Saves a training in `directory`, and resumes it when the same program is started again.

        data = fit_data(stream)
        model.fit(data, epochs=10, callbacks=[ResumeCallback(data, "run-1")])

    A state has all variables of the model (with the states of random seeds), of its optimizer and of its metrics, the
    state of the other callbacks, the history, and the position in the stream; validation begins at the same batch each
    time. `fit` continues at that epoch and step. `epochs` counts in total, so a finished run is only loaded, also by a
    second `fit`. Use a separate directory for every different `fit` (other layers, optimizer or rate), and for every
    rank.

    Batch size, number of ranks and `steps` may differ from the saved run's: the rest of the interrupted epoch comes
    first, in as many steps as it needs, and whole epochs of this program follow; a line on stderr reports it. For
    additional ranks, copy the directory of an existing one. The saved learning rate is kept, which a line reports too.

    The receipt of each epoch is appended to `directory`/receipts-RANK.jsonl. `streamd verify` adds up those of all
    ranks, also when the number of ranks has changed.

    every: "epoch" saves after each epoch and its validation; a number saves after that many steps and at the end of
        the training. With several steps an execution, it saves after the execution that reaches the number.
    keep: the number of newest states to keep. A damaged state is skipped, with a line, and the one before it is used.

    Not saved: attributes of your own model, attributes of your own callbacks that are not plain data, further
    optimizers, and random generators other than those of Keras's layers, Python, NumPy and torch on the CPU. For equal
    bits on a CPU: keras.utils.set_random_seed, the same number of threads, and deterministic operations where the
    backend needs them (tf.config.experimental.enable_op_determinism, torch.use_deterministic_algorithms). If the disk
    is full, a line reports it and this state is not saved. Raises ConfigError for a directory that cannot be written
    or in which another fit saves, and for another model or optimizer than was saved; TokenError for another stream, and
    for a position within a batch if the number of ranks has changed.
    """

    def __init__(
        self,
        data: StreamAdapter,
        directory: str | Path,
        every: Literal["epoch"] | int = "epoch",
        keep: int = 2,
    ) -> None:
        super().__init__()
        if not isinstance(data, StreamAdapter):
            raise ConfigError(f"ResumeCallback needs what fit_data gave to fit, not {type(data).__name__}")
        if every != "epoch" and (type(every) is not int or every < 1):
            raise ConfigError(f"every must be 'epoch' or a number of steps, not {every!r}")
        if keep < 1:
            raise ConfigError(f"keep must be at least 1, not {keep}")
        self._data = data
        self._every = every
        self._checkpoints = Checkpoints(Path(directory), keep, print_stderr_line)
        self._pending_tokens = data.pending_tokens = PendingSteps[MakeToken]()
        self._other_callbacks = OtherCallbacks([], print_stderr_line)
        # A state from within an epoch, which `on_epoch_begin` restores again after the other callbacks have run.
        self._resumed_state: tuple[SavedState, TrainingPlace] | None = None
        self._epoch = 0
        self._begun_steps = 0  # finished steps of the present epoch that belong to an earlier process
        self._done_steps = 0  # finished steps of the present epoch
        self._total_steps = 0  # finished steps of all epochs
        self._saved_steps = 0  # the value of `_total_steps` at the last save
        self._saved_place: TrainingPlace | None = None  # the position in the newest state
        self._is_longer = False  # the interrupted epoch has more steps than others, as Keras was told
        self._is_at_work = partial(is_callback_in_running_fit, weakref.ref(self))
        self._rate: float | str | None = None  # the learning rate with which the run began
        self._was_stopped = False  # a callback has ended the training within an epoch
        self._receipt_file: ReceiptFile | None = None  # from the beginning of the training on

    def __reduce__(self) -> NoReturn:
        """Refuses pickle and copies, which hyperparameter tuners make of callbacks."""
        raise NoCopyError(
            "ResumeCallback", "make one with a folder of its own in the function that trains, for each trial"
        )

    # --- called by Keras, after all other callbacks

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        callbacks = find_fit_callbacks()
        # This callback moves to the end, so that a state includes what the others did after the same step. The list is
        # replaced, since Keras is iterating over the old one.
        callbacks.callbacks = [each for each in callbacks.callbacks if each is not self] + [self]
        callbacks._async_train = False  # noqa: SLF001 - Keras would save in a thread while it trains, given no list

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        check_data_of_running_fit(self._data, "ResumeCallback", "ResumeCallback(data, DIR)")
        steps = self.params["steps"]
        if steps != len(self._data):
            raise ConfigError(
                f"ResumeCallback cannot count the steps with steps_per_epoch={steps}: give  fit_data(stream, "
                f"steps={steps})"
            )
        # The folder is claimed before its states are read, so that no other training replaces them meanwhile.
        try:
            self._checkpoints.claim_folder(self._is_at_work)
        except OSError as error:
            raise ConfigError(f"nothing can be saved in {self._checkpoints.directory} ({error.strerror})") from error
        self._other_callbacks = OtherCallbacks(
            [each for each in find_fit_callbacks().callbacks if each is not self], print_stderr_line
        )
        receipts = receipt_file_path(self._checkpoints.directory, self._data.stream.rank)
        self._receipt_file = ReceiptFile(receipts, len(self._data.stream.receipts))
        self._resumed_state, self._was_stopped, self._is_longer = None, False, False
        self._total_steps = self._saved_steps = self._done_steps = self._begun_steps = 0
        self._saved_place = None
        self._rate = describe_learning_rate(self.model.optimizer)
        if saved := self._checkpoints.load_newest_state():
            self._resume_from_state(saved)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        self.model._initial_epoch = None  # noqa: SLF001 - as Keras's own BackupAndRestore does, for another fit
        self._epoch = epoch
        self._begun_steps = self._done_steps = 0
        self._pending_tokens.begin_epoch()
        # Keras has reset the metrics, and the other callbacks have begun the epoch. The saved run had done both before
        # its state was saved, so the state is restored once more.
        if self._resumed_state:
            saved, place = self._resumed_state
            self._restore_state(saved)
            self._begun_steps = self._done_steps = place.step
            self._resumed_state = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._pending_tokens.finish_steps(batch + 1)
        done = self._begun_steps + self._pending_tokens.done
        self._total_steps += done - self._done_steps
        self._done_steps = done
        # The last step's state is saved in `on_epoch_end`, after the validation.
        if done >= self._count_epoch_steps():
            return
        if self.model.stop_training:
            self._was_stopped = True
            # A loss that is not finite is why the training was stopped, so an earlier state is the better one.
            if math.isfinite((logs or {}).get("loss", 0.0)):
                self._save_state(self._epoch, done)
        elif self._is_save_due():
            self._save_state(self._epoch, done)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        if self._is_longer:
            set_keras_epoch_steps(self._data.num_batches)
            self._is_longer = False
        # The receipt comes first: a process that is killed between the two writes it again, and loses none.
        self.append_receipts()
        over = bool(self.model.stop_training)
        last = over or epoch + 1 >= self.params["epochs"]
        if not self._was_stopped and (last or self._every == "epoch" or self._is_save_due()):
            self._save_state(epoch + 1, 0, over=over)

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        self.model._initial_epoch = None  # noqa: SLF001 - as above, where no epoch was left
        self.append_receipts()

    # --- saving

    def append_receipts(self) -> None:
        """Appends new receipts of the stream to DIRECTORY/receipts-RANK.jsonl, as at the end of each epoch.

        Prints a line if they cannot be written, since the training goes on without them.
        """
        if self._receipt_file is None or len(self._data.stream.receipts) <= self._receipt_file.written:
            return
        try:
            self._checkpoints.claim_folder(self._is_at_work)
            self._receipt_file.append_new_receipts(self._data.stream.receipts)
        except (OSError, ConfigError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            print_stderr_line(
                f"receipts could not be written to {self._receipt_file.path} ({why}); training continues, "
                "and they are written at the end of the next epoch if that is possible then"
            )

    def save_interrupted(self) -> None:
        """Saves the state after the last finished step of a `fit` that an exception ended while it waited for a batch.

        Saves nothing if the epoch's steps are all finished but its validation is not, or within several steps that are
        one execution: the state saved before remains the newest.
        """
        is_within_epoch = 0 < self._done_steps < self._count_epoch_steps()
        if is_within_epoch and self._total_steps > self._saved_steps and not self._pending_tokens.unfinished:
            self._save_state(self._epoch, self._done_steps)

    def describe_saved_place(self) -> str | None:
        """Describes where the program would resume: `goes on with epoch 3 of 10`; None without a saved state."""
        return _describe_place(self._saved_place, self.params["epochs"]) if self._saved_place else None

    def _count_epoch_steps(self) -> int:
        """Returns the steps of the epoch, with those of an earlier process, which may have had another size."""
        return self._begun_steps + self._data.epoch_steps

    def _is_save_due(self) -> bool:
        """Returns whether a multiple of `every` steps was reached since the last saved state."""
        return self._every != "epoch" and self._total_steps // self._every > self._saved_steps // self._every

    def _save_state(self, epoch: int, step: int, *, over: bool = False) -> None:
        if self._pending_tokens.last is None:
            return  # no step was finished since the state that there is
        packer = DataPacker(keras.ops)
        place = TrainingPlace(epoch, step, self._total_steps, self._pending_tokens.last(), over=over)
        geometry = StepGeometry.from_data(self._data)
        interrupted = InterruptedEpoch(geometry, self._count_epoch_steps(), step, self._data.is_own_epoch)
        content = {
            "place": asdict(place),
            "interrupted": asdict(interrupted),
            "rate": self._rate,
            "variables": pack_variables(self.model, packer),
            "callbacks": self._other_callbacks.pack_callback_states(packer),
            "generators": packer.pack_value(collect_generator_states()),
        }
        folder = self._checkpoints.directory
        try:
            self._checkpoints.claim_folder(self._is_at_work)
            self._checkpoints.save_state(self._total_steps, content, packer.arrays)
            self._saved_place = place
        except (OSError, ConfigError) as error:  # the training goes on without this state
            why = error.strerror if isinstance(error, OSError) else error
            kept = "the last one that was saved is" if self._checkpoints.has_states() else "no earlier one is"
            print_stderr_line(
                f"the state after step {self._total_steps} could not be saved in {folder} ({why}); training "
                f"continues, and {kept} still there"
            )
        # Set after a failed save too: the next attempt comes when a further multiple of `every` is reached.
        self._saved_steps = self._total_steps

    # --- going on

    def _resume_from_state(self, saved: SavedState) -> None:
        """Restores a state, moves the stream to its position, and says on stderr where the training continues."""
        # Creates all variables that Keras would create in its first step. Keras does so itself on all backends but
        # TensorFlow.
        self.model._symbolic_build(data_batch=self._data.build_example_arrays())  # noqa: SLF001 - as above
        self._restore_state(saved)
        content, place = saved.content, TrainingPlace(**saved.content["place"])
        # The saved learning rate is kept, and a program's that differs is reported.
        changed = None
        if "rate" in content:
            given, self._rate = self._rate, content["rate"]
            kept = describe_learning_rate(self.model.optimizer)
            changed = describe_learning_rate_change(self._rate, kept if isinstance(kept, float) else None, given)
        epochs = self.params["epochs"]
        goes_on = not place.over and place.epoch < epochs
        # A state of an older version does not record its epoch. There, the size of steps could not change.
        then, now = None, StepGeometry.from_data(self._data)
        if said := content.get("interrupted"):
            then = InterruptedEpoch(**{**said, "geometry": StepGeometry(**said["geometry"])})
        is_ended = not place.step and then is not None and then.own
        left = self._data.seek(place.token, after="epoch" if is_ended else "step")
        rest: int | None = None  # the steps that the rest of an interrupted epoch takes
        if place.step:
            epoch = then or InterruptedEpoch(now, now.steps, min(place.step, now.steps), own=now.whole)
            rest = count_remaining_steps(epoch, now, left)
            if rest and not (epoch.own and now.whole):
                self._data.epoch_rest = rest, self._is_at_work
            if rest > now.steps:
                set_keras_epoch_steps(rest)
                self._is_longer = True
            # Too little is left of the epoch for a step, so the next one begins.
            if not rest:
                place = replace(place, epoch=place.epoch + 1, step=0)
        resized = describe_step_change(then.geometry, now, rest, left) if then else None
        self._total_steps = self._saved_steps = place.total
        self._saved_place = place
        begin = FirstEpoch(epochs if place.over else place.epoch, self._is_at_work)
        self.model._initial_epoch = begin  # noqa: SLF001 - as in on_epoch_begin
        if place.step:
            self._resumed_state = saved, place
        for line in (_describe_place(place, epochs), resized if goes_on else None, changed if goes_on else None):
            if line:
                print_stderr_line(f"{saved.folder}: {line}")

    def _restore_state(self, saved: SavedState) -> None:
        restore_variables(self.model, saved.content["variables"], saved.arrays, str(saved.folder))
        self._other_callbacks.restore_callback_states(saved.content["callbacks"], saved.arrays)
        restore_generator_states(unpack_value(saved.content["generators"], saved.arrays, keras.ops))


def _describe_place(place: TrainingPlace, epochs: int) -> str:
    if place.over:
        return (
            f"a callback ended this training after epoch {place.epoch}; remove the folder to start again from the "
            "beginning"
        )
    if place.step:
        return f"continues in epoch {place.epoch + 1} of {epochs}, after step {place.step}"
    if place.epoch >= epochs:
        return (
            f"{'the one epoch is' if epochs == 1 else f'all {epochs} epochs are'} done; the saved state is only loaded"
        )
    return f"continues with epoch {place.epoch + 1} of {epochs}"


# --- Packs and restores the state of a training, except its position in the stream. Imports Keras, for any backend.
#
# The state has the variables of the model, its optimizer and its metrics; the changes in other callbacks since the
# `fit` began; and the states of the process's random generators, which callbacks, losses and Keras on torch draw from.


_PARTS: Final = {
    "model": "the state of another model; build the model as it was",
    "optimizer": "the state of another optimizer; compile with the optimizer of that run",
    "metrics": "other metrics; compile with the metrics of that run",
}
_KERAS_OWN: Final = frozenset({"_model", "params"})  # set in every callback by Keras
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")  # an object's address, which differs between processes


class _SavedVariable(NamedTuple):
    """The saved facts about a variable; `number` is that of the array with its value."""

    path: str
    shape: list[int]
    dtype: str
    number: int


def pack_variables(model: Any, packer: DataPacker) -> dict[str, Any]:
    """Packs the values of all variables: weights, states of random seeds, the optimizer's and the metrics'.

    On torch, also the states of torch's own generators, one for each device: a Dropout without a seed draws from them.
    """
    taken = {
        part: [
            _SavedVariable(
                each.path,
                list(each.shape),
                keras.backend.standardize_dtype(each.dtype),
                packer.add_array(each.numpy()),
            )
            for each in _list_variables(model, part)
        ]
        for part in _PARTS
    }
    generators = [packer.add_array(generator.get_state().numpy()) for generator in _find_torch_generators()]
    return {"kind": type(model.optimizer).__name__, "generators": generators, **taken}


def restore_variables(model: Any, state: dict[str, Any], arrays: Sequence[Array], where: str) -> None:
    """Assigns saved values to the variables of a built model. Raises ConfigError, before any change, on a mismatch.

    `where` names the state in errors. Variables are matched by their order, since names differ between processes.
    """

    def build_mismatch_error(part: str, facts: str) -> ConfigError:
        return ConfigError(
            f"{where} holds {_PARTS[part]}, or choose another folder to start from the beginning: {facts}"
        )

    kind = type(model.optimizer).__name__
    if kind != state["kind"]:
        raise build_mismatch_error("optimizer", f"it was saved from {state['kind']}, but the model has {kind}")
    pairs: list[tuple[Any, _SavedVariable]] = []
    for part in _PARTS:
        variables, saved = _list_variables(model, part), [_SavedVariable(*each) for each in state[part]]
        if len(variables) != len(saved):
            raise build_mismatch_error(
                part, f"it has {format_count(len(saved), 'variable')}, but there are {len(variables)} now"
            )
        for variable, record in zip(variables, saved, strict=True):
            shape, dtype = list(variable.shape), keras.backend.standardize_dtype(variable.dtype)
            if (shape, dtype) != (record.shape, record.dtype):
                raise build_mismatch_error(
                    part, f"{record.path} was {record.dtype} {record.shape}, but {variable.path} is {dtype} {shape} now"
                )
            pairs.append((variable, record))
    for variable, record in pairs:
        variable.assign(arrays[record.number])
    for generator, number in zip(
        _find_torch_generators(), state.get("generators", ()), strict=False
    ):  # devices may differ
        generator.set_state(import_library("torch", "torch", "Keras on torch").from_numpy(arrays[number].copy()))


def describe_learning_rate(optimizer: Any) -> float | str | None:
    """Returns the present learning rate, or a description of its schedule; None if there is none."""
    rate = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_learning_rate", None)
    if rate is None or isinstance(rate, keras.Variable):
        return None if rate is None else float(rate.numpy())
    if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return getattr(rate, "__qualname__", type(rate).__name__)
    try:
        made_of = str(rate.get_config())
    except Exception:  # noqa: BLE001 - a user's schedule without a config, as it is never saved: only its type is known
        return type(rate).__name__
    return f"{type(rate).__name__} of {_ADDRESS.sub('', made_of)}"


def _find_torch_generators() -> list[Any]:
    """Returns torch's default generators, of the CPU and of each GPU if CUDA is in use; none on other backends."""
    if keras.backend.backend() != "torch":
        return []
    torch = import_library("torch", "torch", "Keras on torch")
    return [torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ())]


def _list_variables(model: Any, part: str) -> list[Any]:
    if part == "optimizer":
        return list(model.optimizer.variables) if model.optimizer is not None else []
    return list(model.variables if part == "model" else model.metrics_variables)


# --- the other callbacks


class OtherCallbacks:
    """The callbacks other than the one that saves, as they are after `on_train_begin` of all of them.

    Attributes that change after that are a callback's state; the others are its configuration, which the program sets.
    The progress bar has no state. An attribute that cannot be packed is reported once, except in Keras's own
    callbacks, where it is something like an open file.
    """

    def __init__(self, callbacks: Sequence[Any], warn: Callable[[str], None]) -> None:
        self._callbacks = [each for each in callbacks if not isinstance(each, keras.callbacks.ProgbarLogger)]
        self._initial_values = [_snapshot_attributes(each) for each in self._callbacks]
        self._warn = warn
        self._warned: set[str] = set()

    def pack_callback_states(self, packer: DataPacker) -> list[list[Any]]:
        """Returns for each callback its kind and its changed attributes, packed, by name."""
        packed = list[list[Any]]()
        for callback, begun in zip(self._callbacks, self._initial_values, strict=True):
            changes: dict[str, Any] = {}
            for name, look in _snapshot_attributes(callback).items():
                if name in begun and begun[name].is_same_value(look):
                    continue
                try:
                    changes[name] = packer.pack_value(vars(callback)[name])
                except UnkeptError as error:
                    what = f"{type(callback).__name__}.{name}"
                    if what not in self._warned and not type(callback).__module__.startswith("keras."):
                        self._warned.add(what)
                        self._warn(
                            f"{what} is of type {error} and cannot be kept: after a restart this callback starts "
                            "without its saved value"
                        )
            packed.append([_build_callback_kind(callback), changes])
        return packed

    def restore_callback_states(self, saved: Sequence[Sequence[Any]], arrays: Sequence[Array]) -> None:
        """Restores the callbacks' attributes: the first callback of a kind gets the first state of that kind, etc."""
        left = list(saved)
        for callback in self._callbacks:
            found = next((each for each in left if each[0] == _build_callback_kind(callback)), None)
            if found is None:
                continue
            left.remove(found)
            for name, packed in found[1].items():
                setattr(callback, name, unpack_value(packed, arrays, keras.ops))


def _snapshot_attributes(callback: Any) -> dict[str, ValueSnapshot]:
    return {
        name: ValueSnapshot.from_value(value, keras.ops)
        for name, value in vars(callback).items()
        if name not in _KERAS_OWN
    }


def _build_callback_kind(callback: Any) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


# --- random generators


def collect_generator_states() -> dict[str, Any]:
    """Returns the generator states of Python, NumPy and, if it is loaded, torch on the CPU, as plain data."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - what others draw from, whatever one should
    }
    if torch := sys.modules.get("torch"):
        states["torch"] = torch.get_rng_state().numpy()
    return states


def restore_generator_states(states: dict[str, Any]) -> None:
    """Restores the states that `collect_generator_states` returned."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002 - as above
    torch = sys.modules.get("torch")
    if torch and "torch" in states:
        torch.set_rng_state(torch.from_numpy(states["torch"]))


# --- Packs Python values into JSON and arrays, and unpacks them. Plain data only: no pickle, nothing that can execute.


Array = npt.NDArray[Any]


class UnkeptError(Exception):
    """A value is not plain data and cannot be packed."""


@dataclass(slots=True)
class DataPacker:
    """Packs values into JSON, which refers to arrays by their numbers in `arrays`.

    `functions` is a module such as keras.ops, whose functions are packed by name.
    """

    functions: Any
    arrays: list[Array] = field(default_factory=list)

    def add_array(self, array: Array) -> int:
        """Stores an array and returns its number."""
        self.arrays.append(array)
        return len(self.arrays) - 1

    def pack_value(self, value: Any, within: tuple[int, ...] = ()) -> Any:
        """Returns JSON for None, numbers, text, arrays, named functions, and lists, tuples and dicts of these.

        Every JSON object has one key, a tag that names the type of its value. `within` has the identities of the
        containers around the value. Raises UnkeptError for any other type, for nesting deeper than MAX_NESTING, and
        for a container that contains itself.
        """
        if len(within) > MAX_NESTING or id(value) in within:
            raise UnkeptError(
                f"{type(value).__name__}, which contains itself or is nested more than {MAX_NESTING} levels deep,"
            )
        inner = (*within, id(value))
        if value is None or type(value) in {bool, int, float, str}:
            return value
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            return {"array" if isinstance(value, np.ndarray) else "scalar": self.add_array(np.asarray(value))}
        if type(value) is list:
            return [self.pack_value(each, inner) for each in value]
        if type(value) is tuple:
            return {"tuple": [self.pack_value(each, inner) for each in value]}
        if type(value) is dict:
            return {
                "dict": [[self.pack_value(key, inner), self.pack_value(each, inner)] for key, each in value.items()]
            }
        name = getattr(value, "__name__", "")
        if name and getattr(self.functions, name, None) is value:
            return {"function": name}
        raise UnkeptError(type(value).__name__)


def unpack_value(packed: Any, arrays: Sequence[Array], functions: Any) -> Any:
    """Returns the value that was packed. Its arrays are copies, which the caller may change."""
    if isinstance(packed, list):
        return [unpack_value(each, arrays, functions) for each in packed]
    if not isinstance(packed, Mapping):
        return packed
    ((tag, what),) = packed.items()
    if tag == "function":
        return getattr(functions, what)
    if tag in {"array", "scalar"}:
        return arrays[what].copy() if tag == "array" else arrays[what][()]
    items = unpack_value(what, arrays, functions)
    return tuple(items) if tag == "tuple" else dict(items)


@dataclass(frozen=True, slots=True)
class ValueSnapshot:
    """A value's content at one time, to detect later changes. Values that are not plain data compare by identity."""

    text: str
    arrays: tuple[tuple[str, tuple[int, ...], bytes], ...] = ()  # dtype, shape and content of each
    other: Any = None

    @staticmethod
    def from_value(value: Any, functions: Any) -> ValueSnapshot:
        packer = DataPacker(functions)
        try:
            text = json.dumps(packer.pack_value(value))
        except UnkeptError:
            return ValueSnapshot("", other=value)
        return ValueSnapshot(text, tuple((str(each.dtype), each.shape, each.tobytes()) for each in packer.arrays))

    def is_same_value(self, other: ValueSnapshot) -> bool:
        """Returns whether both snapshots show the same value.

        Changes within an object that is not plain data are not detected.
        """
        return (self.text, self.arrays) == (other.text, other.arrays) and self.other is other.other


# --- Plans how to resume a training that was saved with other steps or another learning rate. Pure.


LearningRate = float | str | None  # a number, the description of a schedule, or None without an optimizer's rate


@dataclass(frozen=True, slots=True)
class StepGeometry:
    """The steps in which `fit` takes a stream: `rows` rows a step for each of `world` ranks, `steps` steps an epoch.

    `whole`: its epochs are the stream's epochs, and not a fixed number of steps.
    """

    rows: int
    world: int
    steps: int
    whole: bool

    @staticmethod
    def from_data(data: StreamAdapter) -> StepGeometry:
        """Returns the size and number of the steps in which `fit` takes the stream of `data` now."""
        steps = data.num_batches
        return StepGeometry(data.spec.batch_size, data.stream.world, steps, whole=steps == len(data.stream))

    @property
    def step_samples(self) -> int:
        """The samples of a step, over all ranks."""
        return self.rows * self.world

    def __str__(self) -> str:
        ranks = "" if self.world == 1 else f" for each of {self.world} ranks"
        return f"batches of {self.rows}{ranks}"


@dataclass(frozen=True, slots=True)
class InterruptedEpoch:
    """An epoch of `fit` that was interrupted after `done` of its `length` steps, which have the size of `geometry`.

    `own`: it was an epoch of the stream, or the rest of one, and not a fixed number of steps.
    """

    geometry: StepGeometry
    length: int
    done: int
    own: bool


def count_remaining_steps(epoch: InterruptedEpoch, now: StepGeometry, left: int) -> int:
    """Returns how many of today's steps the rest of an interrupted epoch takes.

    `left` is the number of steps left in the stream's present epoch.
    """
    if epoch.own:
        return left
    samples = (epoch.length - epoch.done) * epoch.geometry.step_samples
    return -(-samples // now.step_samples)


def describe_step_change(then: StepGeometry, now: StepGeometry, rest: int | None, left: int) -> str | None:
    """Describes how steps or epochs differ from the saved run's; None if they do not.

    rest: the steps left of the interrupted epoch; None if no epoch was interrupted.
    left: the steps left of the stream's present epoch.
    """
    resized = (then.rows, then.world) != (now.rows, now.world)
    recounted = then.steps != now.steps and not (then.whole and now.whole)
    parts = []
    if resized:
        parts.append(f"the run was saved with {then}, and continues with {now}")
    if recounted:
        first = (left - (rest or 0)) % now.steps if now.whole else 0
        shorter = (
            f", but the first such epoch has only the {first} that are left of the stream's epoch" if first else ""
        )
        had = format_count(then.steps, "step")
        parts.append(f"an epoch had {had}, and from here on has the {now.steps} of this program{shorter}")
    if parts and rest:
        parts.append(f"before that, the rest of the interrupted epoch takes {format_count(rest, 'step')}")
    elif parts and rest == 0:
        parts.append(
            "what is left of the interrupted epoch is less than one step, so that epoch is over, and it is not "
            "validated"
        )
    return "; ".join(parts) or None


def describe_learning_rate_change(begun: LearningRate, kept: float | None, given: LearningRate) -> str | None:
    """Describes a program's learning rate that differs from the one with which the run began; None if it does not.

    begun: the learning rate with which the run began.
    kept: the number in the saved state, None for a schedule.
    given: the learning rate of the present program.
    """
    if given in (begun, kept):
        return None
    shown = f"{given:.6g}" if isinstance(given, float) else str(given)
    if kept is None:
        return f"the learning rate schedule differs from the saved one: this program's schedule is used, {shown}"
    return (
        f"the learning rate is {kept:.6g}, as it was saved; this program's {shown} is ignored: "
        "set model.optimizer.learning_rate in a callback, or choose another folder to start a new training run with "
        "it"
    )
