"""Descriptors 0, 1 and 2, where whoever started this process closed them: the null device takes their place.

Otherwise the next files to be opened have these numbers. libzmq takes what it gets for 0 as none, a child takes a
socket for its standard error, and what is printed goes into it.
"""

from __future__ import annotations

import os
import sys
from typing import Final

_NAMES: Final = ("stdin", "stdout", "stderr")  # by their descriptors


def fill_closed_standard_descriptors() -> None:
    """Opens those of the three that are closed. Every entry point does so before it opens anything else."""
    for descriptor, name in enumerate(_NAMES):
        if _is_descriptor_closed(descriptor):
            # The lowest free number is this one, since those below it are open. Children need it as much.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:  # as Python has it where the descriptor was closed
            setattr(sys, name, open(descriptor, "w" if descriptor else "r", closefd=False))  # noqa: SIM115 - lasts as long as the process


def _is_descriptor_closed(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False
