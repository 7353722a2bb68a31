"""A helper process ends with the one that started it, even if that is killed while it is stuck; or before it."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import Final

from streamd.limits import HELPER_OOM_SCORE

_PR_SET_PDEATHSIG: Final = 1
_OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
_MOST_OOM_SCORE: Final = 1000  # which is "always first"


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process in the moment that `parent`, which started it, ends; at once if it has."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def raise_oom_score() -> None:
    """Has the kernel, when the host's memory is full, choose this process before the one that started it.

    What is mapped by both counts for both, and a helper's work can be done again. To ask for it needs no right.
    """
    score = int(_OOM_SCORE.read_text())
    _OOM_SCORE.write_text(str(min(score + HELPER_OOM_SCORE, _MOST_OOM_SCORE)))
