"""Daemons on the configurations of examples/."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ruamel.yaml import YAML

from support.daemon_process import DaemonProcess

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"


@contextmanager
def serving(example: Path, folder: Path) -> Iterator[DaemonProcess]:
    """A daemon on an example's config.yaml, which is put into the folder where its data are."""
    with DaemonProcess(folder, YAML(typ="safe").load(example / "config.yaml")) as daemon:
        yield daemon
