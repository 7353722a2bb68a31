"""What `streamd-train` is asked to do, and what can be told of it before Keras is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from streamd.client.client import Start
from streamd.core.spec import LabelSpec, StreamSpec
from streamd.core.text import shorten_text
from streamd.errors import ConfigError
from streamd.frameworks.model_inputs import find_label
from streamd.limits import MAX_TRAINER_NAME_CHARS


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """What to train on what. `label` None means the only one, `model` None the built-in network for it.

    With `together` the training begins when so many trainers have subscribed to the stream. With `resume` it is saved
    in that folder as it goes, and goes on from there. `callbacks` are named as module:function. Of `optimizer` and
    `learning_rate` None means Keras's own, of `batch_size` the stream's. `name` is what it is called where people look
    at the daemon, None the command's with the model's. `command_line` is how it was started. Raises ConfigError for
    what cannot be.
    """

    stream: str
    epochs: int
    save: Path
    validation: str | None = None
    label: str | None = None
    model: str | None = None
    seed: int | None = None
    together: int | None = None
    resume: Path | None = None
    callbacks: tuple[str, ...] = ()
    optimizer: str | None = None
    learning_rate: float | None = None
    mixed_precision: bool = False
    class_weight: Literal["balanced"] | None = None
    name: str | None = None
    batch_size: int | None = None
    command_line: str = "streamd-train"

    @property
    def trainer_name(self) -> str:
        """What `streamd status` calls this training: `streamd-train model` where it saves model.keras."""
        return self.name or shorten_text(f"streamd-train {self.save.stem}", MAX_TRAINER_NAME_CHARS)

    @property
    def stream_start(self) -> Start:
        """How the stream is subscribed to."""
        return {"together": self.together} if self.together else "begin"

    @property
    def curves_path(self) -> Path:
        """Where the curves go: `model.curves.png` beside `model.keras`."""
        return get_curves_path(self.save)

    @property
    def interrupted_save(self) -> Path:
        """Where the model of a training that was stopped goes: `model.interrupted.keras`."""
        return self.save.with_suffix(f".interrupted{self.save.suffix}")

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ConfigError(f"epochs must be at least 1, not {self.epochs}")
        if self.save.suffix != ".keras":
            raise ConfigError(
                f"the model is saved in Keras's own format: name a file ending in .keras, not {self.save}"
            )
        rate = self.learning_rate
        if rate is not None and not (rate > 0 and math.isfinite(rate)):
            raise ConfigError(f"a learning rate is a number above 0, such as 0.001, not {rate}")
        check_folder_exists(self.save)


def get_curves_path(model: Path) -> Path:
    """Where the curves of a model go: `model.curves.png` beside `model.keras`."""
    return model.with_suffix(".curves.png")


def check_folder_exists(path: Path) -> None:
    """Raises ConfigError unless the folder of `path` exists: better before hours of training than after."""
    if not path.parent.is_dir():
        raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}")


def choose_label(spec: StreamSpec, name: str | None) -> LabelSpec:
    """The label to learn: the one named, or the only one. Raises ConfigError."""
    if name is not None:
        return _require_learnable_label(find_label(spec, name))
    learnable = [label for label in spec.labels.values() if label.type != "string"]
    if not learnable:
        what = "labels but text" if spec.labels else "labels"
        raise ConfigError(f"stream {spec.name!r} has no {what}, so there is nothing to learn from it")
    if len(learnable) > 1:
        names = ", ".join(label.name for label in learnable)
        raise ConfigError(f"stream {spec.name!r} has the labels {names}: choose one with  --label")
    return learnable[0]


def _require_learnable_label(label: LabelSpec) -> LabelSpec:
    if label.type == "string":
        raise ConfigError(f"label {label.name!r} is text, which cannot be learned: serve it as type category or tags")
    return label


def check_streams_match(train: StreamSpec, validation: StreamSpec, label: LabelSpec) -> None:
    """Raises ConfigError unless a model for one stream can be judged by the other."""
    other = find_label(validation, label.name)
    if train.image_shape != validation.image_shape:
        raise ConfigError(
            f"images of {train.name!r} are {train.image_shape} and of {validation.name!r} {validation.image_shape}: "
            "give both streams the same  image:"
        )
    if (label.type, label.width, label.classes) != (other.type, other.width, other.classes):
        raise ConfigError(
            f"label {label.name!r} of {train.name!r} and of {validation.name!r} differ in type or classes: "
            "serve both from one configuration, where they share them"
        )
