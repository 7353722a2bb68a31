"""The callback that saves a training as it goes, and goes on where it was. Imports Keras: `frameworks.keras` loads it.

Exact means: the run that was killed and started again ends with the weights of one that was not. So what is saved is
the state after a step that was finished, or after an epoch with its validation, when every other callback has had its
turn; and the stream goes on behind the batch of that step, however many more were fetched.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import keras

from streamd.client.patience import say
from streamd.errors import ConfigError
from streamd.frameworks import generators
from streamd.frameworks.callback_state import OtherCallbacks
from streamd.frameworks.checkpoint import Checkpoints, Saved
from streamd.frameworks.claim import claim
from streamd.frameworks.finished import Finished
from streamd.frameworks.kept import Packer, unpack
from streamd.frameworks.keras_adapter import StreamAdapter
from streamd.frameworks.keras_state import build, put_back, take


@dataclass(frozen=True, slots=True)
class Place:
    """Where a training is: `step` steps of `epoch` are finished, `total` of all. `over`: a callback has ended it.

    `token` is the stream's place. Older versions saved a place of the validation too, which always begins at the same
    one by now.
    """

    epoch: int
    step: int
    total: int
    token: str
    validation: str | None = None
    over: bool = False


class ResumeCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Saves a training in `directory`, and goes on from there when the same program is started again.

        data = fit_data(stream)
        model.fit(data, epochs=10, callbacks=[ResumeCallback(data, "run-1")])

    Saved are all variables of the model (states of random seeds too), of its optimizer and of its metrics, what the
    other callbacks have learned, the history, and the place in the stream; validation begins at the same one each time.
    `fit` goes on at the epoch and step where that was: `epochs` counts in total, so a run that is through is only
    loaded, by a second `fit` too. Give every `fit` that is another one (other layers, optimizer, or rate) a directory
    of its own, and every rank.

    every: "epoch" saves when an epoch and its validation are through, a number after so many steps and at the end of
        the training. With several steps an execution, it is after the execution that reaches the number.
    keep: so many states stay, the newest; a damaged one is passed over, with a word, for the one before.

    Not saved: attributes of your own model, those of your own callbacks that are no plain data, further optimizers, and
    generators of random numbers other than those of Keras's layers, Python, NumPy and torch on the CPU. For equal bits
    on a CPU: keras.utils.set_random_seed, the same number of threads, and deterministic operations where the backend
    asks for them (tf.config.experimental.enable_op_determinism, torch.use_deterministic_algorithms). A disk that is
    full costs a line and this one save. Raises ConfigError for a directory that cannot be written or is another
    process's, for another model or optimizer than was saved, TokenError for another stream.
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
        self._checkpoints = Checkpoints(Path(directory), keep, say)
        self._finished = data.finished = Finished()
        self._others = OtherCallbacks([], say)
        self._going_on: tuple[Saved, Place] | None = None  # from within an epoch
        self._epoch = 0
        self._begun = 0  # steps of the epoch that an earlier process has finished
        self._done = 0  # steps of the epoch
        self._total = 0  # steps of all epochs
        self._saved = 0  # of those, when it was saved last
        self._left = False  # a callback has ended the training within an epoch

    # --- what Keras calls; this callback's turn comes last

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        callbacks = _calling()
        # A new list: Keras is going through the old one.
        callbacks.callbacks = [each for each in callbacks.callbacks if each is not self] + [self]
        callbacks._async_train = False  # noqa: SLF001 - Keras would save in a thread while it trains, given no list

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        steps = self.params["steps"]
        if steps != self._data.num_batches:
            raise ConfigError(
                f"ResumeCallback cannot count with steps_per_epoch={steps}: give  fit_data(stream, steps={steps})"
            )
        claim(self._checkpoints.directory)
        self._others = OtherCallbacks([each for each in _calling().callbacks if each is not self], say)
        self._going_on, self._left = None, False
        self._total = self._saved = self._done = self._begun = 0
        saved = self._checkpoints.newest()
        if saved:
            self._go_on(saved, Place(**saved.content["place"]))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        self.model._initial_epoch = None  # noqa: SLF001 - as Keras's own BackupAndRestore sets it; another fit begins anew
        self._epoch = epoch
        self._begun = self._done = 0
        self._finished.begin()
        if self._going_on:  # the callbacks' turns at the epoch's begin, and the metrics' reset, were had already then
            saved, place = self._going_on
            self._put_back(saved)
            self._begun = self._done = place.step
            self._going_on = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        done = self._begun + self._finished.finish(batch + 1)
        self._total += done - self._done
        self._done = done
        if done >= self._data.num_batches:
            return  # saved when the epoch is validated
        if self.model.stop_training:
            self._left = True
            if math.isfinite((logs or {}).get("loss", 0.0)):  # else that is why: better to go on from before
                self._save(self._epoch, done)
        elif self._has_taken_enough():
            self._save(self._epoch, done)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        over = bool(self.model.stop_training)
        last = over or epoch + 1 >= self.params["epochs"]
        if not self._left and (last or self._every == "epoch" or self._has_taken_enough()):
            self._save(epoch + 1, 0, over=over)

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        self.model._initial_epoch = None  # noqa: SLF001 - as above, where no epoch was left

    # --- saving

    def _has_taken_enough(self) -> bool:
        """Whether a multiple of so many steps was reached since the last state."""
        return self._every != "epoch" and self._total // self._every > self._saved // self._every

    def _save(self, epoch: int, step: int, *, over: bool = False) -> None:
        token = self._finished.token
        if token is None:
            return  # no step was finished since the state that there is
        packer = Packer(keras.ops)
        content = {
            "place": asdict(Place(epoch, step, self._total, token, over=over)),
            "variables": take(self.model, packer),
            "callbacks": self._others.take(packer),
            "generators": packer.pack(generators.take()),
        }
        try:
            self._checkpoints.save(self._total, content, packer.arrays)
        except OSError as error:
            say(
                f"the state after step {self._total} could not be saved in {self._checkpoints.directory} "
                f"({error.strerror}); the training goes on, and the last one that was saved is still there"
            )
        self._saved = self._total

    # --- going on

    def _go_on(self, saved: Saved, place: Place) -> None:
        build(self.model, self._data.example())
        self._put_back(saved)
        self._data.seek(place.token, place.step)
        self._total = self._saved = place.total
        epochs = self.params["epochs"]
        self.model._initial_epoch = epochs if place.over else place.epoch  # noqa: SLF001 - as in on_epoch_begin
        if place.step:
            self._going_on = saved, place
        say(f"{saved.folder}: {_where(place, epochs)}")

    def _put_back(self, saved: Saved) -> None:
        put_back(self.model, saved.content["variables"], saved.arrays, str(saved.folder))
        self._others.put_back(saved.content["callbacks"], saved.arrays)
        generators.put_back(unpack(saved.content["generators"], saved.arrays, keras.ops))


def _calling() -> Any:
    """The list of callbacks that is calling one of them: Keras gives them no other way to know of each other."""
    frame = inspect.currentframe()
    while frame:
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.callbacks.CallbackList):
            return caller
        frame = frame.f_back
    raise ConfigError("ResumeCallback is called by none of Keras's: give it to  fit(callbacks=[...])")


def _where(place: Place, epochs: int) -> str:
    if place.over:
        return f"a callback ended this training after epoch {place.epoch}; remove the folder to train anew"
    if place.step:
        return f"goes on in epoch {place.epoch + 1} of {epochs}, after step {place.step}"
    if place.epoch >= epochs:
        return f"all {epochs} epochs are done; it is only loaded"
    return f"goes on with epoch {place.epoch + 1} of {epochs}"
