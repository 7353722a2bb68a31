"""Forked children for tests."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def in_a_forked_child(what: Callable[[], object]) -> int:
    """Forks without a word to Python's threads, as a careless trainer would; the child's exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            what()
        except BaseException:  # noqa: BLE001 - whatever it is, the child ends here, and by os._exit
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
