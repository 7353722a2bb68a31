"""The thread that owns the socket, against a daemon that the test plays by hand, frame by frame."""

from __future__ import annotations

import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq
from support.daemon_messages import SPEC
from support.daemon_process import wait_until
from support.forked_child import in_a_forked_child

from streamd.client.handoff import Handoff
from streamd.client.io_thread import IOThread
from streamd.client.leases import DescriptorPoller, ReceivedBatch
from streamd.client.session import ClientSession
from streamd.core.slot_layout import compute_slot_bytes
from streamd.core.spec import Cursor
from streamd.errors import OtherVersionError, ProtocolError
from streamd.ipc.messages import (
    VERSION,
    BatchReady,
    ClientMessage,
    DaemonMessage,
    Draining,
    FrameHeader,
    Goodbye,
    Ping,
    Progress,
    Refused,
    Subscribe,
    Welcome,
    build_frame,
    decode_client_frame,
    encode_frame,
    encode_message,
)

LIMIT_S = 10.0
BOOT = 5
CREDIT = 8
WISH = Subscribe("train", 0, 1, None, Cursor(), "drop", CREDIT, "inline", None, resuming=False)


class Daemon:
    """The daemon's end of the sockets; the test decides what it sends."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = f"ipc://{folder}/s"
        self._context = zmq.Context(io_threads=1)
        self._listen()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.settimeout(LIMIT_S)
        self._listener.bind(f"{folder}/s.fd")
        self._listener.listen()
        self._sessions = 0
        self.identity = b""
        self.lifeline: socket.socket | None = None

    def _listen(self) -> None:
        self.router = self._context.socket(zmq.ROUTER)
        self.router.linger = 0
        self.router.rcvtimeo = int(LIMIT_S * 1000)
        wait_until(self._bound, "the last socket has left the endpoint")

    def _bound(self) -> bool:
        try:
            self.router.bind(self.endpoint)
        except zmq.ZMQError:
            return False
        return True

    def receive(self) -> ClientMessage:
        self.identity, data = self.router.recv_multipart()
        return decode_client_frame(data)[1]

    def has_message(self, within_ms: int) -> bool:
        return bool(self.router.poll(within_ms))

    def send(self, message: DaemonMessage, number: int = 0, *, pixels: bytes | None = None) -> None:
        parts = [self.identity, encode_frame(FrameHeader(BOOT, self._sessions, number), message)]
        self.router.send_multipart(parts if pixels is None else [*parts, pixels])

    def accept_session(self) -> Subscribe:
        """Accepts the next subscription, and receives its first grant of credit."""
        subscribe = self.receive()
        assert isinstance(subscribe, Subscribe)
        self.close_lifeline()
        self._sessions += 1
        self.send(Welcome(b"s" * 16, SPEC, CREDIT, "inline"))
        self.lifeline, _ = self._listener.accept()
        self.lifeline.settimeout(LIMIT_S)
        assert self.lifeline.recv(16) == b"s" * 16
        assert self.receive() == Progress(CREDIT, (), 0, 0)
        return subscribe

    def deliver(self, number: int) -> None:
        """Batch `number` of the first epoch, every byte of it the number."""
        nbytes = compute_slot_bytes(SPEC)
        ready = BatchReady(0, number, SPEC.batch_size, 0, nbytes, inline=True)
        self.send(ready, number, pixels=bytes([number]) * nbytes)

    def drop_connections(self) -> None:
        """Drops every connection of the ROUTER, and listens again."""
        self.router.close(0)
        self._listen()

    def close_lifeline(self) -> None:
        if self.lifeline is not None:
            self.lifeline.close()
            self.lifeline = None

    def close(self) -> None:
        self.close_lifeline()
        self._listener.close()
        self.router.close(0)
        self._context.term()


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="sd") as folder:
        daemon = Daemon(Path(folder))
        yield daemon
        daemon.close()


class Trainer:
    """An I/O thread with its session and handoff, and the loop's part of the work."""

    def __init__(self, daemon: Daemon) -> None:
        self.session = ClientSession(WISH)
        self.handoff = Handoff(Cursor())
        self.io_thread = IOThread(daemon.endpoint, self.session, self.handoff)
        self._cursor = Cursor()
        self._taken: list[ReceivedBatch] = []  # a lease that ended by itself might be reported at any time
        self.io_thread.start()

    def take(self) -> ReceivedBatch:
        after = self._cursor.after_step(0, 1)
        received = None
        while received is None:  # ends early when the daemon goes away or comes back
            received = self.handoff.take_batch(after, LIMIT_S)
        self._cursor = after
        self._taken.append(received)
        return received

    def rests(self) -> bool:
        """Whether its thread waits for something to happen."""
        return sys._current_frames()[self.io_thread._thread.ident or 0].f_code is DescriptorPoller.poll.__code__


@pytest.fixture
def trainer(daemon: Daemon) -> Iterator[list[Trainer]]:
    """Filled by `begin`; a list, so that the fixture itself keeps no I/O thread alive."""
    begun: list[Trainer] = []
    yield begun
    daemon.close_lifeline()
    for each in begun:
        each.io_thread.stop()
    begun.clear()


def begin(daemon: Daemon, begun: list[Trainer]) -> Trainer:
    begun.append(Trainer(daemon))
    daemon.accept_session()
    return begun[-1]


def test_the_io_thread_subscribes_pairs_its_lifeline_and_opens_the_session(
    daemon: Daemon, trainer: list[Trainer]
) -> None:
    trainer.append(Trainer(daemon))
    subscribe = daemon.accept_session()
    assert (subscribe.stream, subscribe.cursor, subscribe.credit, subscribe.resuming) == ("train", Cursor(), 8, False)
    assert trainer[0].handoff.wait_for_session(LIMIT_S)


def test_inline_pixels_reach_the_loop(daemon: Daemon, trainer: list[Trainer]) -> None:
    one = begin(daemon, trainer)
    daemon.deliver(0)
    daemon.deliver(1)
    for number in (0, 1):
        received = one.take()
        assert (received.number, received.header.index) == (number, number)
        assert np.frombuffer(received.memory, np.uint8).tolist() == [number] * compute_slot_bytes(SPEC)


def test_a_batch_out_of_turn_ends_the_connection_and_never_reaches_the_loop(
    daemon: Daemon, trainer: list[Trainer]
) -> None:
    one = begin(daemon, trainer)
    daemon.deliver(0)
    one.take()
    daemon.deliver(2)
    again = daemon.accept_session()
    assert (again.cursor, again.resuming) == (Cursor().after_step(0, 1), True)
    assert one.session.gaps == 1


def test_untaken_batches_are_requested_again_when_the_lifeline_ends(daemon: Daemon, trainer: list[Trainer]) -> None:
    one = begin(daemon, trainer)
    daemon.deliver(0)
    daemon.deliver(1)
    one.take()
    wait_until(lambda: len(one.handoff._received) == 1, "the second batch is ready")
    daemon.close_lifeline()
    assert daemon.accept_session().cursor == Cursor().after_step(0, 1)
    assert len(one.handoff._received) == 0


def test_the_io_thread_leaves_a_draining_daemon_at_once_and_counts_it_as_away(
    daemon: Daemon, trainer: list[Trainer]
) -> None:
    one = begin(daemon, trainer)
    assert one.handoff.wait_for_session(LIMIT_S)
    daemon.send(Draining())
    assert daemon.lifeline is not None
    assert daemon.lifeline.recv(1) == b""
    wait_until(lambda: one.handoff.away_since_s is not None, "the loop's patience begins")
    assert daemon.accept_session().resuming


def test_a_temporary_refusal_is_retried_and_a_final_one_raises(daemon: Daemon, trainer: list[Trainer]) -> None:
    trainer.append(Trainer(daemon))
    assert isinstance(daemon.receive(), Subscribe)
    daemon.send(Refused("busy", "wait", 0.01))
    assert isinstance(daemon.receive(), Subscribe)
    daemon.send(Refused("usage", "not like that"))
    with pytest.raises(Exception, match="not like that"):
        trainer[0].handoff.wait_for_session(LIMIT_S)


def test_a_frame_of_another_version_raises_a_version_error_in_the_loop(daemon: Daemon, trainer: list[Trainer]) -> None:
    one = begin(daemon, trainer)
    said = bytearray(build_frame(FrameHeader(1, 1, 1), encode_message(Draining())))
    said[2] = VERSION + 1
    daemon.router.send_multipart([daemon.identity, bytes(said)])
    with pytest.raises(OtherVersionError, match=str(VERSION + 1)):
        one.take()


def test_a_malformed_frame_raises_a_protocol_error_in_the_loop(daemon: Daemon, trainer: list[Trainer]) -> None:
    one = begin(daemon, trainer)
    daemon.router.send_multipart([daemon.identity, b"no frame of streamd"])
    with pytest.raises(ProtocolError):
        one.take()


def test_a_single_release_is_delayed_unless_the_loop_waits_for_it(
    daemon: Daemon, trainer: list[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.client.leases.REPORT_INTERVAL_S", LIMIT_S)  # so that the loop is not a slow one
    one = begin(daemon, trainer)
    daemon.deliver(0)
    received = one.take()
    wait_until(one.rests, "the thread is done with the batch, and would not see its release by chance")
    one.io_thread.build_lease_end(received)()
    assert not daemon.has_message(100)
    one.io_thread.returns.set_immediate_lease_reports(now=True)
    assert daemon.receive() == Progress(CREDIT + 1, (0,), 1, 0)


def test_stop_says_goodbye_and_later_lease_returns_are_harmless(daemon: Daemon, trainer: list[Trainer]) -> None:
    one = begin(daemon, trainer)
    daemon.deliver(0)
    received = one.take()
    stopping = threading.Thread(target=one.io_thread.stop)
    stopping.start()
    assert isinstance(daemon.receive(), Goodbye)
    daemon.close_lifeline()
    stopping.join(LIMIT_S)
    one.io_thread.build_lease_end(received)()
    assert not one.io_thread._thread.is_alive()


def test_request_stop_says_goodbye_without_waiting_for_the_thread(
    daemon: Daemon, trainer: list[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.client.io_thread._GOODBYE_TIMEOUT_S", LIMIT_S)
    one = begin(daemon, trainer)
    one.io_thread.request_stop()
    assert isinstance(daemon.receive(), Goodbye)
    assert one.io_thread._thread.is_alive()
    daemon.close_lifeline()
    wait_until(lambda: not one.io_thread._thread.is_alive(), "its thread ends")


def test_an_io_thread_that_never_started_can_be_stopped(daemon: Daemon) -> None:
    session = ClientSession(WISH)
    IOThread(daemon.endpoint, session, Handoff(Cursor())).stop()
    assert not daemon.has_message(0)


def test_a_connection_that_is_cut_is_made_again_at_once_by_a_new_subscription(
    daemon: Daemon, trainer: list[Trainer]
) -> None:
    one = begin(daemon, trainer)
    daemon.deliver(0)
    one.take()
    daemon.drop_connections()
    again = daemon.accept_session()
    assert (again.cursor, again.resuming) == (Cursor().after_step(0, 1), True)


def test_a_daemon_that_dies_before_it_answers_is_not_waited_for(
    daemon: Daemon, trainer: list[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.client.session.ANSWER_TIMEOUT_S", 10 * LIMIT_S)
    trainer.append(Trainer(daemon))
    assert isinstance(daemon.receive(), Subscribe)
    daemon.drop_connections()
    daemon.accept_session()


def test_a_daemon_that_never_answers_a_ping_counts_as_away(daemon: Daemon, trainer: list[Trainer]) -> None:
    one = begin(daemon, trainer)
    one.io_thread.queue_session_call(lambda: one.session.ping_daemon(time.monotonic()))
    assert isinstance(daemon.receive(), Progress)
    assert isinstance(daemon.receive(), Ping)
    one.session._answer_due_s = 0.0  # the time is over
    one.io_thread.queue_session_call(list)
    wait_until(lambda: one.handoff.away_since_s is not None, "the daemon counts as away")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_lease_shared_with_a_forked_child_is_retired_when_it_ends(daemon: Daemon, trainer: list[Trainer]) -> None:
    one = begin(daemon, trainer)
    for number in range(3):
        daemon.deliver(number)
    before = [one.take(), one.take()]
    assert in_a_forked_child(lambda: None) == 0
    for received in [*before, one.take()]:
        one.io_thread.build_lease_end(received)()
    one.io_thread.returns.set_immediate_lease_reports(now=True)
    told: list[int] = []
    retired: list[int] = []
    while len(told) < 3:
        progress = daemon.receive()
        assert isinstance(progress, Progress)
        told += progress.released
        retired += progress.retired
    assert (told, retired) == ([0, 1, 2], [0, 1])


class Watcher(IOThread):
    """Records the calls around a fork."""

    def __init__(self) -> None:
        super().__init__("ipc:///nowhere", ClientSession(WISH), Handoff(Cursor()))
        self.calls: list[str] = []

    def before_fork(self) -> None:
        self.calls.append("begins")

    def after_fork_in_parent(self) -> None:
        self.calls.append("ends")

    def after_fork_in_child(self) -> None:
        self.calls.append("forked")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_io_thread_is_called_before_a_fork_and_after_it_in_both_processes() -> None:
    watcher = Watcher()

    def look() -> None:
        assert watcher.calls == ["begins", "forked"]

    assert in_a_forked_child(look) == 0
    assert watcher.calls == ["begins", "ends"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_keeps_neither_the_connection_nor_untaken_batches(
    daemon: Daemon, trainer: list[Trainer]
) -> None:
    one = begin(daemon, trainer)
    daemon.deliver(0)
    wait_until(lambda: len(one.handoff._received) == 1, "a batch is ready")

    def look() -> None:
        assert one.io_thread._lifeline is not None
        assert one.io_thread._lifeline.fileno() == -1
        assert not one.handoff._received

    assert in_a_forked_child(look) == 0
    assert one.take().number == 0
