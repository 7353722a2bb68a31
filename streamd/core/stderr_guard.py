"""Writes to standard error in a thread, so that nobody waits for a reader that has stopped.

A pipe is full when a log driver hangs, a terminal when somebody presses Ctrl-S. Whoever writes to standard error then
stands still: with the daemon all trainers, and with a worker the row that it decodes. What this process says is
therefore queued for a thread, and what its children write to their standard error, in Python or in C, goes into a pipe
that another thread reads at all times. What the queue has no room for is counted, and reported when there is a reader.

The descriptor is shared with the process that started this one, so it is never made non-blocking. Opening it anew
through /proc would do, but for sockets, for files that have a position, and for terminals of other users.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TextIO

from streamd.core.text import format_count
from streamd.limits import LOG_CHUNK_BYTES, LOG_LAST_WORDS_S, LOG_UNWRITTEN_BYTES

_STDERR: Final = 2
_END: Final = b"\n"


def format_unwritten_lines(count: int) -> str:
    """Returns the sentence about lines that nobody read."""
    return f"{format_count(count, 'line was', 'lines were')} not written, since nothing read them"


class StderrWriter:
    """Writes to `descriptor` in a thread of its own, in order. All methods may be called in any thread.

    `build_notice(count)` returns the line about `count` lines that were lost. Between two of these lines nothing is
    missing: from the first line that finds no room until all before it are written, every line is lost.
    """

    def __init__(
        self,
        descriptor: int = _STDERR,
        build_notice: Callable[[int], bytes] = lambda count: f"streamd: {format_unwritten_lines(count)}\n".encode(),
    ) -> None:
        self._descriptor = descriptor
        self.build_notice = build_notice
        self.send_event: Callable[[bytes], None] | None = None  # sends an event elsewhere, or raises OSError
        self._changed = threading.Condition()
        # All below belongs to the lock of `_changed`.
        self._queue: deque[tuple[bytes, bytes]] = deque()  # lines, and the event that stands for them elsewhere
        self._queued_bytes = 0  # of the queue, and of what is being written
        self._lost_lines = 0
        self._is_failing = False  # the last write raised
        self._is_ending = self._has_ended = False
        self._thread: threading.Thread | None = None

    def write(self, lines: bytes, event: bytes = b"") -> None:
        """Queues lines, or counts them. `event` is sent elsewhere in their place, if it can."""
        size = len(lines) + len(event)
        with self._changed:
            is_over = self._queued_bytes and self._queued_bytes + size > LOG_UNWRITTEN_BYTES
            if self._has_ended or is_over or (self._lost_lines and not self._is_failing):
                self._lost_lines += lines.count(_END)
                # At the very end of the process no thread runs any more.
                if self._has_ended and len(lines) <= select.PIPE_BUF:
                    with suppress(OSError, ValueError):
                        if select.select([], [self._descriptor], [], 0)[1]:
                            self._try_to_write(lines)
                return
            self._queue.append((lines, event))
            self._queued_bytes += size
            self._changed.notify_all()
            if self._thread is None:
                thread = threading.Thread(target=self._write_queued_lines, name="stderr-writer", daemon=True)
                with suppress(RuntimeError):  # the host lets it start no thread now; the next line tries again
                    thread.start()
                    self._thread = thread

    def close(self, patience_s: float = LOG_LAST_WORDS_S) -> None:
        """Waits until all is written, but no longer than `patience_s` for the next write to end."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
            while self._thread is not None and not self._has_ended:
                left = self._queued_bytes
                if not self._changed.wait_for(lambda: self._has_ended or self._queued_bytes < left, patience_s):  # noqa: B023 - called at once
                    break
            is_thread_over, self._has_ended = self._has_ended or self._thread is None, True
        if is_thread_over and self._thread is not None:
            self._thread.join()

    # --- the thread

    def _write_queued_lines(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._queue or self._is_ending or (self._lost_lines > 0 and not self._is_failing)
                )
                if self._lost_lines and (self._is_failing or not self._queue):
                    lost, self._lost_lines = self._lost_lines, 0
                    lines, event = self.build_notice(lost), b""
                    self._queued_bytes += len(lines)
                elif self._queue:
                    lost, (lines, event) = 0, self._queue.popleft()
                else:
                    self._has_ended = True
                    self._changed.notify_all()
                    return
            is_written = False
            if event and self.send_event is not None:
                with suppress(OSError):
                    self.send_event(event)
                    is_written = True
            is_written = is_written or self._try_to_write(lines)
            with self._changed:
                self._queued_bytes -= len(lines) + len(event)
                self._is_failing = not is_written
                # What waits could not be written either. The next line shows whether there is a reader again.
                if not is_written:
                    lost = (lost or lines.count(_END)) + sum(waiting.count(_END) for waiting, _ in self._queue)
                    self._lost_lines += 0 if self._is_ending else lost
                    self._queue.clear()
                    self._queued_bytes = 0
                self._changed.notify_all()

    def _try_to_write(self, lines: bytes) -> bool:
        """Writes lines, and waits as long as it takes. Returns False if they cannot be written."""
        left = memoryview(lines)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # somebody else has made it non-blocking
                select.select([], [self._descriptor], [])
            except OSError:  # nobody can read it any more, or the disk is full
                return False
        return True


class _QueuedFile(io.RawIOBase):
    """A file that queues what is written to it."""

    def __init__(self, writer: StderrWriter, descriptor: int) -> None:
        super().__init__()
        self._writer = writer
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        lines = bytes(data)
        self._writer.write(lines)
        return len(lines)


class ChildOutput:
    """A pipe for the standard error of child processes, which a thread reads at all times into a writer.

    Lines stay whole. The pipe outlives single children, and has no end while this process lives.
    """

    def __init__(self, writer: StderrWriter) -> None:
        self._writer = writer
        self._source, self.descriptor = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._source, False)
        self._ending = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._forward_lines, name="stderr-of-children", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hands on what children have written so far, the last words of those that have ended among it."""
        os.eventfd_write(self._ending, 1)
        self._thread.join()
        for each in (self._source, self.descriptor, self._ending):
            os.close(each)

    def _forward_lines(self) -> None:
        kept, is_ending, poller = b"", False, select.poll()
        for each in (self._source, self._ending):
            poller.register(each, select.POLLIN)
        while not is_ending:
            is_ending = self._ending in [descriptor for descriptor, _ in poller.poll()]
            with suppress(BlockingIOError):
                while data := os.read(self._source, LOG_CHUNK_BYTES):
                    lines, _, kept = (kept + data).rpartition(_END)
                    if lines:
                        self._writer.write(lines + _END)
                    if len(kept) > LOG_CHUNK_BYTES:
                        self._writer.write(kept + _END)
                        kept = b""
        if kept:
            self._writer.write(kept + _END)


class _Guard:
    """What guards the standard error of this process: made by the entry point, once. A forked child has none."""

    writer: StderrWriter | None = None
    children: ChildOutput | None = None
    replaced: TextIO | None = None  # what sys.stderr was before


def guard_stderr(*, replace: bool) -> StderrWriter | None:
    """Guards the standard error of this process from now on, and that of its children; returns the writer.

    `replace`: what Python writes to sys.stderr is queued, too. A command that people watch stands still instead, when
    they stop its terminal. None if sys.stderr is not the descriptor of this name: then it belongs to whoever set it.
    """
    is_own = False
    with suppress(AttributeError, OSError, ValueError):
        is_own = sys.stderr.fileno() == _STDERR
    if _Guard.writer is None and is_own:
        _Guard.writer = StderrWriter()
        atexit.register(_close_guard)
        os.register_at_fork(after_in_child=_forget_guard)
    if replace and _Guard.writer is not None and _Guard.replaced is None:
        queued = io.BufferedWriter(_QueuedFile(_Guard.writer, _STDERR))
        _Guard.replaced = sys.stderr
        sys.stderr = io.TextIOWrapper(queued, "utf-8", "backslashreplace", line_buffering=True)
    return _Guard.writer


def child_stderr() -> int | None:
    """Returns the descriptor for the standard error of a child; None for this process's own, if it is not guarded."""
    if _Guard.writer is None:
        return None
    _Guard.children = _Guard.children or ChildOutput(_Guard.writer)
    return _Guard.children.descriptor


def _forget_guard() -> None:
    """Lets a forked child, which has no threads, write by itself."""
    if _Guard.replaced is not None:
        sys.stderr = _Guard.replaced
    _Guard.writer = _Guard.children = _Guard.replaced = None


def _close_guard() -> None:
    if _Guard.children is not None:
        _Guard.children.close()
        _Guard.children = None
    if _Guard.writer is not None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        _Guard.writer.close()
