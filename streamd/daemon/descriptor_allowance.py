"""Divides descriptors among trainers, batches and streams, and sessions among users. Arithmetic, no I/O. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamd.core.text import format_count, format_user
from streamd.errors import ConfigError
from streamd.limits import (
    FILES_A_GATE,
    GATE_DESCRIPTORS,
    KNOCKS,
    LEAST_SLOTS_A_SESSION,
    LEAST_USER_SESSIONS,
    MAX_GATES,
    MAX_MONITOR_CONNECTIONS,
    MAX_SESSIONS,
    MAX_SLOTS,
    OWN_DESCRIPTORS,
    RELOADED_STREAMS,
    RESERVED_SESSION_PART,
    RESERVED_SESSIONS,
    SESSION_DESCRIPTORS,
    SPARE_DESCRIPTORS,
    STREAM_DESCRIPTORS,
    USER_SESSION_PART,
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


# --- Divides the sessions among users, so that one user's sessions never keep another user out. Pure.
#
# The daemon's own user is trusted, and may have all sessions. Every other user has a share of them, and the last few
# are kept for users that have none.


_SESSION_REMEDY = "close a stream that is not needed any more, and drop the arrays taken from batches of closed streams"


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """Sessions of all users, and of the user that asks for one more.

    Both include sessions that have `ended` while their trainers still hold batches of them.
    """

    total: int = 0
    ended: int = 0
    of_user: int = 0
    ended_of_user: int = 0


def find_full_refusal(
    counts: SessionCounts, allowance: DescriptorAllowance, user: int, *, is_own_user: bool
) -> str | None:
    """Returns why `user` gets no further session, with what to do; None if it gets one."""
    if counts.total >= allowance.sessions:
        return allowance.format_session_refusal(counts.ended)
    if is_own_user:
        return None
    share, left = compute_user_share(allowance.sessions), allowance.sessions - counts.total
    if counts.of_user >= share:
        return (
            f"{format_user(user)} has {_format_user_sessions(counts)}, which is one user's share of the "
            f"{allowance.sessions} of this daemon: {_SESSION_REMEDY}"
        )
    if counts.of_user and left <= compute_reserved_sessions(allowance.sessions):
        return (
            f"{counts.total} of {format_count(allowance.sessions, 'session')} are open, and the last {left} are kept "
            f"for users without one, while {format_user(user)} has {_format_user_sessions(counts)}: {_SESSION_REMEDY}, "
            "or wait until others do"
        )
    return None


def compute_user_share(sessions: int) -> int:
    """Returns how many of `sessions` one user may have, if it is not the daemon's own."""
    return min(sessions, max(LEAST_USER_SESSIONS, sessions // USER_SESSION_PART))


def compute_reserved_sessions(sessions: int) -> int:
    """Returns how many of `sessions` are kept for users that have none."""
    return min(RESERVED_SESSIONS, sessions // RESERVED_SESSION_PART)


def _format_user_sessions(counts: SessionCounts) -> str:
    ended = f" (of which {counts.ended_of_user} have ended while trainers still hold their batches)"
    return f"{format_count(counts.of_user, 'session')}{ended if counts.ended_of_user else ''}"
