"""Divides the descriptors of the process among trainers, batches and streams. Arithmetic and its messages; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamd.core.text import format_count
from streamd.errors import ConfigError
from streamd.limits import (
    FILES_A_GATE,
    GATE_DESCRIPTORS,
    KNOCKS,
    LEAST_SLOTS_A_SESSION,
    MAX_GATES,
    MAX_MONITOR_CONNECTIONS,
    MAX_SESSIONS,
    MAX_SLOTS,
    OWN_DESCRIPTORS,
    RELOADED_STREAMS,
    SESSION_DESCRIPTORS,
    SPARE_DESCRIPTORS,
    STREAM_DESCRIPTORS,
    WORKER_DESCRIPTORS,
)

_REMEDY: Final = "allow it more open files (ulimit -n, LimitNOFILE= of its unit)"


@dataclass(frozen=True, slots=True)
class DescriptorAllowance:
    """How `descriptor_limit` descriptors are divided. The daemon takes `own_descriptors` with `streams` streams."""

    descriptor_limit: int
    own_descriptors: int
    sessions: int
    slots: int
    streams: int
    gates: int = 1

    @property
    def max_connection_descriptors(self) -> int:
        """The most descriptors of the endpoint: a connection and a listening socket a session, and spare ones."""
        return 2 * self.sessions + SPARE_DESCRIPTORS

    @property
    def max_lifeline_connections(self) -> int:
        """The most connections to the descriptor socket, including those that have not sent their secret yet."""
        return self.sessions + KNOCKS

    def format_session_refusal(self, ended: int = 0) -> str:
        """Returns why no more sessions fit. `ended` of them are over while trainers still hold their batches."""
        held = f" (of which {ended} have ended while trainers still hold their batches)" if ended else ""
        if self.sessions == MAX_SESSIONS:
            return f"{MAX_SESSIONS} sessions are open{held}, which is the limit"
        return (
            f"{self.sessions} sessions are open{held}, which is the most that {self.descriptor_limit} descriptors "
            f"allow: the daemon and its workers take {self.own_descriptors}, newcomers {SPARE_DESCRIPTORS + KNOCKS}, "
            f"each session {SESSION_DESCRIPTORS}, and {self.slots} are for batches; {_REMEDY}"
        )

    def explain_too_many_streams(self, streams: int) -> str | None:
        """Returns why a reload cannot have so many streams, or None. What is promised to trainers is never taken."""
        added = streams - self.streams
        promised = self.own_descriptors + SPARE_DESCRIPTORS + KNOCKS + SESSION_DESCRIPTORS * self.sessions + self.slots
        if added * STREAM_DESCRIPTORS <= max(0, self.descriptor_limit - promised):
            return None
        return (
            f"{format_count(added, 'more stream')} would need {added * STREAM_DESCRIPTORS} descriptors, but of "
            f"{self.descriptor_limit} only {self.descriptor_limit - promised} are not reserved for trainers: restart "
            f"streamd, which counts them again, or {_REMEDY}"
        )


def compute_descriptor_allowance(
    limit: int, *, workers: int, streams: int, is_monitored: bool, network_gates: int = 0
) -> DescriptorAllowance:
    """Divides `limit` descriptors. Raises ConfigError when they are too few for one trainer.

    `network_gates` is how many addresses other hosts may connect to.
    """
    monitor = MAX_MONITOR_CONNECTIONS if is_monitored else 0
    gates = min(MAX_GATES, max(1, limit // FILES_A_GATE))
    own = (
        OWN_DESCRIPTORS
        + GATE_DESCRIPTORS * (gates + network_gates)
        + WORKER_DESCRIPTORS * workers
        + STREAM_DESCRIPTORS * streams
        + monitor
    )
    left = limit - own - SPARE_DESCRIPTORS - KNOCKS
    sessions = min(MAX_SESSIONS, left // (SESSION_DESCRIPTORS + LEAST_SLOTS_A_SESSION))
    if sessions < 1:
        needed = limit - left + SESSION_DESCRIPTORS + LEAST_SLOTS_A_SESSION
        raise ConfigError(
            f"{limit} descriptors are too few to serve a trainer: {format_count(workers, 'worker')} and "
            f"{format_count(streams, 'stream')} take {own}, newcomers {SPARE_DESCRIPTORS + KNOCKS}, one trainer "
            f"{SESSION_DESCRIPTORS + LEAST_SLOTS_A_SESSION}, which makes {needed}; {_REMEDY}, or have fewer workers"
        )
    for_slots = left - SESSION_DESCRIPTORS * sessions
    # Reloads get descriptors only beyond the fewest slots that each session needs.
    for_reloads = min(STREAM_DESCRIPTORS * RELOADED_STREAMS, for_slots - LEAST_SLOTS_A_SESSION * sessions)
    return DescriptorAllowance(limit, own, sessions, min(MAX_SLOTS, for_slots - for_reloads), streams, gates)


# For callers that do not limit descriptors.
AMPLE_ALLOWANCE: Final = compute_descriptor_allowance(1 << 16, workers=1, streams=1, is_monitored=False)
