"""Who comes, who is let in, who goes and what they hear, with a book instead of sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec
import pytest
from support.daemon_process import write_images
from support.served_folder import serve

from streamd.core.counters import ProcessStats
from streamd.core.spec import Cursor
from streamd.daemon.sessions import Connection, SessionManager, describe_trainer
from streamd.daemon.status_builder import StatusBuilder, SubscribedTrainer
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.fd_passing import DescriptorServer
from streamd.ipc.messages import CreditNow, DaemonMessage, Refused, Stopped, Subscribe, Welcome
from streamd.limits import MAX_TRAINER_NAME_CHARS
from streamd.scheduler.actions import AdmitSession, RefuseSession, SetCredit, StopStream

MIB = 1 << 20
WISH = Subscribe("train", 0, 1, None, Cursor(), "drop", 4, "shared", None, resuming=False)


@dataclass
class Door:
    """The descriptor server: whom it expects. And everything that was said, to whom."""

    expected: set[int] = field(default_factory=set)
    said: list[tuple[int | bytes, DaemonMessage]] = field(default_factory=list)

    def issue_secret(self, session: int) -> bytes:
        self.expected.add(session)
        return b"secret"

    def close_session(self, session: int) -> None:
        self.expected.discard(session)

    def send(self, peer: Connection, message: DaemonMessage) -> None:
        self.said.append((peer.session, message))

    def tell(self, identity: bytes, message: DaemonMessage) -> None:
        self.said.append((identity, message))


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[ServedStream]:
    stream = serve(write_images(tmp_path / "data", {"cat": 10}, size=(8, 8)), tmp_path / "state")
    yield stream
    stream.manifest.close()


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.fixture
def reception(stream: ServedStream, door: Door) -> SessionManager:
    streams = {"train": stream}
    overview = StatusBuilder(streams, 2, 8 * MIB, "ipc:///s", ProcessStats(), began_s=0.0)
    return SessionManager(
        streams,
        cast("DescriptorServer", door),
        "/s.fd",
        overview,
        send_to_session=door.send,
        send_without_session=door.tell,
    )


def begin(reception: SessionManager, identity: bytes) -> int:
    """A session that was let in."""
    asked = reception.validate_and_add_connection(identity, WISH, is_draining=False)
    assert asked is not None
    reception.apply_session_action(AdmitSession(asked.session, 4, None), 1.0)
    return asked.session


def test_who_may_come_is_asked_for_and_greeted_when_let_in(
    reception: SessionManager, door: Door, stream: ServedStream
) -> None:
    asked = reception.validate_and_add_connection(b"one", WISH, is_draining=False)
    assert asked is not None
    assert (asked.session, asked.stream, asked.credit, door.said) == (1, "train", 4, [])
    reception.apply_session_action(AdmitSession(1, 3, None), 1.0)
    assert door.said == [(1, Welcome(stream.spec, 3, "shared", "/s.fd", b"secret", None))]
    assert door.expected == {1}
    peer = reception.connections.find_by_session(1)
    assert peer is not None
    assert peer.credit == 3


def test_who_may_not_come_hears_why_and_leaves_no_trace(reception: SessionManager, door: Door) -> None:
    assert reception.validate_and_add_connection(b"one", WISH, is_draining=True) is None
    ((identity, refusal),) = door.said
    assert (identity, isinstance(refusal, Refused), len(reception.connections)) == (b"one", True, 0)


def test_whom_the_window_refuses_is_told_by_name_and_struck_off(reception: SessionManager, door: Door) -> None:
    reception.validate_and_add_connection(b"one", WISH, is_draining=False)
    reception.apply_session_action(RefuseSession(1, "memory", "too little", 2.0), 1.0)
    assert door.said == [(b"one", Refused("memory", "too little", 2.0))]
    assert len(reception.connections) == 0


@pytest.mark.parametrize("changed", [True, False])
def test_who_reads_a_stream_that_ends_is_told_why_and_hangs_up_itself(
    reception: SessionManager, door: Door, *, changed: bool
) -> None:
    gone, stays = begin(reception, b"one"), begin(reception, b"two")
    door.said.clear()
    reception.apply_session_action(StopStream("train", (gone,), "for a reason", changed), 2.0)
    assert door.said == [(gone, Stopped("for a reason", changed))]
    assert reception.connections.find_by_session(gone) is None
    assert reception.connections.find_by_session(stays) is not None
    assert door.expected == {gone, stays}


@pytest.mark.parametrize(("changed", "told"), [(False, [("train", "for a reason")]), (True, [])])
def test_the_status_tells_why_trainers_were_ended_but_not_that_their_stream_has_changed(
    reception: SessionManager, monkeypatch: pytest.MonkeyPatch, *, changed: bool, told: list[tuple[str, str]]
) -> None:
    heard: list[tuple[str, str]] = []
    monkeypatch.setattr(StatusBuilder, "on_stream_failed", lambda _, stream, reason: heard.append((stream, reason)))
    reception.apply_session_action(StopStream("train", (begin(reception, b"one"),), "for a reason", changed), 2.0)
    assert heard == told


def test_a_session_ends_once_and_its_lifeline_with_it(reception: SessionManager, door: Door) -> None:
    session = begin(reception, b"one")
    assert reception.end_session(session, "said goodbye")
    assert not reception.end_session(session, "lost")
    assert door.expected == set()


def test_the_last_one_out_ends_the_wait(reception: SessionManager) -> None:
    async def wait() -> bool:
        sessions = [begin(reception, b"one"), begin(reception, b"two")]
        waiting = asyncio.ensure_future(reception.wait_until_no_sessions(asyncio.Event()))
        reception.end_session(sessions[0], "done")
        await asyncio.sleep(0)
        early = waiting.done()
        reception.end_session(sessions[1], "done")
        await waiting
        return early

    assert not asyncio.run(wait())


async def test_nobody_is_waited_for_when_there_is_nobody_or_no_time(reception: SessionManager) -> None:
    await reception.wait_until_no_sessions(asyncio.Event())
    begin(reception, b"one")
    hurry = asyncio.Event()
    hurry.set()
    await reception.wait_until_no_sessions(hurry)
    assert len(reception.connections) == 1


def test_who_left_long_ago_does_not_end_the_wait_for_who_is_here(reception: SessionManager) -> None:
    async def waits() -> bool:
        reception.end_session(begin(reception, b"long ago"), "done")
        begin(reception, b"here")
        waiting = asyncio.ensure_future(reception.wait_until_no_sessions(asyncio.Event()))
        for _ in range(5):
            await asyncio.sleep(0)
        still = not waiting.done()
        waiting.cancel()
        return still

    assert asyncio.run(waits())


def test_who_is_lent_more_or_less_is_told(reception: SessionManager, door: Door) -> None:
    session = begin(reception, b"one")
    reception.apply_session_action(SetCredit(session, 2), 2.0)
    assert door.said[-1] == (session, CreditNow(2))
    peer = reception.connections.find_by_session(session)
    assert peer is not None
    assert peer.credit == 2
    reception.apply_session_action(SetCredit(99, 2), 2.0)


@pytest.mark.parametrize("numbers", [(-1, -5, -9), (1 << 60, 0, 0)])
def test_what_a_client_says_of_its_trainer_is_made_fit_to_be_shown(numbers: tuple[int, int, int]) -> None:
    pid, batch_size, steps = numbers
    wish = msgspec.structs.replace(WISH, name="\x1b[2J" + "n" * 1000, pid=pid, batch_size=batch_size, steps=steps)
    told = describe_trainer(wish)
    assert told == SubscribedTrainer("\\x1b[2J" + "n" * 56 + "…")
    assert len(told.name) == MAX_TRAINER_NAME_CHARS
