"""Threads that are started, and waited for, where an interrupt may fall."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable


def start_apart(thread: threading.Thread, fail: Callable[[RuntimeError], None]) -> threading.Lock:
    """Has another thread start it, which no interrupt reaches, and does not wait for it. `fail` gets why it could not.

    Thread.start itself waits, with Python's own locks: an interrupt (Ctrl-C) comes out of it as a RuntimeError, or
    leaves a lock held that the new thread needs. The lock that is returned is held until the start is over.
    """
    starting = threading.Lock()
    starting.acquire()
    try:
        _thread.start_new_thread(_start, (thread, fail, starting))
    except RuntimeError as error:  # no thread can be started at all
        starting.release()
        fail(error)
    return starting


def _start(thread: threading.Thread, fail: Callable[[RuntimeError], None], starting: threading.Lock) -> None:
    try:
        thread.start()
    except RuntimeError as error:
        fail(error)
    finally:
        starting.release()


def join_apart(thread: threading.Thread, starting: threading.Lock | None, timeout_s: float) -> None:
    """Waits for the end of a thread that was started so; `starting` is None where an interrupt came before."""
    if starting is not None:
        with starting:
            pass
    if thread.is_alive():
        thread.join(timeout_s)
