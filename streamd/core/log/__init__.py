"""One event, said once, with fields: to people as lines, to the journal as fields, to programs as JSON.

    events       what every event is called and means (pure)      outputs      a record as a line, JSON, journal fields
    rate_limit   holds back what repeats itself too often

Whoever has something to say calls `info`, `notice`, `warning` or `error`; entry points call `configure_logging`.
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

NOTICE: Final = 25  # between info and warning: what somebody is waiting for, said also by a daemon in the background
logging.addLevelName(NOTICE, "NOTICE")


def log_event(level: int, event: str, text: str, **fields: Any) -> None:
    """Writes one event. `event` is one of `events.EVENTS`; text and values are escaped and bounded on the way out."""
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
    """The least that is said, for a process that shall say as much."""
    return logging.getLogger("streamd").getEffectiveLevel()


def is_json_output() -> bool:
    """Whether it is said as JSON, for a process that shall do the same."""
    return any(isinstance(each, RateLimitHandler) and each.is_json for each in logging.getLogger("streamd").handlers)


def configure_logging(*, level: int = logging.INFO, as_json: bool = False) -> None:
    """Sends streamd's events from `level` on to stderr, or to the journal where stderr leads there.

    `as_json`: one JSON object a line on stderr, wherever it leads. Called by entry points only.
    """
    logger = logging.getLogger("streamd")
    logger.handlers[:] = [RateLimitHandler(_build_handler(as_json=as_json), is_json=as_json)]
    logger.setLevel(level)
    logger.propagate = False


def _build_handler(*, as_json: bool) -> logging.Handler:
    stderr = logging.StreamHandler(sys.stderr)
    stderr.setFormatter(JsonFormatter() if as_json else LineFormatter())
    return JournalHandler(JOURNAL_SOCKET, stderr) if is_connected_to_journal(os.environ) and not as_json else stderr
