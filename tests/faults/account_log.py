"""A trainer's own account, one JSON line for each step, and the checkpoint that a killed trainer goes on from.

Lines are appended with one write each, so a kill loses at most the line that was being written. A checkpoint names the
length of the log at its moment: what the log says beyond it was undone by the trainer that resumed there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from streamd.core.receipt import Receipt

Label = npt.NDArray[Any]


class Began(msgspec.Struct, frozen=True, tag="began"):
    """A process began at `position` of this log: 0, or what its checkpoint said. `first_*`: the cursor it was given."""

    pid: int
    position: int
    order_id: str
    first_epoch: int
    first_base: int
    ns: int


class Step(msgspec.Struct, frozen=True, tag="step"):
    """A batch that the loop took; digests of labels and pixels, `bad` as (row, sample, action).

    `connection` counts how often the stream had connected again, `waiting` the batches that were ready after this one.
    """

    epoch: int
    index: int
    ids: tuple[int, ...]
    weights: tuple[float, ...]
    labels: str
    images: str
    bad: tuple[tuple[int, int, str], ...]
    connection: int
    waiting: int
    ns: int


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """The receipt of an epoch."""

    receipt: Receipt


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The trainer came to the end of its last epoch."""

    ns: int


class Checkpoint(msgspec.Struct, frozen=True):
    """What a trainer saves beside its weights; `position` in bytes of its log."""

    token: str
    position: int


Record = Began | Step | Settled | Ended

_encode: Final = msgspec.json.Encoder().encode
_decode_record: Final[msgspec.json.Decoder[Record]] = msgspec.json.Decoder(Record)
_decode_checkpoint: Final = msgspec.json.Decoder(Checkpoint).decode


class AccountLog:
    """The writing end."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if self.length and os.pread(self._descriptor, 1, self.length - 1) != b"\n":
            os.write(self._descriptor, b"\n")  # the kill of the process before this one tore its last line

    def add(self, record: Record) -> None:
        line = _encode(record) + b"\n"
        assert os.write(self._descriptor, line) == len(line)

    @property
    def length(self) -> int:
        return os.fstat(self._descriptor).st_size


def read_records(path: Path, start: int = 0) -> Iterator[tuple[int, Record | None]]:
    """Whole lines from byte `start` on, with where each ends; None for one that is no record, as a kill may leave."""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            start += len(line)
            yield start, _record(line)


def _record(line: bytes) -> Record | None:
    try:
        return _decode_record.decode(line)
    except msgspec.MsgspecError:
        return None


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Whole or not at all."""
    temporary = path.with_suffix(".new")
    temporary.write_bytes(_encode(checkpoint))
    temporary.replace(path)


def load_checkpoint(path: Path) -> Checkpoint | None:
    return _decode_checkpoint(path.read_bytes()) if path.exists() else None


def images_digest(images: npt.NDArray[np.uint8]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(images).data, digest_size=16).hexdigest()


def labels_digest(labels: Mapping[str, Label]) -> str:
    """Over values, not over how they are stored."""
    values = {name: labels[name].tolist() for name in sorted(labels)}
    return hashlib.blake2b(_encode(values), digest_size=16).hexdigest()
