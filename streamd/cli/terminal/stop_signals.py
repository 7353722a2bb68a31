"""Ctrl-C and SIGTERM for a command that saves what it has before it ends."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_END_OF_WATCH: Final = b"\0"  # ends the watching thread; no signal has this number


class StopSignals:
    """Ends a command at a point that it chooses; a second signal ends the process at once.

        with StopSignals(print_notice) as stop:
            prepare()                   # a signal raises KeyboardInterrupt here
            stop.defer()
            for batch in ...:           # and from here on only within `allow_interrupt`
                with stop.allow_interrupt():
                    ...

    `print_notice` is called at once, in a thread, when a signal arrives after `defer`. Signals are handled only within
    the `with` statement, which must be entered in the main thread, where Python runs signal handlers.

    A step of TensorFlow can block the main thread, and with it Python's handlers, for minutes. The interpreter's
    C-level handler still writes the number of each signal to a socket at once, and a thread reads the socket: it prints
    the notice for the first signal, and ends the process on the second.
    """

    def __init__(self, print_notice: Callable[[], None] = lambda: None) -> None:
        # Only the main thread writes `number`, `_is_deferred` and `_was_deferred`. The watching thread counts signals
        # by itself, since the main thread may not have run a handler yet.
        self.number: int | None = None  # the first signal
        self._print_notice = print_notice
        self._is_deferred = self._was_deferred = self._is_watching = False
        # The folders of unfinished files, which are removed if the process ends at once. Both threads use them, under
        # the lock, which the watching thread keeps when it ends the process.
        self._folders: set[Path] = set()
        self._folders_lock = threading.Lock()
        self._handlers_before: dict[int, Any] = {}

    @property
    def exit_status(self) -> int:
        """The exit status that shells use: 130 for Ctrl-C, 143 for SIGTERM; 0 if no signal arrived."""
        return 0 if self.number is None else 128 + self.number

    @property
    def signal_text(self) -> str:
        """The first signal's name for users: `Ctrl-C` or `SIGTERM`."""
        return "SIGTERM" if self.number == signal.SIGTERM else "Ctrl-C"

    def defer(self) -> None:
        """From now on, makes the first signal raise KeyboardInterrupt only within `allow_interrupt`."""
        self._is_deferred = self._was_deferred = True

    @contextmanager
    def allow_interrupt(self) -> Iterator[None]:
        """Raises KeyboardInterrupt when a signal arrives within the block, or has arrived before it."""
        was_deferred = self._is_deferred
        # The flag is cleared before `number` is checked: a signal after this line raises in its handler, and one before
        # it is found by the check. In the other order, a signal between the two would be lost.
        self._is_deferred = False
        try:
            if self.number is not None:
                raise KeyboardInterrupt
            yield
        finally:
            self._is_deferred = was_deferred

    @contextmanager
    def write_beside(self, path: Path) -> Iterator[Path]:
        """Yields a temporary file with the name of `path`, in a folder next to it, which replaces `path` at the end.

        An error, or the end of the process by a second signal, removes the temporary file with its folder.
        """
        folder = path.with_name(f".{path.name}.{os.getpid()}")
        with self._folders_lock:
            folder.mkdir(exist_ok=True)
            self._folders.add(folder)
        try:
            yield folder / path.name
            (folder / path.name).replace(path)
        finally:
            with self._folders_lock:
                shutil.rmtree(folder, ignore_errors=True)
                self._folders.discard(folder)

    def __enter__(self) -> Self:
        self._watched, self._written = socket.socketpair()
        self._written.setblocking(False)
        self._wakeup_before = signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
        self._watcher = threading.Thread(target=self._watch_signals, name="stop-signals", daemon=True)
        self._watcher.start()
        self._is_watching = True
        os.register_at_fork(after_in_child=self._forget_in_child)
        for number in _STOP_SIGNALS:
            # A signal that is already ignored stays ignored: a shell starts a command with `&` with SIGINT ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._handlers_before[number] = signal.signal(number, self._handle_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # First restore the handlers and the wakeup descriptor. After that no signal writes to the socket, so the byte
        # that ends the thread is the last one in it.
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._is_watching = False
        self._written.setblocking(True)
        self._written.sendall(_END_OF_WATCH)
        self._watcher.join()
        self._watched.close()
        self._written.close()

    def _forget_in_child(self) -> None:
        """Detaches a forked child from the shared socket: a Ctrl-C that both get would count twice for the parent."""
        if self._is_watching:
            signal.set_wakeup_fd(-1)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - Python's signature
        is_first = self.number is None
        if is_first:
            self.number = number
        if is_first and not self._is_deferred:
            raise KeyboardInterrupt

    def _watch_signals(self) -> None:
        """Reads the numbers of signals, in a thread, until the end of the watch or of the process."""
        came = 0
        while (data := self._watched.recv(1)) != _END_OF_WATCH:
            if data[0] not in _STOP_SIGNALS or data[0] not in self._handlers_before:
                continue
            came += 1
            if came > 1:
                self._end_process(data[0])
            if self._was_deferred:
                self._print_notice()

    def _end_process(self, number: int) -> None:
        """Removes half-written files and ends the process without waiting for its main thread.

        The main thread goes on until `os._exit`. Under the lock it makes no further folder, and in a folder that has
        been renamed it can make no file: it only knows the old name.
        """
        self._folders_lock.acquire()  # never released
        for folder in self._folders:
            with suppress(OSError):
                shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}.removed")), ignore_errors=True)
        os._exit(128 + number)
