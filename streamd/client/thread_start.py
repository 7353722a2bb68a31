"""Starts threads where an interrupt may fall."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable


def start_thread_in_helper(thread: threading.Thread, on_error: Callable[[RuntimeError], None]) -> threading.Lock:
    """Starts `thread` from a helper thread, which no interrupt reaches, and does not wait for it.

    Thread.start itself waits on Python's own locks: an interrupt (Ctrl-C) leaves it as a RuntimeError, or leaves a lock
    held that the new thread needs. Returns a lock that is held until the start has succeeded or failed. `on_error`
    receives the error if the thread cannot be started; it may be called in the helper thread.
    """
    starting = threading.Lock()
    starting.acquire()
    try:
        _thread.start_new_thread(_run_thread_start, (thread, on_error, starting))
    except RuntimeError as error:  # not even the helper thread can be started
        starting.release()
        on_error(error)
    return starting


def _run_thread_start(
    thread: threading.Thread, on_error: Callable[[RuntimeError], None], starting: threading.Lock
) -> None:
    try:
        thread.start()
    except RuntimeError as error:
        on_error(error)
    finally:
        starting.release()


def join_started_thread(thread: threading.Thread, starting: threading.Lock | None, timeout_s: float) -> None:
    """Waits up to `timeout_s` for the end of a thread that `start_thread_in_helper` started.

    `starting` is the lock that it returned, or None if an interrupt came before the assignment.
    """
    # A thread that has not started yet is not alive, so the end of the start is awaited first.
    if starting is not None:
        with starting:
            pass
    if thread.is_alive():
        thread.join(timeout_s)
