"""Pixels that arrive in pieces."""

from __future__ import annotations

import pytest

from streamd.client.io_thread import ArrivingPixels
from streamd.errors import ProtocolError
from streamd.ipc.messages import BatchReady, Draining, FrameHeader, encode_frame

PIXELS = bytes(range(100))


def frame(nbytes: int = len(PIXELS)) -> bytes:
    return encode_frame(FrameHeader(1, 2, 0), BatchReady(0, 0, 4, 0, nbytes, inline=True))


def test_one_piece_is_taken_as_it_is() -> None:
    piece = memoryview(PIXELS)
    assert ArrivingPixels().begin_batch(frame(), piece) is piece


def test_pieces_make_up_the_batch_in_their_order() -> None:
    arriving = ArrivingPixels()
    assert arriving.begin_batch(frame(), memoryview(PIXELS[:40])) is None
    assert arriving.add_piece(memoryview(PIXELS[40:80])) is None
    complete = arriving.add_piece(memoryview(PIXELS[80:]))
    assert complete is not None
    assert (complete[0], bytes(complete[1])) == (frame(), PIXELS)
    assert complete[1].readonly
    assert arriving.begin_batch(frame(), memoryview(PIXELS)) is not None


def test_a_lost_connection_leaves_nothing_behind() -> None:
    arriving = ArrivingPixels()
    arriving.begin_batch(frame(), memoryview(PIXELS[:40]))
    arriving.forget_batch()
    with pytest.raises(ProtocolError):
        arriving.add_piece(memoryview(PIXELS[40:]))
    assert arriving.begin_batch(frame(), memoryview(PIXELS)) is not None


def test_too_many_pixels_are_an_error() -> None:
    arriving = ArrivingPixels()
    with pytest.raises(ProtocolError, match="belong to no batch"):
        arriving.begin_batch(frame(10), memoryview(PIXELS))
    arriving.begin_batch(frame(), memoryview(PIXELS[:40]))
    with pytest.raises(ProtocolError, match="more pixels"):
        arriving.add_piece(memoryview(PIXELS))
    with pytest.raises(ProtocolError, match="belong to no batch"):
        arriving.begin_batch(frame(), memoryview(PIXELS))


def test_pixels_behind_another_message_are_an_error() -> None:
    with pytest.raises(ProtocolError, match="belong to no batch"):
        ArrivingPixels().begin_batch(encode_frame(FrameHeader(1, 2, 0), Draining()), memoryview(b""))
