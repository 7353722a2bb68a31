"""What commands share on a terminal: the guard around each, signals that wait for a whole step, and progress.

No library is imported at the top, since a command says what to install before it needs anything.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from streamd.core.stderr_guard import guard_stderr
from streamd.core.text import escape_unprintable, format_count, format_duration
from streamd.errors import MissingExtraError, StreamdError
from streamd.ipc.inherited_state import correct_inherited_state
from streamd.limits import MIB

if TYPE_CHECKING:
    import typer
    from rich.console import Console
    from rich.progress import Progress

# --- the guard around every command: an expected error is a line on stderr and an exit status, never a traceback

INTERRUPTED: Final = 128 + signal.SIGINT  # the exit status that shells use
TERMINATED: Final = 128 + signal.SIGTERM
_EXTRAS: Final = {"streamd": "serve", "streamd-train": "train"}  # the extra with all libraries of a command


def run_guarded(program: str, app: typer.Typer) -> None:
    """Runs a command; exits with 2 for a usage error, 1 for a failure, 130 for Ctrl-C, 143 for SIGTERM."""
    correct_inherited_state()
    guard_stderr(replace=False)  # a process that reads samples would be judged while it waits for a terminal
    # Characters that the terminal's encoding lacks, as in file names, are escaped instead of raising.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _interrupt_on_sigterm():
            app(prog_name=program)
    except StreamdError as error:
        exit_with_error(program, str(error) + _format_removed_folder_hint(error.__cause__), error.exit_status)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "streamd":
            raise
        missing = MissingExtraError(error.name, _EXTRAS[program], program)
        exit_with_error(program, str(missing), missing.exit_status)
    except OSError as error:  # such as a full disk or a missing permission: the message has the file and the reason
        exit_with_error(program, str(error) + _format_removed_folder_hint(error), status=1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _format_removed_folder_hint(error: BaseException | None) -> str:
    """Returns an extra line if a file was not found because the working directory was removed.

    The system's error does not mention the working directory.
    """
    if isinstance(error, FileNotFoundError):
        try:
            Path.cwd()
        except FileNotFoundError:
            return "\nthe working directory was removed: change to another one (cd), and start again"
    return ""


@contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """Makes SIGTERM act like Ctrl-C with another exit status, so that commands clean up."""
    came = False

    def handle_sigterm(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        # The present handler of Ctrl-C: while asyncio runs, it is asyncio's own, which first ends the tasks.
        ctrl_c = signal.getsignal(signal.SIGINT)
        if not callable(ctrl_c):  # Ctrl-C is ignored, as for commands that a shell starts with `&`
            sys.exit(TERMINATED)
        ctrl_c(number, frame)

    before = signal.signal(signal.SIGTERM, handle_sigterm)
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if came:
            sys.exit(TERMINATED)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_with_error(program: str, message: str, status: int) -> NoReturn:
    """Prints `message` on stderr, one line for each error in it, and exits with `status`."""
    print_error(program, message)
    sys.exit(status)


def print_error(program: str, message: str) -> None:
    """Prints `message` on stderr, one line for each error in it."""
    text = "\n".join(escape_unprintable(line.strip()) for line in message.splitlines() if line.strip())
    print(f"{program}: {text}", file=sys.stderr)  # noqa: T201 - this is the command's voice


def exit_without_typer(program: str, extra: str) -> NoReturn:
    """Ends a command whose command-line library is not installed."""
    error = MissingExtraError("typer", extra, program)
    exit_with_error(program, str(error), error.exit_status)


# --- what others log, for a command that says it in its own place


@contextmanager
def capture_log(name: str, level: int, take: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    """Calls `take`, in place of all other handlers, with what is logged below the logger `name` from `level` on."""
    logger, handler = logging.getLogger(name), logging.Handler(level)
    handler.emit = take  # type: ignore[method-assign, assignment]  # one handler, which passes on
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


@contextmanager
def capture_source_notes() -> Iterator[Collection[str]]:
    """Collects the sources' log messages about the files that they skip; streams of one folder skip the same ones."""
    notes: dict[str, None] = {}
    with capture_log("streamd.sources", logging.INFO, lambda record: notes.setdefault(record.getMessage())):
        yield notes.keys()


# --- Ctrl-C and SIGTERM for a command that saves what it has before it ends

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
                # Removes half-written files and ends the process without waiting for its main thread. The main thread
                # goes on until `os._exit`. Under the lock it makes no further folder, and in a folder that has been
                # renamed it can make no file: it only knows the old name.
                number = data[0]
                self._folders_lock.acquire()  # never released
                for folder in self._folders:
                    with suppress(OSError):
                        shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}.removed")), ignore_errors=True)
                os._exit(128 + number)
            if self._was_deferred:
                self._print_notice()


# --- the progress of a long command

_LINE_INTERVAL_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a command, in the words of the bar and of a line; with `row_bytes`, its rate is shown too."""

    doing: str
    done: str
    unit: str
    row_bytes: int = 0


_READING: Final = Phase("reading", "read", "file")


class ProgressDisplay:
    """Counts what a long command has done, and shows it on stderr. A context manager.

    A command lists the samples of its streams, and then goes through its phases. On the terminal `console` a bar shows
    this, and is removed at the end. `write_line` gets a line every ten seconds, and none for shorter phases. With
    neither, nothing is shown.
    """

    def __init__(
        self,
        console: Console | None = None,
        write_line: Callable[[str], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write_line, self._clock = write_line, clock
        self._phase, self._began_s = _READING, clock()
        self._last_line_s = self._began_s
        self.total = self.done = self._done_before = 0
        self._bar: Progress | None = None
        if console is not None:
            from rich import progress  # noqa: PLC0415 - only for a bar

            remaining = progress.TimeRemainingColumn()
            columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn())
            self._bar = progress.Progress(*columns, remaining, console=console, transient=True)
            self._task = self._bar.add_task("listing the samples", total=None)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update_listing(self, stream: str, files: int) -> None:
        """Shows how many files of a stream have been listed."""
        if self._bar is not None:
            self._bar.update(self._task, description=f"listing {stream}", completed=files)
        elif self._claim_due_line():
            self._write_line(f"listing {stream}: {format_count(files, 'file')} so far")

    def start_phase(self, total: int, done: int = 0, phase: Phase = _READING) -> None:
        """Begins a phase of `total` items, of which an earlier run has done some; by default files are read."""
        self._phase, self._began_s = phase, self._clock()
        self.total, self.done, self._done_before = total, done, done
        if self._bar is not None:
            self._bar.reset(self._task, total=total, completed=done, description=phase.doing)
        elif done:
            self._write_line(f"continuing after {done:,} of {format_count(total, phase.unit)}")

    def advance(self, items: int) -> None:
        """Adds items to those that are done."""
        self.done += items
        done_now, elapsed_s = self.done - self._done_before, self._clock() - self._began_s
        items_per_s = done_now / max(elapsed_s, 1e-9)
        unit, rate = self._phase.unit, ""
        if self._phase.row_bytes:
            rate = f", {items_per_s:,.0f} {unit}s/s, {items_per_s * self._phase.row_bytes / MIB:,.0f} MiB/s"
        if self._bar is not None:
            self._bar.update(self._task, advance=items, description=f"{self._phase.doing}{rate}")
        elif self._claim_due_line():
            left_s = elapsed_s / max(done_now, 1) * (self.total - self.done)
            done = f"{self._phase.done} {self.done:,} of {format_count(self.total, unit)}"
            self._write_line(f"{done}{rate}, about {format_duration(left_s)} to go")

    def print_note(self, text: str) -> None:
        """Prints a line."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._write_line(text)

    def _claim_due_line(self) -> bool:
        """Returns whether a line is due, and if so starts the next interval."""
        now_s = self._clock()
        if now_s < self._last_line_s + _LINE_INTERVAL_S:
            return False
        self._last_line_s = now_s
        return True


def create_progress_display() -> ProgressDisplay:
    """Creates a display with a bar if stderr is a terminal, else with lines."""
    from rich.console import Console  # noqa: PLC0415 - brings much along, which --help does without

    console = Console(stderr=True)
    if console.is_terminal:
        return ProgressDisplay(console)
    return ProgressDisplay(write_line=lambda text: sys.stderr.write(f"{text}\n"))
