"""Answers queries, which need no session: streams served, status, counters, the dashboard's address, names of files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from streamd.core.counters import DaemonGauge, ProcessStats
from streamd.core.leaky_bucket import LeakyBucket
from streamd.core.status import DaemonStatus
from streamd.daemon.status_builder import StatusBuilder
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import suggest_name
from streamd.ipc.messages import (
    AskMonitor,
    AskNames,
    AskStats,
    AskStatus,
    AskStreams,
    MonitorAt,
    Names,
    Refused,
    Stats,
    StatusNow,
    Streams,
)
from streamd.ipc.slots import SlotStore
from streamd.limits import ANSWER_AGE_S, ANSWER_BURST_S, ANSWER_SHARE, MAX_NAMES
from streamd.scheduler.scheduler import Scheduler

_NO_MONITOR_TEXT: Final = (
    "this daemon has no dashboard: give its configuration a line such as `monitor: 127.0.0.1:9191` and restart it"
)

QueryMessage = AskStreams | AskStats | AskStatus | AskMonitor | AskNames
QueryAnswer = Streams | Stats | StatusNow | MonitorAt | Names | Refused


@dataclass(frozen=True, slots=True)
class QueryResponder:
    """Answers queries. `streams` are those served now: a reload changes the mapping. `monitor` is None without one."""

    streams: Mapping[str, ServedStream]
    scheduler: Scheduler
    slots: SlotStore
    counters: ProcessStats
    status_builder: StatusBuilder
    monitor: MonitorAt | None = None

    def answer_query(self, question: QueryMessage, *, session_count: int, is_draining: bool) -> QueryAnswer:
        """Returns the answer as of now."""
        match question:
            case AskStreams():
                return Streams({name: stream.spec for name, stream in self.streams.items()})
            case AskStats():
                return Stats(self.collect_stats_values(session_count))
            case AskStatus():
                return StatusNow(self.build_status(is_draining=is_draining))
            case AskMonitor():
                return self.monitor or Refused("usage", _NO_MONITOR_TEXT)
            case AskNames(name, sample_ids):
                stream = self.streams.get(name)
                if stream is None:
                    return build_unknown_stream_refusal(name, self.streams)
                if len(sample_ids) > MAX_NAMES:
                    text = f"{len(sample_ids)} names were requested at once; ask for at most {MAX_NAMES}"
                    return Refused("usage", text)
                last = stream.spec.samples - 1
                strange = next((each for each in sample_ids if not 0 <= each <= last), None)
                if strange is not None:
                    return Refused("usage", f"stream {name!r} has sample ids 0 to {last}, not {strange}")
                return Names(tuple(map(stream.format_file_name, sample_ids)))

    def build_status(self, *, is_draining: bool) -> DaemonStatus:
        """Returns the status of the daemon as of now."""
        return self.status_builder.build_status(
            self.scheduler, time.monotonic(), slots=len(self.slots), is_draining=is_draining
        )

    def collect_stats_values(self, session_count: int) -> dict[str, dict[str, float]]:
        """Returns all counters and the present gauges, by group and name."""
        gauges: dict[DaemonGauge, float] = {
            "sessions": session_count,
            "memory_used_bytes": self.scheduler.used_bytes,
            "slots": len(self.slots),
            "producing": self.scheduler.producing_count,
            "slot_wait_s": self.scheduler.slot_wait_s,
        }
        numbers = self.counters.values_by_group()
        numbers["daemon"] = dict(gauges.items())
        numbers["rules"] = dict(self.scheduler.checks_by_rule.items())
        return numbers


def build_unknown_stream_refusal(name: str, streams: Iterable[str]) -> Refused:
    """Returns the refusal of a query or subscription for a stream that is not served."""
    return Refused(
        "unknown", f"there is no stream {name!r}; the daemon serves: {', '.join(streams)}{suggest_name(name, streams)}"
    )


# --- Encoded answers to questions that anybody may ask, shared by all who ask: a flood of questions makes few answers.

ReadClock = Callable[[], float]


class AnswerCache:
    """Keeps the last answer of each kind. Lives on the event loop.

    While making answers takes less than ANSWER_SHARE of the time, after a burst of ANSWER_BURST_S, every answer is made
    anew. Beyond that, a kept one is given until it is ANSWER_AGE_S old. `read_clock_s` and `read_spent_s` are the
    monotonic time and the processor time of this thread.
    """

    def __init__(self, read_clock_s: ReadClock = time.monotonic, read_spent_s: ReadClock = time.thread_time) -> None:
        self._read_clock_s, self._read_spent_s = read_clock_s, read_spent_s
        self._answers: dict[type, tuple[bytes, float]] = {}  # each encoded, and when it was made
        self._streams_answer: bytes | None = None
        self._spent = LeakyBucket(ANSWER_SHARE, time_s=read_clock_s())  # seconds spent on answers

    def get_or_make_answer(self, question: QueryMessage, make_answer: Callable[[], bytes]) -> bytes:
        """Returns the encoded answer to a question: the same bytes for all who ask, unless the question has facts."""
        if isinstance(question, (AskMonitor, AskNames)):
            return make_answer()
        if isinstance(question, AskStreams):
            if self._streams_answer is None:
                self._streams_answer = make_answer()
            return self._streams_answer
        # A new answer if time allows, else the one that was kept.
        kind = type(question)
        now_s, kept = self._read_clock_s(), self._answers.get(kind)
        is_spent = self._spent.compute_level(now_s) > ANSWER_BURST_S
        if kept is not None and is_spent and now_s < kept[1] + ANSWER_AGE_S:
            return kept[0]
        began_s = self._read_spent_s()
        encoded = make_answer()
        self._spent.add(self._read_spent_s() - began_s, now_s)
        self._answers[kind] = encoded, now_s
        return encoded

    def forget_streams_answer(self) -> None:
        """Makes the answer to AskStreams anew when it is next asked for. Until then it holds."""
        self._streams_answer = None
