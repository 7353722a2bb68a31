"""What lies at a path, in the words of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from streamd.errors import ConfigError

Settings = dict[str, object]
DataKind = Literal["folder", "table", "tar"]

PATH_KEY: Final = "PATH"  # what the argument is called in messages
TRAIN: Final = "train"
VALIDATION: Final = "validation"
TEST: Final = "test"
PART_NAMES: Final = {TRAIN: ("train",), VALIDATION: ("validation", "val", "valid"), TEST: ("test",)}
SMALL_SAMPLES: Final = 100  # of as many, a part of a fifth is empty once in billions of seeds
KINDS_SERVED: Final = "a folder of images, a table (.csv, .tsv, .parquet), or a folder or file of tars"


@dataclass(frozen=True, slots=True)
class DataSurvey:
    """The streams that the data make.

    `sources` has the keys of each stream's source beside `kind`, train first; paths are absolute. `is_split` says that
    validation is held back from the samples of train, by `split_seed`; `is_small` that there may be so few samples that
    one side would have none. `labels` None: those that the source has by itself. `own_labels`
    are those of streams that differ from train. `left_out` says of each column why it is no label.
    """

    path: Path
    kind: DataKind
    sources: Mapping[str, Settings]
    is_split: bool
    is_small: bool
    labels: Mapping[str, object] | None = None
    own_labels: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    split_seed: int = 0


def split_train_source(source: Settings) -> dict[str, Settings]:
    """The sources of train and validation where one set of samples is split."""
    return {name: {**source, "part": name} for name in (TRAIN, VALIDATION)}


def build_refusal(what: str, remedy: str) -> ConfigError:
    """The error for a path that no configuration is made from."""
    return ConfigError(f"{PATH_KEY}: {what}; a configuration is made from {KINDS_SERVED}: {remedy}")
