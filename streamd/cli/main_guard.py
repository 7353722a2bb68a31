"""How every command ends: a mistake is a line on stderr and an exit status, never a traceback."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NoReturn

from streamd.errors import MissingExtraError, StreamdError

if TYPE_CHECKING:
    import typer

INTERRUPTED = 130  # as shells count: 128 and the number of SIGINT
_EXTRAS: Final = {"streamd": "serve", "streamd-train": "train"}  # what installs all that a command needs


def run_guarded(program: str, app: typer.Typer) -> None:
    """Runs a command line; exits 2 for a mistake in what was asked, 1 for a failure, 130 for Ctrl-C."""
    try:
        app(prog_name=program)
    except StreamdError as error:
        fail(program, str(error), error.exit_status)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "streamd":
            raise
        missing = MissingExtraError(error.name, _EXTRAS[program], program)
        fail(program, str(missing), missing.exit_status)
    except OSError as error:  # a full disk, a folder without permission: the message has the file and the reason
        fail(program, str(error), status=1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def fail(program: str, message: str, status: int) -> NoReturn:
    """Says `message` on stderr, one line for each mistake in it, and exits."""
    text = "\n".join(line.strip() for line in message.splitlines() if line.strip())
    print(f"{program}: {text}", file=sys.stderr)  # noqa: T201 - this is the command's voice
    sys.exit(status)


def fail_without_typer(program: str, extra: str) -> NoReturn:
    """Ends a command whose command-line library is not installed."""
    error = MissingExtraError("typer", extra, program)
    fail(program, str(error), error.exit_status)
