"""A mistake of somebody's first day, as plain data: what was done, what streamd says, what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GOOD = """\
streams:
  train:
    source: {kind: folder, path: data}
    image: {size: [32, 32]}
    batch_size: 4
"""
TABLE = """\
streams:
  train:
    source: {kind: table, path: all.csv, image: path, root: data}
    labels: {angle: float}
    image: {size: [32, 32]}
    batch_size: 4
"""

SERVE = "streamd serve --config config.yaml"


@dataclass(frozen=True)
class Mistake:
    """`did` and `do` are for people; `says` is all of stderr, line by line, where … stands for what varies.

    The mistake is made in a folder with config.yaml, `data` (two classes of four images), `all.csv` (path, angle) and
    whatever `files` put in its place or, as None, take away. `prepare` does what files cannot. `command` is a command,
    or Python on a `client`, and then `says` is the error. `running`: a daemon serves train, validation and others.
    `without`: a library that is not installed. `unprivileged`: permissions count, even for root.
    `printed`: `says` is what check prints under Trouble, and not on stderr.
    """

    did: str
    says: str
    do: str
    config: str = GOOD
    command: str = SERVE
    status: int = 2
    files: Mapping[str, str | bytes | None] = field(default_factory=dict)
    prepare: Callable[[Path], object] | None = None
    running: bool = False
    without: str | None = None
    unprivileged: bool = False
    printed: bool = False


def in_train(did: str, *, says: str, do: str, config: str = GOOD, **more: Any) -> Mistake:
    """A mistake in stream `train`: each line of `says` is `LINE: KEY: TEXT`, of config.yaml and this stream."""
    lines = (line.partition(": ") for line in says.split("\n"))
    told = "\n".join(f"config.yaml:{number}: streams.train.{text}" for number, _, text in lines)
    return Mistake(did, says=f"streamd: {told}", do=do, config=config, **more)
