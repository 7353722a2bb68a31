"""Frames of a paused key wait in order and within bounds; those of other keys do not."""

from __future__ import annotations

import pytest

from streamd.gate.network_gate import HeldFrames
from streamd.limits import KEY_WAITING_BYTES, KEY_WAITING_FRAMES

BUSY, OTHER = 1, 2


@pytest.fixture
def held() -> HeldFrames:
    held = HeldFrames()
    held.pause_key(BUSY, 10.0)
    return held


def test_only_a_paused_key_waits(held: HeldFrames) -> None:
    assert held.is_paused(BUSY)
    assert not held.is_paused(OTHER)


def test_frames_come_in_their_order_when_the_pause_is_over(held: HeldFrames) -> None:
    for number in range(3):
        assert held.hold_frame(BUSY, b"a", bytes([number]))
    assert held.take_due_frames(9.9) == []
    assert held.take_due_frames(10.0) == [(b"a", b"\0"), (b"a", b"\1"), (b"a", b"\2")]
    assert not held.is_paused(BUSY)
    assert held.find_next_end_s() is None


def test_a_longer_pause_is_for_the_frames_that_wait_too(held: HeldFrames) -> None:
    held.hold_frame(BUSY, b"a", b"x")
    held.pause_key(BUSY, 20.0)
    assert held.find_next_end_s() == 20.0
    assert held.take_due_frames(10.0) == []


def test_the_next_end_is_that_of_the_shortest_pause(held: HeldFrames) -> None:
    held.pause_key(OTHER, 5.0)
    assert held.find_next_end_s() == 5.0
    held.take_due_frames(5.0)
    assert held.find_next_end_s() == 10.0


def test_too_many_frames_are_not_kept(held: HeldFrames) -> None:
    kept = [held.hold_frame(BUSY, b"a", b"x") for _ in range(KEY_WAITING_FRAMES + 1)]
    assert kept.index(False) == KEY_WAITING_FRAMES


def test_too_many_bytes_are_not_kept(held: HeldFrames) -> None:
    half = b"x" * (KEY_WAITING_BYTES // 2)
    assert [held.hold_frame(BUSY, b"a", half) for _ in range(3)] == [True, True, False]


def test_a_client_that_is_gone_makes_room_for_others(held: HeldFrames) -> None:
    half = b"x" * (KEY_WAITING_BYTES // 2)
    held.hold_frame(BUSY, b"a", half)
    held.hold_frame(BUSY, b"b", b"y")
    held.hold_frame(BUSY, b"a", b"x")
    held.drop_frames(BUSY, b"a")
    held.drop_frames(OTHER, b"c")
    assert held.hold_frame(BUSY, b"b", half)
    assert held.take_due_frames(10.0) == [(b"b", b"y"), (b"b", half)]
