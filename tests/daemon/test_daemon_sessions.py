"""Sessions without sockets: admission, refusal, messages and ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, cast

import msgspec
import pytest

from streamd.core.counters import ProcessStats
from streamd.core.spec import Cursor, OrderId, Segment
from streamd.daemon.descriptor_allowance import SessionCounts, compute_user_share
from streamd.daemon.sessions import (
    OWN_USER,
    Connection,
    Connections,
    SessionManager,
    describe_trainer,
    find_subscribe_refusal,
)
from streamd.daemon.status_builder import StatusBuilder, SubscribedTrainer
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.fd_passing import DescriptorServer
from streamd.ipc.messages import CreditNow, DaemonMessage, Refused, Stopped, Subscribe, Welcome
from streamd.limits import MAX_EPOCHS, MAX_SESSIONS, MAX_TRAINER_NAME_CHARS
from streamd.scheduler.events import AdmitSession, RefuseSession, SetCredit, StopStream

MIB = 1 << 20
WISH = Subscribe("train", 0, 1, None, Cursor(), "drop", 4, "shared", None, resuming=False)


@dataclass
class Recorder:
    """A descriptor server that notes the sessions it expects, and every message with its receiver."""

    expected: set[int] = field(default_factory=set)
    said: list[tuple[int | bytes, DaemonMessage]] = field(default_factory=list)

    def issue_secret(self, session: int) -> bytes:
        self.expected.add(session)
        return b"secret"

    def close_session(self, session: int) -> None:
        self.expected.discard(session)

    def send(self, connection: Connection, message: DaemonMessage) -> None:
        self.said.append((connection.session, message))

    def send_without_session(self, identity: bytes, message: DaemonMessage) -> None:
        self.said.append((identity, message))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def manager(stream: ServedStream, recorder: Recorder) -> SessionManager:
    streams = {"train": stream}
    overview = StatusBuilder(streams, 2, 8 * MIB, "ipc:///s", ProcessStats(), began_s=0.0)
    return SessionManager(
        streams,
        cast("DescriptorServer", recorder),
        overview,
        send_to_session=recorder.send,
        send_without_session=recorder.send_without_session,
    )


def begin(manager: SessionManager, identity: bytes, user: int = OWN_USER) -> int:
    """Admits a session and returns its number."""
    asked = manager.validate_and_add_connection(identity, WISH, is_draining=False, user=user)
    assert asked is not None
    manager.apply_session_action(AdmitSession(asked.session, 4, None), 1.0)
    return asked.session


def test_an_admitted_trainer_gets_a_welcome(manager: SessionManager, recorder: Recorder, stream: ServedStream) -> None:
    asked = manager.validate_and_add_connection(b"one", WISH, is_draining=False)
    assert asked is not None
    assert (asked.session, asked.stream, asked.credit, recorder.said) == (1, "train", 4, [])
    manager.apply_session_action(AdmitSession(1, 3, None), 1.0)
    assert recorder.said == [(1, Welcome(b"secret", stream.spec, 3, "shared", None))]
    assert recorder.expected == {1}
    connection = manager.connections.find_by_session(1)
    assert connection is not None
    assert connection.credit == 3


def test_a_refused_trainer_gets_the_reason_and_no_connection(manager: SessionManager, recorder: Recorder) -> None:
    assert manager.validate_and_add_connection(b"one", WISH, is_draining=True) is None
    ((identity, refusal),) = recorder.said
    assert (identity, isinstance(refusal, Refused), len(manager.connections)) == (b"one", True, 0)


def test_a_trainer_refused_by_the_scheduler_is_told_and_removed(manager: SessionManager, recorder: Recorder) -> None:
    manager.validate_and_add_connection(b"one", WISH, is_draining=False)
    manager.apply_session_action(RefuseSession(1, "memory", "too little", 2.0), 1.0)
    assert recorder.said == [(b"one", Refused("memory", "too little", 2.0))]
    assert len(manager.connections) == 0


def test_the_scheduler_hears_of_a_users_earlier_sessions_and_whose_they_must_be(manager: SessionManager) -> None:
    event = manager.validate_and_add_connection(b"one", WISH, is_draining=False, earlier_sessions=(7, 8), user=1001)
    assert event is not None
    assert (event.earlier, event.user) == ((7, 8), 1001)


def test_ended_sessions_with_batches_count_for_their_user(manager: SessionManager, recorder: Recorder) -> None:
    share = compute_user_share(MAX_SESSIONS)
    for session in [begin(manager, b"%d" % number, 1001) for number in range(share)]:
        manager.end_session(session, "it left")
    ended = [1001] * share
    assert manager.validate_and_add_connection(b"me", WISH, is_draining=False, ended_users=ended, user=1002)
    recorder.said.clear()
    assert not manager.validate_and_add_connection(b"it", WISH, is_draining=False, ended_users=ended, user=1001)
    ((_, refusal),) = recorder.said
    assert isinstance(refusal, Refused)
    assert f"user 1001 has {share} sessions (of which {share} have ended" in refusal.text
    assert manager.validate_and_add_connection(b"it", WISH, is_draining=False, user=1001), "all were released"


@pytest.mark.parametrize("changed", [True, False])
def test_trainers_of_a_stopped_stream_get_the_reason_and_close_themselves(
    manager: SessionManager, recorder: Recorder, *, changed: bool
) -> None:
    gone, stays = begin(manager, b"one"), begin(manager, b"two")
    recorder.said.clear()
    manager.apply_session_action(StopStream("train", (gone,), "for a reason", changed), 2.0)
    assert recorder.said == [(gone, Stopped("for a reason", changed))]
    assert manager.connections.find_by_session(gone) is None
    assert manager.connections.find_by_session(stays) is not None
    assert recorder.expected == {gone, stays}


@pytest.mark.parametrize(("changed", "told"), [(False, [("train", "for a reason")]), (True, [])])
def test_the_status_shows_why_a_stream_failed_but_not_that_it_changed(
    manager: SessionManager, monkeypatch: pytest.MonkeyPatch, *, changed: bool, told: list[tuple[str, str]]
) -> None:
    heard: list[tuple[str, str]] = []
    monkeypatch.setattr(StatusBuilder, "on_stream_failed", lambda _, stream, reason: heard.append((stream, reason)))
    manager.apply_session_action(StopStream("train", (begin(manager, b"one"),), "for a reason", changed), 2.0)
    assert heard == told


def test_a_session_ends_once_and_its_lifeline_with_it(manager: SessionManager, recorder: Recorder) -> None:
    session = begin(manager, b"one")
    assert manager.end_session(session, "said goodbye")
    assert not manager.end_session(session, "lost")
    assert recorder.expected == set()


async def test_the_wait_ends_with_the_last_session(manager: SessionManager) -> None:
    manager.end_session(begin(manager, b"long ago"), "done")
    sessions = [begin(manager, b"one"), begin(manager, b"two")]
    waiting = asyncio.ensure_future(manager.wait_until_no_sessions(asyncio.Event()))
    manager.end_session(sessions[0], "done")
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    manager.end_session(sessions[1], "done")
    await waiting


async def test_the_wait_ends_without_sessions_or_time(manager: SessionManager) -> None:
    await manager.wait_until_no_sessions(asyncio.Event())
    begin(manager, b"one")
    hurry = asyncio.Event()
    hurry.set()
    await manager.wait_until_no_sessions(hurry)
    assert len(manager.connections) == 1


def test_a_changed_credit_is_sent_to_its_session(manager: SessionManager, recorder: Recorder) -> None:
    session = begin(manager, b"one")
    manager.apply_session_action(SetCredit(session, 2), 2.0)
    assert recorder.said[-1] == (session, CreditNow(2))
    connection = manager.connections.find_by_session(session)
    assert connection is not None
    assert connection.credit == 2
    manager.apply_session_action(SetCredit(99, 2), 2.0)


@pytest.mark.parametrize("numbers", [(-1, -5, -9), (1 << 60, 0, 0)])
def test_the_description_of_a_trainer_is_sanitized(numbers: tuple[int, int, int]) -> None:
    pid, batch_size, steps = numbers
    wish = msgspec.structs.replace(WISH, name="\x1b[2J" + "n" * 1000, pid=pid, batch_size=batch_size, steps=steps)
    told = describe_trainer(wish)
    assert told == SubscribedTrainer("\\x1b[2J" + "n" * 56 + "…")
    assert len(told.name) == MAX_TRAINER_NAME_CHARS


# --- what is refused before the scheduler is asked, and whether asking again helps


def refusal_of(
    stream: ServedStream, /, *, session_count: int = 0, is_draining: bool = False, **changes: Any
) -> Refused | None:
    asked = msgspec.structs.replace(WISH, **changes)
    counts = SessionCounts(session_count)
    return find_subscribe_refusal(asked, {"train": stream}, is_draining=is_draining, counts=counts)


@pytest.mark.parametrize("session_count", [0, MAX_SESSIONS - 1])
def test_an_ordinary_subscription_is_not_refused(stream: ServedStream, session_count: int) -> None:
    assert refusal_of(stream, session_count=session_count) is None


def at(*history: Segment, epoch: int = 0) -> dict[str, Any]:
    return {"cursor": Cursor(epoch, history)}


@pytest.mark.parametrize(
    ("changes", "why", "says"),
    [
        ({"stream": "trian"}, "unknown", "there is no stream 'trian'; the daemon serves: train; did you mean 'train'?"),
        ({"rank": 1}, "usage", "rank 1 of world 1"),
        ({"rank": -1}, "usage", "rank -1 of world 1"),
        ({"world": 0}, "usage", "rank 0 of world 0"),
        (
            {"world": 1 << 60, "uneven": "pad"},
            "usage",
            "rank must be from 0 to world - 1, world at most 1048575, and epochs 0 or more",
        ),
        ({"epochs": -1}, "usage", "epochs -1"),
        ({"epochs": MAX_EPOCHS + 1}, "usage", f"epochs 0 or more, at most {MAX_EPOCHS}"),
        ({"order_id": "0123456789abcdef"}, "token", "has a different order now"),
        (at(epoch=-1), "token", "out of range"),
        (at(Segment(1, 1, 0, 1)), "token", "does not add up"),
        (at(Segment(0, 2, 3, 2)), "token", "does not add up"),
        (at(Segment(0, 3, 0, 1)), "token", "beyond the 2 batches"),
        (at(Segment(0, 1 << 39, 0, 1)), "token", "beyond the 2 batches"),
    ],
    ids=str,
)
def test_an_impossible_subscription_is_refused_for_good_with_its_reason(
    stream: ServedStream, changes: dict[str, Any], why: str, says: str
) -> None:
    refused = refusal_of(stream, **changes)
    assert refused is not None
    assert (refused.why, refused.retry_s) == (why, None)
    assert says in refused.text


@pytest.mark.parametrize(("sessions", "draining"), [(MAX_SESSIONS, False), (0, True)], ids=["full", "leaving"])
def test_a_full_or_draining_daemon_asks_to_retry(stream: ServedStream, sessions: int, draining: bool) -> None:
    refused = refusal_of(stream, session_count=sessions, is_draining=draining)
    assert refused is not None
    assert refused.why == "busy"
    assert refused.retry_s is not None


def test_another_order_is_refused_with_the_difference(stream: ServedStream) -> None:
    other = replace(stream, spec=replace(stream.spec, order_id=OrderId("f" * 32), batch_size=16, batches=1))
    facts = stream.spec.order_facts
    refused = refusal_of(other, **at(Segment(0, 3, 0, 1)), order_id="0" * 32, resuming=True, order=facts)
    assert refused is not None
    assert refused.why == "token"
    assert (
        "has a different order now: batch_size was 8 and is 16; to continue, serve the stream as it was before, or"
        in refused.text
    )


def test_another_order_without_details_is_refused_with_both_ids(stream: ServedStream) -> None:
    other = replace(stream, spec=replace(stream.spec, order_id=OrderId("f" * 32)))
    refused = refusal_of(other, order_id=stream.spec.order_id, resuming=True)
    assert refused is not None
    assert stream.spec.order_id[:12] in refused.text
    assert "f" * 12 in refused.text


# --- the connections


def connection(session: int, identity: bytes) -> Connection:
    return Connection(identity, session, cast("ServedStream", None), "shared", 0, 1)


def test_a_connection_is_found_by_session_and_by_identity() -> None:
    connections = Connections()
    one, two = connection(1, b"a"), connection(2, b"b")
    connections.add_connection(one)
    connections.add_connection(two)
    assert (connections.find_by_session(1), connections.find_by_identity(b"b"), len(connections)) == (one, two, 2)
    assert (connections.find_by_session(3), connections.find_by_identity(b"c")) == (None, None)


def test_a_removed_connection_is_not_found_again() -> None:
    connections = Connections()
    one = connection(1, b"a")
    connections.add_connection(one)
    assert connections.remove_session(1) is one
    assert connections.remove_session(1) is None
    assert (connections.find_by_session(1), connections.find_by_identity(b"a"), len(connections)) == (None, None, 0)


def test_connections_may_be_removed_while_they_are_listed() -> None:
    connections = Connections()
    for number in range(3):
        connections.add_connection(connection(number, bytes([number])))
    for each in connections.list_connections():
        connections.remove_session(each.session)
    assert len(connections) == 0
