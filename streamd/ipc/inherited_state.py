"""Puts right what a process has inherited from the one that started it, before it relies on it.

A launcher may leave to its children: closed standard descriptors, SIGCHLD ignored, blocked signals, a umask that takes
a file from its own owner, a small limit on files' sizes. Each shows much later, and far from its cause.
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

_NAMES: Final = ("stdin", "stdout", "stderr")  # by their descriptors
_OWNER_BITS: Final = 0o700


def correct_inherited_state() -> None:
    """Corrects it for this process and its children. Every entry point calls it before it opens or starts anything."""
    # Opens the null device as those of descriptors 0, 1 and 2 that are closed. Otherwise the next files to be opened
    # get these numbers. libzmq takes a descriptor 0 for none, and a child takes a socket for its standard error and
    # prints into it.
    for descriptor, name in enumerate(_NAMES):
        try:
            os.fstat(descriptor)
        except OSError:
            # The kernel gives the lowest free number, which is this one, since those below it are open. Children
            # inherit it, since they need standard descriptors too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:  # Python sets it to None if the descriptor was closed at the start
            setattr(sys, name, open(descriptor, "w" if descriptor else "r", closefd=False))  # noqa: SIM115 - lasts as long as the process
    if sys.platform == "win32":  # it has none of the following
        return
    import resource  # noqa: PLC0415 - as above

    # With SIGCHLD ignored, the kernel forgets how a child ended, and every child then seems to have failed.
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A blocked SIGTERM would never end this process. Signals that are ignored stay so, as under nohup.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # What the umask takes from the group and from others is the user's choice; nobody chooses files that they cannot
    # open themselves.
    os.umask(os.umask(_OWNER_BITS) & ~_OWNER_BITS)
    # To the kernel, the memory of a batch is a file, which may have no more bytes than this. A limit that may be raised
    # is raised; what meets one that may not be says so.
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


# --- Ends a helper process with the process that started it, and makes it the kernel's first choice when memory is
# full.
#
# The helper ends even if it is stuck while its parent is killed. The kernel takes the end of the thread that started
# it for the end of its parent, so helpers are started by threads that last.


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
