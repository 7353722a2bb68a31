"""Opens the null device as descriptors 0, 1 and 2 if this process was started without them.

Otherwise the next files to be opened get these numbers. libzmq takes a descriptor 0 for none, and a child takes a
socket for its standard error and prints into it.
"""

from __future__ import annotations

import os
import sys
from typing import Final

_NAMES: Final = ("stdin", "stdout", "stderr")  # by their descriptors


def fill_closed_standard_descriptors() -> None:
    """Opens those of the three that are closed. Every entry point calls it before it opens anything else."""
    for descriptor, name in enumerate(_NAMES):
        if _is_descriptor_closed(descriptor):
            # The kernel gives the lowest free number, which is this one, since those below it are open. Children
            # inherit it, since they need standard descriptors too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:  # Python sets it to None if the descriptor was closed at the start
            setattr(sys, name, open(descriptor, "w" if descriptor else "r", closefd=False))  # noqa: SIM115 - lasts as long as the process


def _is_descriptor_closed(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False
