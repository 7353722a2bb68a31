"""Says records by another handler, and holds back those that repeat themselves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from streamd.logs.events import ALWAYS_SAID
from streamd.logs.forms import event_of
from streamd.logs.restraint import Held, Restraint


class Voice(logging.Handler):
    """Stands before `way_out`. How many were held back is said when their span ends, at the latest when it closes."""

    def __init__(
        self,
        way_out: logging.Handler,
        *,
        is_json: bool = False,
        restraint: Restraint | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.is_json = is_json
        self._way_out = way_out
        self._restraint = restraint or Restraint()
        self._clock = clock

    def emit(self, record: logging.LogRecord) -> None:
        now_s, event = self._clock(), event_of(record)
        self._tell(self._restraint.over(now_s))
        if event in ALWAYS_SAID:
            self._way_out.handle(record)
            return
        ruling = self._restraint.rule(event, now_s)
        if ruling.is_said:
            self._way_out.handle(record)
        elif ruling.until_s is not None:
            self._look_again(ruling.until_s, now_s)

    def _look_again(self, until_s: float, now_s: float) -> None:
        """Where a loop runs, the count is said in time; elsewhere with the next event, or at the end."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # there is none in this thread
            return
        loop.call_later(until_s - now_s, self._say_over, until_s)

    def _say_over(self, until_s: float) -> None:
        self.acquire()  # as whoever calls `emit` has done
        try:
            self._tell(self._restraint.over(max(self._clock(), until_s)))  # a timer may ring a moment early
        finally:
            self.release()

    def _tell(self, held: Iterable[Held]) -> None:
        for each in held:
            self._way_out.handle(_record(each))

    def close(self) -> None:
        self._tell(self._restraint.rest())
        super().close()


def _record(held: Held) -> logging.LogRecord:
    return logging.makeLogRecord(
        {
            "name": "streamd",
            "levelno": logging.WARNING,
            "levelname": "WARNING",
            "msg": "as often again, held back since it repeats itself",
            "event": "log.held",
            "fields": {"of": held.event, "count": held.count},
        }
    )
