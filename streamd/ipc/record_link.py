"""A link between the daemon and its gates: records of a kind and a body, over one end of a stream socket pair.

A record is its length, its kind, and its body. The body of a frame begins with the client's identity, after one byte
with its length. Descriptors go over a second socket pair, since a stream cannot keep them beside their record.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, cast

from streamd.errors import ProtocolError
from streamd.limits import LINK_TURN_S, MAX_GATE_RECORD_BYTES

_HEAD: Final = struct.Struct("<IB")  # bytes of the body, kind
USER: Final = struct.Struct("<I")  # a uid
KEY_USER: Final = struct.Struct("<Q")  # the number of a key, at the front of an identity of a gate for other hosts
KEY_PAUSE: Final = struct.Struct("<QI")  # the number of a key, and for how many milliseconds its frames wait


class RecordKind(IntEnum):
    """What a record says. D: sent by the daemon; G: by any gate; O: by the door; N: by a gate for other hosts."""

    FRAME = 1  # D, G: identity and frame, to or from a client
    UNREACHABLE = 2  # G: identity of a client that cannot be reached, or does not read
    SETTINGS = 3  # D: what the process serves, as JSON; the first record
    READY = 4  # G: clients can connect now; N: with its port, and whether its connections use BBR, as JSON
    WANTED = 5  # O: uid of a user whose process has knocked
    REFERRAL = 6  # D: uid, and the path of the socket that serves this user; without a path, there is none now
    LOG = 7  # G: a warning for the daemon's log, as JSON
    FAILED = 8  # N: why the process cannot serve, as JSON; it ends after that
    PAUSE = 9  # D, to N: a key that is over its share, and how long its next frames must wait


@dataclass(frozen=True, slots=True)
class LinkCallbacks:
    """A link's callbacks, which run on the event loop.

    `on_record(kind, body)` handles a record. `on_closed()` is called when the other end is gone. `measure_pause_s`
    gets the processor time that records took, and returns how long the next ones must wait. `on_full(is_full)` tells
    that the other end does not keep up, or does so again.
    """

    on_record: Callable[[RecordKind, bytes], None]
    on_closed: Callable[[], None]
    measure_pause_s: Callable[[float], float] = lambda _took_s: 0.0
    on_full: Callable[[bool], None] = lambda _is_full: None


class RecordLink(asyncio.Protocol):
    """One end of a link. Lives on the event loop.

    Records are handled for LINK_TURN_S at a time. Between two turns the loop serves others, and what the other end
    sends waits in the kernel. `is_of_gate`: the other end is a gate, which a client may have taken over. The link
    closes at the first record that no sound gate sends, and reads no more while the gate does not read: it could ask
    without end for answers that pile up here.
    """

    def __init__(self, callbacks: LinkCallbacks, *, is_of_gate: bool = False) -> None:
        self._callbacks = callbacks
        self._is_of_gate = is_of_gate
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._at = 0  # where the first unhandled record begins
        self._written_bytes = 0
        self._is_full = False
        self._turn: asyncio.Handle | None = None  # the next turn, while records wait for it

    @classmethod
    async def open(cls, end: socket.socket, callbacks: LinkCallbacks, *, is_of_gate: bool = False) -> RecordLink:
        """Begins to read one end of a socket pair, which the link closes."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: cls(callbacks, is_of_gate=is_of_gate), sock=end)
        return link

    @property
    def taken_bytes(self) -> int:
        """What the kernel has taken for the other end so far."""
        return self._written_bytes - (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    @property
    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def send_record(self, kind: RecordKind, body: bytes = b"") -> None:
        """Sends a record, or queues it. A link whose other end is gone drops it."""
        if self._transport is not None:
            self._written_bytes += _HEAD.size + len(body)
            self._transport.write(_HEAD.pack(len(body), kind) + body)

    def send_frame(self, identity: bytes, frame: bytes) -> None:
        """Sends a client's frame, or one for a client."""
        self.send_record(RecordKind.FRAME, bytes((len(identity),)) + identity + frame)

    def close(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._turn is None:
            self._handle_records()

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self._transport = None
        if self._turn is not None:
            self._turn.cancel()
        self._callbacks.on_closed()

    def pause_writing(self) -> None:
        self._is_full = True
        if self._is_of_gate and self._transport is not None:
            self._transport.pause_reading()
        self._callbacks.on_full(True)

    def resume_writing(self) -> None:
        self._is_full = False
        if self._is_of_gate and self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._handle_records)
        self._callbacks.on_full(False)

    def _handle_records(self) -> None:
        """Handles records for one turn. The rest waits for the next one, and nothing more is read until then."""
        loop = asyncio.get_running_loop()
        self._turn = None
        began_s, processor_began_s = loop.time(), time.thread_time()
        try:
            while loop.time() - began_s < LINK_TURN_S and not self._is_held:
                if not self._has_record():
                    # What was handled is dropped once a turn and not at each record, which would move the rest every
                    # time.
                    del self._received[: self._at]
                    self._at = 0
                    break
                size, kind = _HEAD.unpack_from(self._received, self._at)
                begin = self._at + _HEAD.size
                self._at = begin + size
                body = bytes(memoryview(self._received)[begin : self._at])
                if self._is_of_gate:
                    check_gate_record(kind, body)
                self._callbacks.on_record(RecordKind(kind), body)
                if self.is_closed:
                    return
            pause_s = self._callbacks.measure_pause_s(time.thread_time() - processor_began_s)
            if self._transport is None:
                return
            is_next_due = pause_s > 0 or (self._has_record() and not self._is_held)
        except ProtocolError:  # no sound gate sends such a record
            self.close()  # on_closed() follows, which ends the gate
            return
        if is_next_due:
            self._turn = loop.call_later(pause_s, self._handle_records)
        if self._turn is not None or self._is_held:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    @property
    def _is_held(self) -> bool:
        return self._is_full and self._is_of_gate

    def _has_record(self) -> bool:
        """Returns whether a whole record waits. Raises ProtocolError for one that is longer than a gate's may be."""
        left = len(self._received) - self._at
        if left < _HEAD.size:
            return False
        size = int(_HEAD.unpack_from(self._received, self._at)[0])
        if self._is_of_gate and size > MAX_GATE_RECORD_BYTES:
            raise ProtocolError(f"a record of {size:,} bytes")
        return left >= _HEAD.size + size


def split_client_frame(body: bytes) -> tuple[bytes, bytes]:
    """Returns identity and frame of a FRAME record's body."""
    end = 1 + body[0]
    return body[1:end], body[end:]


def check_gate_record(kind: int, body: bytes) -> None:
    """Raises ProtocolError unless a sound gate may have sent this record to the daemon."""
    match kind:
        case RecordKind.FRAME if body and 0 < body[0] < len(body):
            return
        case RecordKind.UNREACHABLE if body:
            return
        case RecordKind.READY if not body:
            return
        case RecordKind.READY:
            note = _parse_json(body)
            if isinstance(note, dict) and isinstance(note.get("port"), int) and isinstance(note.get("has_bbr"), bool):
                return
        case RecordKind.WANTED if len(body) == USER.size:
            return
        case RecordKind.LOG | RecordKind.FAILED if isinstance(_parse_json(body), str):
            return
    raise ProtocolError(f"a record of kind {kind} with {len(body):,} bytes that no gate sends")


def _parse_json(body: bytes) -> object:
    try:
        return cast("object", json.loads(body))
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a record that is no JSON") from error
