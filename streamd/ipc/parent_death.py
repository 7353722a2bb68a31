"""Ends a helper process with the process that started it, and makes it the kernel's first choice when memory is full.

The helper ends even if it is stuck while its parent is killed. The kernel takes the end of the thread that started it
for the end of its parent, so helpers are started by threads that last.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Final

from streamd.limits import HELPER_OOM_SCORE

_PR_SET_PDEATHSIG: Final = 1
_OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
_MOST_OOM_SCORE: Final = 1000  # the kernel's maximum: always killed first


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when the process `parent`, which started it, ends; at once if it has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    # The parent may have ended before the call above, which then sends nothing: its child has another parent by now.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def raise_oom_score() -> None:
    """Makes the kernel kill this process before the one that started it when the host's memory is full.

    Memory that both map counts for both, and a helper's work can be done again. Raising the score needs no privilege.
    """
    score = int(_OOM_SCORE.read_text())
    _OOM_SCORE.write_text(str(min(score + HELPER_OOM_SCORE, _MOST_OOM_SCORE)))


def main() -> None:
    """Runs the module in the arguments, with those after it, in a process that ends with its parent, the first one."""
    parent, sys.argv = int(sys.argv[1]), sys.argv[2:]
    die_with_parent(parent)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
