"""How every command ends: a mistake is one line on stderr and an exit status, never a traceback."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

from streamd.errors import MissingExtraError, StreamdError

if TYPE_CHECKING:
    import typer

INTERRUPTED = 130  # as shells count: 128 and the number of SIGINT


def run_guarded(program: str, app: typer.Typer) -> None:
    """Runs a command line; exits 2 for a mistake in what was asked, 1 for a failure, 130 for Ctrl-C."""
    try:
        app(prog_name=program)
    except StreamdError as error:
        fail(program, str(error), error.exit_status)
    except OSError as error:  # a full disk, a folder without permission: the message has the file and the reason
        fail(program, str(error), status=1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def fail(program: str, message: str, status: int) -> NoReturn:
    """Says `message` in one line on stderr and exits."""
    print(f"{program}: {' '.join(message.splitlines())}", file=sys.stderr)  # noqa: T201 - this is the command's voice
    sys.exit(status)


def fail_without_typer(program: str, extra: str) -> NoReturn:
    """Ends a command whose command-line library is not installed."""
    error = MissingExtraError("typer", extra, program)
    fail(program, str(error), error.exit_status)
