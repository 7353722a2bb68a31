"""The options of `streamd-train`, and checks of them that need no Keras."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from streamd.core.text import shorten_text
from streamd.errors import ConfigError
from streamd.limits import MAX_TRAINER_NAME_CHARS


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """The options of one training. Raises ConfigError for invalid ones.

    label: the label, or the image, to learn; None for the only one.
    inputs: the images and labels that go into the model; none of them named: all images but masks.
    model: `module:function`; None for the built-in network for the label.
    together: begin when this many trainers have subscribed to the stream.
    resume: the folder in which the training is saved, and from which it continues.
    callbacks: names of the form module:function.
    optimizer, learning_rate: None for Keras's own.
    batch_size: None for the stream's.
    name: the trainer's name in the daemon's status; None for the command with the model's name.
    command_line: the command with which the training was started.
    """

    stream: str
    epochs: int
    save: Path
    validation: str | None = None
    label: str | None = None
    inputs: tuple[str, ...] = ()
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
        """The training's name in `streamd status`: `streamd-train model` if it saves model.keras."""
        return self.name or shorten_text(f"streamd-train {self.save.stem}", MAX_TRAINER_NAME_CHARS)

    @property
    def interrupted_save(self) -> Path:
        """The path of the model of a training that was stopped: `model.interrupted.keras`."""
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
            raise ConfigError(f"the learning rate must be a number above 0, such as 0.001, not {rate}")
        check_folder_exists(self.save)


def get_curves_path(model: Path) -> Path:
    """Returns the path of a model's curves: `model.curves.png` beside `model.keras`."""
    return model.with_suffix(".curves.png")


def check_folder_exists(path: Path) -> None:
    """Raises ConfigError unless the folder of `path` exists, before hours of training and not after."""
    if not path.parent.is_dir():
        raise ConfigError(
            f"{path} cannot be written: there is no folder {path.parent}; create it, or choose another file"
        )
