"""Threads that are started where an interrupt may fall."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable


def start_apart(thread: threading.Thread, fail: Callable[[RuntimeError], None]) -> None:
    """Has another thread start it, which no interrupt reaches, and does not wait for it. `fail` gets why it could not.

    Thread.start itself waits, with Python's own locks: an interrupt (Ctrl-C) comes out of it as a RuntimeError, or
    leaves a lock held that the new thread needs.
    """
    _thread.start_new_thread(_start, (thread, fail))


def _start(thread: threading.Thread, fail: Callable[[RuntimeError], None]) -> None:
    try:
        thread.start()
    except RuntimeError as error:
        fail(error)
