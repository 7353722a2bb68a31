"""Attacks by frames that no client sends."""

from __future__ import annotations

import os
import pickle
import random
import struct
from collections.abc import Callable
from typing import Final

import msgspec
from target import Attack, Target

from streamd.ipc.messages import (
    EMPTY_HEADER,
    MAGIC,
    VERSION,
    AskNames,
    AskStreams,
    FrameHeader,
    Progress,
    Streams,
    build_frame,
    encode_frame,
)
from streamd.limits import MAX_CLIENT_FRAME_BYTES

_FRAMES: Final = 500
_NESTING: Final = 10_000
_HEADER: Final = struct.Struct("<2sBxQQQ")


class _Trap:
    """What runs a command where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch /tmp/streamd-unpickled",)


def _encode(value: object) -> bytes:
    return build_frame(EMPTY_HEADER, msgspec.msgpack.encode(value))


_BASE: Final = encode_frame(EMPTY_HEADER, AskNames("train", tuple(range(20))))
_MAKERS: Final[tuple[Callable[[random.Random], bytes], ...]] = (
    lambda dice: dice.randbytes(dice.randrange(300)),
    lambda dice: dice.randbytes(1),
    lambda _: b"",
    lambda dice: build_frame(EMPTY_HEADER, dice.randbytes(dice.randrange(60))),
    lambda dice: _damage(_BASE, dice),
    lambda dice: _BASE[: dice.randrange(len(_BASE))],
    lambda dice: _encode([dice.randrange(256), 1 << 63, -1, None, "x" * dice.randrange(99)]),
    lambda dice: _encode([dice.choice([1, 3, 4, 5, 6, 7, 9]), float("nan"), float("inf")]),
    lambda dice: _encode({"stream": dice.random(), "rank": 1}),
    lambda _: build_frame(EMPTY_HEADER, b"\x82\xa1a\x01\xa1a\x02"),  # a key twice
    lambda _: build_frame(EMPTY_HEADER, b"\x91" * _NESTING + b"\x01"),
    lambda _: build_frame(EMPTY_HEADER, b"\xdd\xff\xff\xff\xff"),  # an array that claims four thousand million items
    lambda _: build_frame(EMPTY_HEADER, pickle.dumps(_Trap())),
    lambda dice: encode_frame(FrameHeader(dice.getrandbits(64), dice.getrandbits(64), 7), Progress(9, (1,), 0, 0)),
)


def send_nonsense(target: Target) -> dict[str, int]:
    """Sends random, damaged, deep, empty and pickled frames."""
    dice = random.Random(target.count)  # noqa: S311 - to be repeatable is what it is for
    target.count += 1
    intruder = target.kept[0] if target.kept else target.intrude()
    for _ in range(_FRAMES):
        intruder.dealer.send(dice.choice(_MAKERS)(dice))
    intruder.send(AskStreams())
    intruder.wait_for(Streams)
    return {"random frames": _FRAMES}


def send_long_frames(target: Target) -> dict[str, int]:
    """Sends frames up to the bound and beyond, each beyond it on a connection of its own."""
    target.drop_kept()
    for size in (MAX_CLIENT_FRAME_BYTES, MAX_CLIENT_FRAME_BYTES + 1, 1 << 20):
        target.intrude().dealer.send(bytes(size))
    target.intrude().ask_spec()
    return {"long frames": 3}


def speak_other_versions(target: Target) -> dict[str, int]:
    """Sends a message of every version but the daemon's."""
    intruder = target.kept[0] if target.kept else target.intrude()
    others = [version for version in range(256) if version != VERSION]
    for version in others:
        intruder.dealer.send(_HEADER.pack(MAGIC, version, 0, 0, 0) + msgspec.msgpack.encode([version, {}]))
    for _ in others:
        intruder.receive()
    return {"frames of other versions, each answered": len(others)}


def _damage(frame: bytes, dice: random.Random) -> bytes:
    damaged = bytearray(frame)
    for _ in range(dice.randrange(1, 4)):
        damaged[dice.randrange(len(damaged))] = dice.randrange(256)
    return bytes(damaged)


ATTACKS: Final[tuple[Attack, ...]] = (send_long_frames, send_nonsense, speak_other_versions)
