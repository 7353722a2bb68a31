"""The findings of a survey of the data at a path, in the keys of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from streamd.dataset.layouts import TRAIN, VALIDATION, Settings
from streamd.errors import ConfigError

DataKind = Literal["folder", "table", "tar", "yolo", "coco"]

PATH_KEY: Final = "PATH"  # the argument's name in messages
SMALL_SAMPLES: Final = 100  # with so many samples, a part of a fifth is empty for one seed in billions
KINDS_SERVED: Final = (
    "a folder of images, with masks or without, a table (.csv, .tsv, .parquet), a tar file, a folder of tar files, a "
    "COCO file, or YOLO's data.yaml"
)


@dataclass(frozen=True, slots=True)
class StarterChoices:
    """What a user decides where the data leave it open: `root` of file names, names of `labels`, `encoding` of text."""

    root: Path | None = None
    labels: tuple[str, ...] = ()
    encoding: str | None = None


@dataclass(frozen=True, slots=True)
class DataSurvey:
    """The streams that the data make.

    `sources` has the keys of each stream's source except `kind`, train first; paths are absolute. `is_split` means that
    validation is held back from the samples of train, by `split_seed`; `is_small`, that there may be so few samples
    that one side would be empty. `labels` None stands for the labels that the source has by itself. `own_labels` are
    those of streams whose labels differ from train. `masks` are the patterns, below `path`, of the masks of each
    stream's pictures. `left_out` gives the reason for each column that is no label. `layout`
    says as what the data were recognised, where that is more than folders of pictures.
    """

    path: Path
    kind: DataKind
    sources: Mapping[str, Settings]
    is_split: bool
    is_small: bool
    labels: Mapping[str, object] | None = None
    own_labels: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    masks: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    layout: str = ""
    notes: tuple[str, ...] = ()
    split_seed: int = 0


def split_train_source(source: Settings) -> dict[str, Settings]:
    """Returns the sources of train and validation, which split the samples of one source."""
    return {name: {**source, "part": name} for name in (TRAIN, VALIDATION)}


def build_refusal(what: str, remedy: str) -> ConfigError:
    """Returns the error for a path from which no configuration can be made."""
    return ConfigError(f"{PATH_KEY}: {what}; streamd makes a configuration only from {KINDS_SERVED}: {remedy}")
