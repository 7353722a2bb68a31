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
    JournalHandler,
    JsonFormatter,
    LineFormatter,
    is_connected_to_journal,
)
from streamd.core.log.rate_limit import RateLimitHandler

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


def is_json_output() -> bool:
    """Whether events are logged as JSON, for a helper process that does the same."""
    return any(isinstance(each, RateLimitHandler) and each.is_json for each in logging.getLogger("streamd").handlers)


def configure_logging(*, level: int = logging.INFO, as_json: bool = False) -> None:
    """Sends streamd's events of `level` and above to stderr, or to the journal if stderr is connected to it.

    `as_json`: one JSON object a line on stderr, whatever it is connected to. Only entry points call this.
    """
    logger = logging.getLogger("streamd")
    logger.handlers[:] = [RateLimitHandler(_build_handler(as_json=as_json), is_json=as_json)]
    logger.setLevel(level)
    logger.propagate = False


def _build_handler(*, as_json: bool) -> logging.Handler:
    stderr = logging.StreamHandler(sys.stderr)
    stderr.setFormatter(JsonFormatter() if as_json else LineFormatter())
    return JournalHandler(JOURNAL_SOCKET, stderr) if is_connected_to_journal(os.environ) and not as_json else stderr
