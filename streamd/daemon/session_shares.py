"""Divides the sessions among users, so that one user's sessions never keep another user out. Pure.

The daemon's own user is trusted, and may have all sessions. Every other user has a share of them, and the last few are
kept for users that have none.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamd.core.text import format_count, format_user
from streamd.daemon.descriptor_allowance import DescriptorAllowance
from streamd.limits import (
    LEAST_USER_SESSIONS,
    RESERVED_SESSION_PART,
    RESERVED_SESSIONS,
    USER_SESSION_PART,
)

_REMEDY = "close a stream that is not needed any more, and drop the arrays taken from batches of closed streams"


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
            f"{allowance.sessions} of this daemon: {_REMEDY}"
        )
    if counts.of_user and left <= compute_reserved_sessions(allowance.sessions):
        return (
            f"{counts.total} of {format_count(allowance.sessions, 'session')} are open, and the last {left} are kept "
            f"for users without one, while {format_user(user)} has {_format_user_sessions(counts)}: {_REMEDY}, "
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
