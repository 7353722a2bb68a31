"""Logs events with fields: as lines for people, as fields for the journal, as JSON for programs.

    events       the name and meaning of every event (pure)      outputs      a record as a line, JSON, journal fields
    rate_limit   suppresses events that repeat too often

Modules call `info`, `notice`, `warning` or `error`; entry points call `configure_logging`.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, Final

from streamd.core.log.outputs import (
    JOURNAL_SOCKET,
    JsonFormatter,
    LineFormatter,
    OutputHandler,
    build_unwritten_record,
    is_connected_to_journal,
    send_to_journal,
)
from streamd.core.log.rate_limit import RateLimitHandler
from streamd.core.stderr_guard import guard_stderr

NOTICE: Final = 25  # between info and warning: events that a user waits for, also logged by a daemon in the background
logging.addLevelName(NOTICE, "NOTICE")


def log_event(level: int, event: str, text: str, **fields: Any) -> None:
    """Logs one event. `event` is one of `events.EVENTS`; outputs escape and bound the text and the values."""
    logging.getLogger("streamd").log(level, text, extra={"event": event, "fields": fields})


def info(event: str, text: str, **fields: Any) -> None:
    log_event(logging.INFO, event, text, **fields)


def notice(event: str, text: str, **fields: Any) -> None:
    log_event(NOTICE, event, text, **fields)


def warning(event: str, text: str, **fields: Any) -> None:
    log_event(logging.WARNING, event, text, **fields)


def error(event: str, text: str, **fields: Any) -> None:
    log_event(logging.ERROR, event, text, **fields)


def current_level() -> int:
    """Returns the lowest level that is logged, for a helper process that logs the same."""
    return logging.getLogger("streamd").getEffectiveLevel()


def output_arguments() -> list[str]:
    """Returns "json" or "journal", or nothing for lines, for a helper process that logs in the same form."""
    return [] if _Output.form is None else [_Output.form]


class _Output:
    form: str | None = None


def configure_logging(*, level: int = logging.INFO, as_json: bool = False, to_journal: bool = False) -> None:
    """Sends streamd's events of `level` and above to stderr, or to the journal if stderr is connected to it.

    From then on nothing that this process or a child of it writes to stderr waits for a reader: see `stderr_guard`.
    `as_json`: one JSON object a line on stderr, whatever it is connected to. `to_journal`: as if stderr were connected
    to the journal, for a child of a process that logs there. Only entry points call this.
    """
    logger = logging.getLogger("streamd")
    formatter = JsonFormatter() if as_json else LineFormatter()
    has_journal = not as_json and (to_journal or is_connected_to_journal(os.environ))
    _Output.form = "json" if as_json else "journal" if has_journal else None
    writer = guard_stderr(replace=True)
    if writer is not None:
        writer.send_event = lambda event: send_to_journal(event, JOURNAL_SOCKET)
        writer.build_notice = lambda count: f"{formatter.format(build_unwritten_record(count))}\n".encode()
    output = OutputHandler(_write_now if writer is None else writer.write, formatter, has_journal=has_journal)
    logger.handlers[:] = [RateLimitHandler(output)]
    logger.setLevel(level)
    logger.propagate = False


def _write_now(lines: bytes, event: bytes) -> None:
    """Writes to a sys.stderr that somebody has replaced."""
    if event:
        try:
            send_to_journal(event, JOURNAL_SOCKET)
        except OSError:
            pass
        else:
            return
    sys.stderr.write(lines.decode())
