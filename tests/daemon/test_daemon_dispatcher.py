"""Frames that a raw socket sends to a daemon: garbage, wrong sessions, and impossible requests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq
from support.checked_epochs import number
from support.daemon_process import DaemonProcess, stream_config, wait_until, write_images

import streamd
from streamd.core.epoch_timing import BatchSupply, EpochTiming
from streamd.core.spec import Cursor, Segment
from streamd.errors import OtherVersionError
from streamd.ipc.endpoint import descriptor_socket_path, socket_path
from streamd.ipc.lifeline import Lifeline
from streamd.ipc.messages import (
    EMPTY_HEADER,
    MAGIC,
    VERSION,
    AskStreams,
    BatchReady,
    ClientMessage,
    DaemonMessage,
    FrameHeader,
    Goodbye,
    NoSession,
    Ping,
    Pong,
    Progress,
    ReceiptSeen,
    Refused,
    Streams,
    Subscribe,
    Welcome,
    decode_daemon_frame,
    encode_frame,
    split_records,
)

WISH = Subscribe("train", 0, 1, None, Cursor(), "drop", 4, "shared", None, resuming=False)
OTHER_VERSION = VERSION + 1
SESSIONS = ("daemon", "sessions")
LIMIT_MS = 40_000


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    place = tmp_path_factory.mktemp("d")
    folder = write_images(place / "data", {"cat": 20, "dog": 20})
    process = DaemonProcess(place, {"streams": {"train": stream_config(folder)}}).start()
    yield process
    assert process.terminate() == 0, process.log.read_text()
    process.kill()


class Raw:
    """A client that sends any message, whether the protocol allows it or not."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context(io_threads=1)
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.rcvtimeo = LIMIT_MS
        self.socket.connect(endpoint)
        self._endpoint = endpoint
        self.lifeline: Lifeline | None = None
        self._records: list[bytes] = []

    def say(self, message: ClientMessage, header: FrameHeader = EMPTY_HEADER) -> None:
        self.socket.send(encode_frame(header, message))

    def hear(self) -> tuple[FrameHeader, DaemonMessage]:
        self._records = self._records or split_records(self.socket.recv_multipart()[0])
        return decode_daemon_frame(self._records.pop(0))

    def ask(self, message: ClientMessage) -> DaemonMessage:
        self.say(message)
        return self.hear()[1]

    def subscribe(self, wish: Subscribe = WISH) -> FrameHeader:
        """A session with its lifeline; the header to speak with."""
        self.say(wish)
        header, welcome = self.hear()
        assert isinstance(welcome, Welcome), welcome
        self.lifeline = Lifeline(descriptor_socket_path(socket_path(self._endpoint)), welcome.secret)
        return header

    def close(self) -> None:
        self.socket.close(0)
        self._context.term()
        if self.lifeline is not None:
            self.lifeline.close()


@pytest.fixture
def raw(daemon: DaemonProcess) -> Iterator[Raw]:
    client = Raw(daemon.own_endpoint)
    yield client
    client.close()
    wait_until(lambda: number(daemon, *SESSIONS) == 0, "all sessions have ended")


@pytest.mark.parametrize(
    "parts",
    [
        [b""],
        [b"\x00"],
        [b"GET / HTTP/1.1\r\n\r\n"],
        [b"sx" + bytes([VERSION]) + bytes(60)],
        [MAGIC + bytes([VERSION]) + bytes(60)],
        [encode_frame(EMPTY_HEADER, AskStreams())[:-1]],
        [encode_frame(EMPTY_HEADER, AskStreams()), b"and more"],
        [b"", encode_frame(EMPTY_HEADER, AskStreams())],
        [encode_frame(EMPTY_HEADER, AskStreams()) + b"\x00"],
        [encode_frame(EMPTY_HEADER, AskStreams())[:28] + b"\x91" * 50_000],
    ],
)
def test_garbage_is_counted_and_the_next_question_is_answered(
    daemon: DaemonProcess, raw: Raw, parts: list[bytes]
) -> None:
    before = number(daemon, "wire", "malformed")
    raw.socket.send_multipart(parts)
    assert isinstance(raw.ask(AskStreams()), Streams)
    assert number(daemon, "wire", "malformed") == before + 1


def test_frames_of_another_boot_or_session_are_counted_and_dropped(daemon: DaemonProcess, raw: Raw) -> None:
    header = raw.subscribe()
    before = number(daemon, "wire", "stale")
    for stranger in (
        FrameHeader(header.boot ^ 1, header.session, 0),
        FrameHeader(header.boot, header.session + 1, 0),
        EMPTY_HEADER,
    ):
        for message in (Progress(4, (), 0, 0), Goodbye(), ReceiptSeen(0, "", ok=True)):
            raw.say(message, stranger)
        assert [raw.hear() for _ in range(2)] == [(stranger, NoSession())] * 2
    assert isinstance(raw.ask(AskStreams()), Streams)
    assert number(daemon, "wire", "stale") == before + 9
    assert number(daemon, *SESSIONS) == 1


def test_messages_for_a_session_from_another_connection_are_dropped(daemon: DaemonProcess, raw: Raw) -> None:
    header = raw.subscribe()
    other = Raw(daemon.own_endpoint)
    before = number(daemon, "wire", "stale")
    other.say(Goodbye(), header)
    assert isinstance(other.ask(AskStreams()), Streams)
    assert number(daemon, "wire", "stale") == before + 1
    assert number(daemon, *SESSIONS) == 1
    other.close()


def test_a_pong_has_the_daemons_view_of_the_session(raw: Raw) -> None:
    header = raw.subscribe()
    raw.say(Progress(2, (), 0, 0), header)
    assert [type(raw.hear()[1]) for _ in range(2)] == [BatchReady] * 2
    raw.say(Progress(3, (0,), 1, 0), header)
    assert isinstance(raw.hear()[1], BatchReady)
    raw.say(Ping(), header)
    assert raw.hear() == (header, Pong(3, 3, 1, 0))


def test_a_goodbye_ends_the_session(daemon: DaemonProcess, raw: Raw) -> None:
    header = raw.subscribe()
    assert number(daemon, *SESSIONS) == 1
    raw.say(Goodbye(), header)
    wait_until(lambda: number(daemon, *SESSIONS) == 0, "the session has ended")


def test_subscribing_again_ends_the_earlier_session(daemon: DaemonProcess, raw: Raw) -> None:
    first = raw.subscribe()
    earlier = raw.lifeline
    second = raw.subscribe()
    assert earlier is not None
    wait_until(earlier.has_ended, "the earlier lifeline has ended")
    earlier.close()
    assert second.session > first.session
    assert number(daemon, *SESSIONS) == 1


def test_batches_are_sent_up_to_the_credit_and_numbered(raw: Raw) -> None:
    header = raw.subscribe()
    raw.say(Progress(2, (), 0, 0), header)
    batches = [raw.hear() for _ in range(2)]
    assert [(each.number, message.index) for each, message in batches if isinstance(message, BatchReady)] == [
        (0, 0),
        (1, 1),
    ]
    assert isinstance(raw.ask(AskStreams()), Streams)


@pytest.mark.parametrize(
    ("changes", "why", "says"),
    [
        ({"stream": "trian"}, "unknown", "there is no stream 'trian'; the daemon serves: train; did you mean 'train'?"),
        ({"world": 6}, "usage", "world 6 is more than the 5 batches of an epoch"),
    ],
)
def test_an_impossible_subscription_is_refused_with_its_reason(
    raw: Raw, changes: dict[str, Any], why: str, says: str
) -> None:
    refused = raw.ask(msgspec.structs.replace(WISH, **changes))
    assert isinstance(refused, Refused), refused
    assert (refused.why, refused.retry_s) == (why, None)
    assert says in refused.text


@pytest.mark.parametrize(
    "message",
    [
        Progress(1 << 62, (), 0, 0),
        Progress(-(1 << 62), (), -5, -5),
        Progress(0, (7, 7, -1, 1 << 62), 1 << 62, 1 << 62),
        ReceiptSeen(
            -1, "x" * 60_000, ok=False, timing=EpochTiming(-1, float("nan"), -1e308, "disk", BatchSupply(-1, 1))
        ),
    ],
)
def test_absurd_numbers_from_one_session_do_not_affect_others(daemon: DaemonProcess, raw: Raw, message: Any) -> None:
    header = raw.subscribe()
    raw.say(message, header)
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train", epochs=1) as stream:
        assert [batch.index for batch in stream] == [0, 1, 2, 3, 4]
        assert stream.receipts[0].ok


@pytest.mark.parametrize("cursor", [Cursor((1 << 40) - 1), Cursor(0, (Segment(0, 5, 0, 1),))])
def test_extreme_cursors_are_served(raw: Raw, cursor: Cursor) -> None:
    header = raw.subscribe(msgspec.structs.replace(WISH, cursor=cursor))
    raw.say(Progress(1, (), 0, 0), header)
    _, message = raw.hear()
    while not isinstance(message, BatchReady):
        _, message = raw.hear()
    assert message.index == 0


def list_trainers(daemon: DaemonProcess) -> list[tuple[str, int]]:
    with streamd.connect(daemon.endpoint) as client:
        return [(each.name, each.pid) for each in client.status().sessions]


def test_a_client_that_disappears_is_noticed(daemon: DaemonProcess) -> None:
    client = Raw(daemon.own_endpoint)
    client.subscribe()
    wait_until(lambda: [pid for _, pid in list_trainers(daemon)] == [os.getpid()], "its lifeline has been paired")
    client.close()
    wait_until(lambda: number(daemon, *SESSIONS) == 0, "its session has ended")


def test_clients_that_leave_before_their_answer_do_no_harm(daemon: DaemonProcess) -> None:
    clients = [Raw(daemon.own_endpoint) for _ in range(20)]
    for client in clients:
        client.say(AskStreams())
    for client in clients:
        client.close()
    assert number(daemon, *SESSIONS) == 0


def test_a_client_of_another_version_is_told_the_daemons_version(raw: Raw) -> None:
    foreign = bytearray(encode_frame(EMPTY_HEADER, AskStreams()))
    foreign[2] = OTHER_VERSION
    raw.socket.send(bytes(foreign))
    _, answer = raw.hear()
    assert isinstance(answer, Refused)
    assert f"the other side speaks protocol version {OTHER_VERSION}, but this side speaks {VERSION}:" in answer.text


def test_connecting_to_a_daemon_of_another_version_raises_at_once(
    daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.ipc.messages.VERSION", OTHER_VERSION)
    with pytest.raises(OtherVersionError, match="install the same streamd"):
        streamd.connect(daemon.endpoint)


def test_the_pid_of_a_trainer_comes_from_the_kernel(daemon: DaemonProcess, raw: Raw) -> None:
    raw.subscribe(msgspec.structs.replace(WISH, name="lr-0.01", pid=1))
    wait_until(lambda: list_trainers(daemon) == [("lr-0.01", os.getpid())], "its lifeline has been paired")
