"""What the daemon tells anyone who asks, without a session: what is served, how it goes, what files are called."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from streamd.core.counters import Stats as Numbers
from streamd.daemon.sessions import names_objection
from streamd.daemon.status_builder import Overview
from streamd.daemon.streams.served_stream import ServedStream
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
from streamd.scheduler import Window

_NO_MONITOR: Final = (
    "this daemon has no dashboard: give its configuration a line such as `monitor: 127.0.0.1:9191` and start it anew"
)

Question = AskStreams | AskStats | AskStatus | AskMonitor | AskNames
Answer = Streams | Stats | StatusNow | MonitorAt | Names | Refused


@dataclass(frozen=True, slots=True)
class Answers:
    """`streams` are those served now: a reload changes the mapping. `monitor` is None where there is none."""

    streams: Mapping[str, ServedStream]
    window: Window
    slots: SlotStore
    stats: Numbers
    overview: Overview
    monitor: MonitorAt | None = None

    def to(self, question: Question, *, sessions: int, draining: bool) -> Answer:
        """The answer as of now."""
        match question:
            case AskStreams():
                return Streams({name: stream.spec for name, stream in self.streams.items()})
            case AskStats():
                return Stats(self.numbers(sessions))
            case AskStatus():
                return StatusNow(self.overview.status(self.window, time.monotonic(), draining=draining))
            case AskMonitor():
                return self.monitor or Refused("usage", _NO_MONITOR)
            case AskNames():
                return self._names(question)

    def _names(self, question: AskNames) -> Names | Refused:
        refusal = names_objection(question, self.streams)
        if refusal is not None:
            return refusal
        stream = self.streams[question.stream]
        return Names(tuple(stream.file(sample_id) for sample_id in question.sample_ids))

    def numbers(self, sessions: int) -> dict[str, dict[str, float]]:
        """All that is counted, and what goes up and down as it is now."""
        self.stats.gauge("daemon", "sessions", sessions)
        self.stats.gauge("daemon", "memory_used_bytes", self.window.used_bytes)
        self.stats.gauge("daemon", "slots", len(self.slots))
        self.stats.gauge("daemon", "producing", self.window.producing)
        self.stats.gauge("daemon", "slot_wait_s", self.window.slot_wait_s)
        for rule, checks in self.window.checks.items():
            self.stats.gauge("rules", rule, checks)
        return self.stats.read()
