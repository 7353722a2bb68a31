"""Attacks by connections alone: claimed ids, silence, floods, half handshakes, idle lifelines."""

from __future__ import annotations

import os
import socket
import struct
import time
from contextlib import suppress
from typing import Final

from target import Attack, Target
from wire import HandmadeDealer, Intruder, connect_socket, read_path

_FIRST_ID: Final = 0x6B8B4567  # libzmq numbers the peers of a ROUTER from here on
_IDS: Final = 400  # claimed at a time: as many connections may have come before
_SILENT: Final = 1001
_IDLE: Final = 600
_DROPPED: Final = 250
_SLOW: Final = 100
_PAUSE_S: Final = 0.002
_PATIENCE_S: Final = 0.2  # before a listener's backlog counts as full for now
_GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL"


def claim_next_id(target: Target) -> dict[str, int]:
    """Claims the ids that the ROUTER gives to others next, and has others come."""
    target.drop_kept()
    for number in range(_IDS):
        intruder = Intruder(target.endpoint)
        target.kept.append(intruder)
        intruder.connect(b"\0" + struct.pack(">I", _FIRST_ID + number + 1))
        if number % 50 == 49:
            target.intrude().ask_spec()
    return {"ids claimed": _IDS}


def stay_silent(target: Target) -> dict[str, int]:
    """Opens a thousand connections and one more, and says nothing."""
    return {"silent connections": _fill(target, _SILENT, read_path(target.endpoint), socket.SOCK_STREAM)}


def idle_on_descriptor_socket(target: Target) -> dict[str, int]:
    """Opens 600 connections to the descriptor socket, and sends no secret."""
    return {"idle lifelines": _fill(target, _IDLE, target.descriptor_path, socket.SOCK_SEQPACKET)}


def connect_and_drop(target: Target) -> dict[str, int]:
    """Opens connections one after the other, each closed at once."""
    for _ in range(_DROPPED):
        connect_socket(read_path(target.endpoint)).close()
    return {"connections opened and dropped": _DROPPED}


def shake_hands_slowly(target: Target) -> dict[str, int]:
    """Has a hundred connections in their handshake, and sends each one byte more."""
    if not target.kept:
        for _ in range(_SLOW):
            target.kept.append(connect_socket(read_path(target.endpoint)))
    byte = target.count % len(_GREETING)
    sent = 0
    for link in list(target.kept):
        try:
            sent += link.send(_GREETING[byte : byte + 1])
        except OSError:
            link.close()
            target.kept.remove(link)
    target.count += 1
    time.sleep(_PAUSE_S)
    return {"bytes of slow handshakes": sent}


def send_endless_message(target: Target) -> dict[str, int]:
    """Sends part after part of a message, and never its end."""
    if not target.kept:
        target.kept.append(HandmadeDealer(target.endpoint).wait_for_handshake())
    part = os.urandom(60_000)
    for _ in range(20):
        try:
            target.kept[0].send_part(part)
        except OSError:
            target.drop_kept()
            raise
    return {"MB of one message": 20 * len(part) // 1_000_000}


def _fill(target: Target, wanted: int, path: str, kind: int) -> int:
    """Opens connections until so many are kept, without those that were closed by the other side, or no more can be.

    Returns how many it opened.
    """
    for link in list(target.kept):
        if _is_closed(link):
            link.close()
            target.kept.remove(link)
    opened = 0
    with suppress(BlockingIOError):
        while len(target.kept) < wanted:
            target.kept.append(connect_socket(path, kind, _PATIENCE_S))
            opened += 1
    return opened


def _is_closed(link: socket.socket) -> bool:
    link.setblocking(False)  # with a time-out, Python itself would wait
    try:
        return not link.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


ATTACKS: Final[tuple[Attack, ...]] = (
    claim_next_id,
    connect_and_drop,
    idle_on_descriptor_socket,
    send_endless_message,
    shake_hands_slowly,
    stay_silent,
)
