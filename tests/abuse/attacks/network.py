"""Attacks on the address that is for other hosts: without a key, with wrong ones, and with one that may connect."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from typing import Final

import zmq
from target import Attack, Target
from wire import TIMEOUT_S, Intruder, connect_to_address

from streamd.client.sockets import CurveKeys, create_key_pair, find_curve_keys

_SILENT: Final = 1001
_DROPPED: Final = 250
_HALF: Final = 200
_WRONG_KEYS: Final = 25
_ENDED_MS: Final = 50_000
_LONG_BYTES: Final = 16 << 20
_PART_BYTES: Final = 60_000
_PARTS: Final = 15_000  # more bytes than the heap of a gate may have
_PATIENCE_S: Final = 0.2  # before a listener's backlog counts as full for now
_REFUSED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_EVENT: Final = struct.Struct("=Hi")
_SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
_CURVE_GREETING: Final = _SIGNATURE + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
_NULL_GREETING: Final = _SIGNATURE + b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
_HELLO: Final = b"\x04\xc8\x05HELLO\x01\x00" + bytes(72)  # and then keys and a box, which never come
_GARBAGE: Final[tuple[bytes, ...]] = (
    b"GET /metrics HTTP/1.1\r\nHost: streamd\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # TLS
    _NULL_GREETING + b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER",
    _CURVE_GREETING + b"\x04\xc8\x05HELLO\x01\x00" + b"\xaa" * 192,  # a box that no key opens
    _CURVE_GREETING + b"\x06" + struct.pack(">Q", 1 << 62) + b"\x05HELLO",  # a command of 4 EiB
    _CURVE_GREETING + b"\x04\x09\x08INITIATE",
    bytes(1 << 16),
)


def stay_silent_at_address(target: Target) -> dict[str, int]:
    """Opens a thousand connections and one more, and says nothing."""
    return {"silent connections": _fill(target, _SILENT, b"")}


def stop_in_handshake(target: Target) -> dict[str, int]:
    """Begins handshakes, and ends them nowhere."""
    return {"half handshakes": _fill(target, _HALF, _CURVE_GREETING + _HELLO)}


def connect_and_drop_at_address(target: Target) -> dict[str, int]:
    """Opens connections one after the other, each closed at once."""
    for _ in range(_DROPPED):
        connect_to_address(target.endpoint).close()
    return {"connections opened and dropped": _DROPPED}


def send_garbage_to_address(target: Target) -> dict[str, int]:
    """Sends what is no handshake, and what is a false one."""
    for garbage in (*_GARBAGE, os.urandom(500)):
        with connect_to_address(target.endpoint) as link, suppress(OSError):
            link.sendall(garbage)
            while link.recv(4096):
                pass
    return {"connections with garbage": len(_GARBAGE) + 1}


def try_wrong_keys(target: Target) -> dict[str, int]:
    """Shakes hands with keys that may not connect, each a new one."""
    intruders = []
    for _ in range(_WRONG_KEYS):
        pair = create_key_pair()
        intruder = Intruder(target.endpoint)
        monitor = intruder.dealer.get_monitor_socket(_REFUSED)
        intruder.connect_with_keys(CurveKeys(pair.public, pair.secret, _find_keys(target).server))
        intruders.append((intruder, monitor))
    refused = 0
    for intruder, monitor in intruders:
        if monitor.poll(int(TIMEOUT_S * 1000)):
            refused += _EVENT.unpack_from(monitor.recv_multipart()[0])[0] == _REFUSED
        intruder.dealer.disable_monitor()
        monitor.close(0)
        intruder.close()
    return {"wrong keys": _WRONG_KEYS, "wrong keys refused": refused}


def send_huge_frames(target: Target) -> dict[str, int]:
    """Sends frames of 16 MiB with a key that may connect, each on a connection of its own."""
    target.drop_kept()
    intruder = target.intrude()
    intruder.ask_spec()
    intruder.dealer.send(bytes(_LONG_BYTES))
    target.intrude().ask_spec()
    return {"frames of 16 MiB": 1}


def send_endless_message_to_address(target: Target) -> dict[str, int]:
    """Sends a message of more parts than a gate may keep, with a key that may connect."""
    target.drop_kept()
    intruder = target.intrude()
    intruder.ask_spec()
    monitor = intruder.dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    part = bytes(_PART_BYTES)
    for _ in range(_PARTS):
        intruder.dealer.send(part, zmq.SNDMORE, copy=False)  # which libzmq sends when it has the last part
    intruder.dealer.send(b"")
    ended = monitor.poll(_ENDED_MS)
    intruder.dealer.disable_monitor()
    monitor.close(0)
    return {"messages of 900 MB": 1, "connections that they ended": bool(ended)}


def _find_keys(target: Target) -> CurveKeys:
    keys = find_curve_keys(target.endpoint, None)
    assert keys is not None
    return keys


def _fill(target: Target, wanted: int, words: bytes) -> int:
    """Opens connections that say `words`, until so many are kept that are open; returns how many it opened."""
    for link in list(target.kept):
        if _is_closed(link):
            link.close()
            target.kept.remove(link)
    opened = 0
    with suppress(TimeoutError):
        while len(target.kept) < wanted and opened < wanted:
            link = connect_to_address(target.endpoint, _PATIENCE_S)
            target.kept.append(link)
            link.sendall(words)
            opened += 1
    return opened


def _is_closed(link: socket.socket) -> bool:
    """Reads what came, and returns whether the other side has closed the connection."""
    link.setblocking(False)
    try:
        while link.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


ATTACKS: Final[tuple[Attack, ...]] = (
    connect_and_drop_at_address,
    send_endless_message_to_address,
    send_garbage_to_address,
    send_huge_frames,
    stay_silent_at_address,
    stop_in_handshake,
    try_wrong_keys,
)
