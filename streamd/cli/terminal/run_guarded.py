"""How every command ends: a mistake is a line on stderr and an exit status, never a traceback."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

from streamd.core.text import escape_unprintable
from streamd.errors import MissingExtraError, StreamdError
from streamd.ipc.standard_files import fill_closed_standard_descriptors

if TYPE_CHECKING:
    import typer

INTERRUPTED: Final = 128 + signal.SIGINT  # as shells count
TERMINATED: Final = 128 + signal.SIGTERM
_EXTRAS: Final = {"streamd": "serve", "streamd-train": "train"}  # what installs all that a command needs


def run_guarded(program: str, app: typer.Typer) -> None:
    """Runs a command; exits 2 for a mistake in what was asked, 1 for a failure, 130 for Ctrl-C, 143 for SIGTERM."""
    fill_closed_standard_descriptors()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that its encoding lacks is escaped, and no failure
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
    except OSError as error:  # a full disk, a folder without permission: the message has the file and the reason
        exit_with_error(program, str(error) + _format_removed_folder_hint(error), status=1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _format_removed_folder_hint(error: BaseException | None) -> str:
    """A line more for what is not found because the working directory was removed: the system names it nowhere."""
    if isinstance(error, FileNotFoundError):
        try:
            Path.cwd()
        except FileNotFoundError:
            return "\nthe working directory was removed: change to another one (cd), and start again"
    return ""


@contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """SIGTERM is a Ctrl-C with another exit status: what a command began is put away."""
    came = False

    def handle_sigterm(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        ctrl_c = signal.getsignal(signal.SIGINT)  # asyncio's own while it runs, which ends its tasks first
        if not callable(ctrl_c):  # started with Ctrl-C ignored, as shells do with `&`
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
    """Says `message` on stderr, one line for each mistake in it, and exits."""
    print_error(program, message)
    sys.exit(status)


def print_error(program: str, message: str) -> None:
    """Says `message` on stderr, one line for each mistake in it."""
    text = "\n".join(escape_unprintable(line.strip()) for line in message.splitlines() if line.strip())
    print(f"{program}: {text}", file=sys.stderr)  # noqa: T201 - this is the command's voice


def exit_without_typer(program: str, extra: str) -> NoReturn:
    """Ends a command whose command-line library is not installed."""
    error = MissingExtraError("typer", extra, program)
    exit_with_error(program, str(error), error.exit_status)
