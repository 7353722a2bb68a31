"""The guard around every command: an expected error is a line on stderr and an exit status, never a traceback."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

from streamd.core.stderr_guard import guard_stderr
from streamd.core.text import escape_unprintable
from streamd.errors import MissingExtraError, StreamdError
from streamd.ipc.inherited_state import correct_inherited_state

if TYPE_CHECKING:
    import typer

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
