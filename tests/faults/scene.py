"""A daemon over a folder of images, what is true of it, and how large and by which seed the faults are."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from logged import LoggedTrainer
from oracle import Truth
from support.daemon_process import DaemonProcess, stream_config, write_images

FULL: Final = os.environ.get("FAULTS_FULL") == "1"  # set by `scripts/test --faults`; else each row in small
SEED: Final = int(os.environ.get("FAULTS_SEED", "0"))
_SHIM: Final = os.pathsep.join([str(Path(__file__).with_name("shim")), os.environ.get("PYTHONPATH", "")])


def times(full: int, small: int) -> int:
    """How often a fault comes: in `scripts/test --faults`, and in every other run of the tests."""
    return full if FULL else small


def dice() -> random.Random:
    """The same throws for the same seed."""
    return random.Random(SEED)  # noqa: S311 - to be repeatable is what it is for


def shimmed(**faults: str) -> dict[str, str]:
    """An environment in which Python has faults from within, see shim/sitecustomize.py."""
    return {"PYTHONPATH": _SHIM, **faults}


@dataclass(frozen=True, slots=True)
class Scene:
    """A running daemon, the truth about its stream, and a place for logs."""

    daemon: DaemonProcess
    truth: Truth
    place: Path
    streams: dict[str, dict[str, object]]

    def trainer(self, name: str, **orders: Any) -> LoggedTrainer:
        return LoggedTrainer(**{"endpoint": self.daemon.endpoint, "log": self.place / f"{name}.log", **orders})

    def at(self, place: Path) -> Scene:
        """The same, for a test that keeps its logs at a place of its own."""
        return replace(self, place=place)

    def trainers(self, count: int, **orders: Any) -> list[LoggedTrainer]:
        return [self.trainer(f"trainer-{place}", **orders) for place in range(count)]


@contextlib.contextmanager
def scene(
    place: Path,
    images: int,
    *,
    settings: dict[str, object] | None = None,
    environment: dict[str, str] | None = None,
    **stream: object,
) -> Iterator[Scene]:
    """`settings` are of the daemon; `stream` are keys of its one stream, `train`, whose batches have 2 images."""
    half = images // 2
    folder = write_images(place / "data", {"cat": half, "dog": images - half}, size=(32, 32))
    streams = {"train": stream_config(folder, **{"batch_size": 2, **stream})}
    (place / "daemon").mkdir()
    config = {"workers": times(2, 1), **(settings or {}), "streams": streams}
    with DaemonProcess(place / "daemon", config, environment=environment) as daemon:
        yield Scene(daemon, Truth({"streams": streams}, "train", place / "truth"), place, streams)
