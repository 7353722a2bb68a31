"""The relay between the daemon, which the test plays, and a client: pieces, order, and leases behind a release."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from support.coroutine_tests import wait_for_condition
from support.sample_specs import SPEC

from streamd.core.spec import Cursor
from streamd.gate import network_gate
from streamd.gate.network_gate import PixelRelay
from streamd.ipc.lifeline import DROPPED, STILL_HELD
from streamd.ipc.messages import (
    PIECE_MARK,
    BatchReady,
    ClientMessage,
    DaemonMessage,
    Draining,
    FrameHeader,
    Goodbye,
    Ping,
    Pong,
    Progress,
    SlotsGone,
    Subscribe,
    Welcome,
    decode_client_frame,
    decode_daemon_frame,
    encode_frame,
)
from streamd.ipc.slots import SlotStore
from streamd.limits import SECRET_BYTES

PATH: Final = "/run/s.fd"
SECRET: Final = bytes(SECRET_BYTES)
NBYTES: Final = 4096
ME: Final = b"\0\0\0\0\1client"
BOOT, SESSION, SLOT = 5, 1, 7
HEADER = FrameHeader(BOOT, SESSION, 0)


class RelayRig:
    """A relay whose client keeps what it is sent, as libzmq does until it has written it."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, memoryview | None]] = []
        self.heard: list[ClientMessage] = []
        self.is_reachable = True
        self.relay = PixelRelay(PATH, self._send_to_client, self._send_to_daemon)

    def _send_to_client(self, identity: bytes, frame: bytes, pixels: memoryview | None) -> bool:
        assert identity == ME
        if self.is_reachable:
            self.sent.append((frame, pixels))
        return self.is_reachable

    def _send_to_daemon(self, identity: bytes, frame: bytes) -> None:
        assert identity == ME
        self.heard.append(decode_client_frame(frame)[1])

    def from_daemon(self, message: DaemonMessage, number: int = 0) -> None:
        header = FrameHeader(BOOT, SESSION, number)
        self.relay.handle_daemon_record(ME, encode_frame(header, message), header, message)

    def welcome(self) -> None:
        self.from_daemon(Welcome(SECRET, SPEC, 4, "shared"))

    def report(self, message: Progress | Ping | Goodbye) -> None:
        self.relay.pass_report(ME, encode_frame(HEADER, message), message)

    def messages(self) -> list[DaemonMessage]:
        """What the client was told, without the pieces behind a batch's first."""
        return [decode_daemon_frame(frame)[1] for frame, _ in self.sent if frame != PIECE_MARK]

    def pixels(self) -> bytes:
        return b"".join(bytes(piece) for _, piece in self.sent if piece is not None)


class FakeLifeline:
    """The relay's lifeline to a daemon that has one slot."""

    slots: SlotStore
    last: FakeLifeline

    def __init__(self, path: str, secret: bytes) -> None:
        assert (path, secret) == (PATH, SECRET)
        self.reports: list[tuple[str, list[int]]] = []
        type(self).last = self

    def fetch_descriptor(self, slot: int) -> int:
        descriptor = self.slots.open_readable(slot)
        assert descriptor is not None
        return descriptor

    def report_leases(self, kind: bytes, numbers: list[int]) -> None:
        self.reports.append(({STILL_HELD: "held", DROPPED: "dropped"}[kind], list(numbers)))

    def fileno(self) -> int:
        return -1


@pytest.fixture(autouse=True)
def fake_daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    slots = SlotStore()
    slots.ensure_slot(SLOT, NBYTES)
    monkeypatch.setattr(FakeLifeline, "slots", slots, raising=False)
    monkeypatch.setattr(network_gate, "Lifeline", FakeLifeline)
    monkeypatch.setattr(network_gate, "PIECE_BYTES", NBYTES // 4)
    yield
    slots.close()


async def test_a_subscription_asks_the_daemon_for_slots_and_the_client_gets_no_secret() -> None:
    rig = RelayRig()
    asked = Subscribe("train", 0, 1, 1, Cursor(), "drop", 4, "inline", None, resuming=False)
    rig.relay.pass_subscription(ME, HEADER, asked)
    (passed,) = rig.heard
    assert isinstance(passed, Subscribe)
    assert passed.transport == "shared"
    rig.welcome()
    (told,) = rig.messages()
    assert isinstance(told, Welcome)
    assert (told.secret, told.transport, told.credit) == (b"", "inline", 4)


async def test_a_batch_comes_in_pieces_and_in_order_with_other_messages() -> None:
    rig = RelayRig()
    rig.welcome()
    rig.from_daemon(BatchReady(0, 0, 4, SLOT, NBYTES, inline=False), 0)
    rig.from_daemon(Pong(1, 4, 0, 0))
    frames = [frame for frame, _ in rig.sent[1:]]
    assert frames[1:4] == [PIECE_MARK] * 3
    assert decode_daemon_frame(frames[0])[1] == BatchReady(0, 0, 4, 0, NBYTES, inline=True)
    assert decode_daemon_frame(frames[4])[1] == Pong(1, 4, 0, 0)
    assert rig.pixels() == bytes(NBYTES)


async def test_only_so_many_bytes_are_given_to_libzmq_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = RelayRig()
    monkeypatch.setattr(network_gate, "SENDING_BYTES", NBYTES // 2)
    rig.welcome()
    rig.from_daemon(BatchReady(0, 0, 4, SLOT, NBYTES, inline=False), 0)
    rig.from_daemon(Draining())
    assert len(rig.sent) == 1 + 2
    del rig.sent[1]  # libzmq has written the first piece
    await wait_for_condition(lambda: len(rig.sent) == 1 + 2, "libzmq has written it")
    assert Draining() not in rig.messages()
    del rig.sent[1:]
    await wait_for_condition(lambda: Draining() in rig.messages(), "the rest has been sent")


async def test_a_release_reaches_the_daemon_after_the_last_byte_has_left() -> None:
    rig = RelayRig()
    rig.welcome()
    rig.from_daemon(BatchReady(0, 0, 4, SLOT, NBYTES, inline=False), 0)
    early = Progress(5, (0,), 1, 0)
    rig.report(early)
    rig.report(Ping())
    assert rig.heard == []
    rig.sent.clear()
    await wait_for_condition(lambda: len(rig.heard) == 2, "libzmq has written it")
    assert rig.heard == [early, Ping()]


async def test_a_client_that_is_gone_leaves_a_lease_until_its_bytes_have_left() -> None:
    rig = RelayRig()
    rig.welcome()
    lifeline = FakeLifeline.last
    rig.from_daemon(BatchReady(0, 0, 4, SLOT, NBYTES, inline=False), 3)
    rig.relay.end_session(ME)
    assert rig.heard == [Goodbye((3,))]
    assert lifeline.reports == []
    rig.sent.clear()
    await wait_for_condition(lambda: lifeline.reports == [("dropped", [3])], "libzmq has written it")


async def test_an_unreachable_client_ends_its_session_once() -> None:
    rig = RelayRig()
    rig.welcome()
    rig.is_reachable = False
    rig.from_daemon(BatchReady(0, 0, 4, SLOT, NBYTES, inline=False), 0)
    rig.relay.end_session(ME)
    assert [type(each) for each in rig.heard] == [Goodbye]


async def test_slots_that_are_gone_are_the_relays_own_affair() -> None:
    rig = RelayRig()
    rig.welcome()
    rig.from_daemon(SlotsGone((SLOT,)))
    assert [type(each) for each in rig.messages()] == [Welcome]


async def test_slots_stay_mapped_no_longer_than_the_session_that_asked_for_them() -> None:
    rig = RelayRig()
    rig.welcome()
    rig.from_daemon(BatchReady(0, 0, 4, SLOT, NBYTES, inline=False), 0)
    assert list(rig.relay._slots) == [SLOT]
    rig.from_daemon(SlotsGone((SLOT,)))
    assert list(rig.relay._slots) == []
    rig.from_daemon(BatchReady(0, 0, 4, SLOT, NBYTES, inline=False), 1)
    assert list(rig.relay._slots) == [SLOT]
    rig.relay.end_session(ME)
    assert list(rig.relay._slots) == []


async def test_a_session_is_found_by_its_number() -> None:
    rig = RelayRig()
    assert rig.relay.find_session((BOOT, SESSION)) is None
    rig.welcome()
    assert rig.relay.find_session((BOOT, SESSION)) == ME
