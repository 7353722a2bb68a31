"""Sessions by user: one user's sessions never keep another user out."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from support.dispatcher_rig import WISH, dispatching

from streamd.daemon.descriptor_allowance import (
    AMPLE_ALLOWANCE,
    SessionCounts,
    compute_reserved_sessions,
    compute_user_share,
    find_full_refusal,
)
from streamd.daemon.sessions import OWN_USER
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.messages import Refused, Welcome
from streamd.limits import LEAST_USER_SESSIONS, MAX_SESSIONS, RESERVED_SESSIONS

EVIL, HONEST = OWN_USER + 1, OWN_USER + 2
SMALL: Final = replace(AMPLE_ALLOWANCE, sessions=16)  # of which 8 are a user's share, and 2 are kept


def refusal_of(counts: SessionCounts, sessions: int = MAX_SESSIONS, *, is_own_user: bool = False) -> str | None:
    return find_full_refusal(counts, replace(AMPLE_ALLOWANCE, sessions=sessions), 1001, is_own_user=is_own_user)


@pytest.mark.parametrize(
    ("sessions", "share", "reserved"),
    [(MAX_SESSIONS, 64, RESERVED_SESSIONS), (16, LEAST_USER_SESSIONS, 2), (4, 4, 0), (1, 1, 0)],
)
def test_a_share_is_a_quarter_or_eight_and_an_eighth_or_sixteen_are_kept(
    sessions: int, share: int, reserved: int
) -> None:
    assert (compute_user_share(sessions), compute_reserved_sessions(sessions)) == (share, reserved)


def test_a_user_beyond_its_share_is_refused_with_its_name_the_numbers_and_the_remedy() -> None:
    assert refusal_of(SessionCounts(63, 0, 63, 0)) is None
    assert refusal_of(SessionCounts(64, 3, 64, 3)) == (
        "user 1001 has 64 sessions (of which 3 have ended while trainers still hold their batches), which is one "
        "user's share of the 256 of this daemon: close a stream that is not needed any more, and drop the arrays taken "
        "from batches of closed streams"
    )


def test_the_last_sessions_are_kept_for_users_without_one() -> None:
    assert refusal_of(SessionCounts(239, 0, 1, 0)) is None
    assert refusal_of(SessionCounts(240, 0, 0, 0)) is None
    assert (
        "240 of 256 sessions are open, and the last 16 are kept for users without one, while user 1001 has 1 session:"
        in str(refusal_of(SessionCounts(240, 0, 1, 0)))
    )
    assert "256 sessions are open" in str(refusal_of(SessionCounts(256, 0, 0, 0)))


def test_the_daemons_own_user_may_have_all_sessions() -> None:
    assert refusal_of(SessionCounts(255, 0, 255, 0), is_own_user=True) is None
    assert "256 sessions are open, which is the limit" in str(
        refusal_of(SessionCounts(256, 0, 256, 0), is_own_user=True)
    )


async def test_a_user_that_opens_all_it_can_keeps_nobody_else_out(stream: ServedStream) -> None:
    async with dispatching(stream, allowance=SMALL) as rig:
        for number in range(LEAST_USER_SESSIONS):
            rig.subscribe(b"evil%d" % number, user=EVIL)
        refused = rig.ask(b"more", WISH, user=EVIL)
        assert isinstance(refused, Refused)
        assert (refused.why, refused.retry_s) == ("busy", 1.0)
        assert f"user {EVIL} has 8 sessions, which is one user's share of the 16" in refused.text
        for user in (HONEST, OWN_USER):
            assert isinstance(rig.ask(b"of %d" % user, WISH, user=user), Welcome)
