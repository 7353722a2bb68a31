"""Frames: a fixed header, then one message as MessagePack. Nothing is parsed before length, magic and version agree.

Several records travel as one bundle, since waking a process costs as much as writing a dozen of them. A daemon sends
the frames that it has for a client at one time as one bundle.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from streamd.errors import OtherVersionError, ProtocolError
from streamd.ipc.messages import ClientMessage, DaemonMessage
from streamd.limits import MAX_CLIENT_FRAME_BYTES

MAGIC: Final = b"sd"
VERSION: Final = 10
_HEADER: Final = struct.Struct("<2sBxQQQ")  # magic, version, boot, session, number

_encode = msgspec.msgpack.Encoder().encode
_decode_client: Final = msgspec.msgpack.Decoder(ClientMessage)
_decode_daemon: Final = msgspec.msgpack.Decoder(DaemonMessage)
_MARK: Final = b"\x08"  # the first byte of a bundle; no record begins with it
_LENGTH: Final = struct.Struct("<I")


class FrameHeader(msgspec.Struct, frozen=True, gc=False):
    """The session that a frame belongs to: the daemon's `boot`, its `session`, and a `number` within the session.

    Batches are numbered 0, 1, 2, ... as they are sent; every other frame carries 0.
    """

    boot: int
    session: int
    number: int


EMPTY_HEADER: Final = FrameHeader(0, 0, 0)


def encode_message(message: ClientMessage | DaemonMessage) -> bytes:
    """Returns a message's bytes. A daemon that sends the same batch to several sessions encodes it once."""
    return _encode(message)


def build_frame(header: FrameHeader, encoded: bytes) -> bytes:
    """Returns one frame with an encoded message."""
    return _HEADER.pack(MAGIC, VERSION, header.boot, header.session, header.number) + encoded


def encode_frame(header: FrameHeader, message: ClientMessage | DaemonMessage) -> bytes:
    """Returns one frame with a message."""
    return build_frame(header, _encode(message))


def _split_frame(data: bytes) -> tuple[FrameHeader, memoryview]:
    # The magic and the version are checked before the message is decoded, so that a peer of another version is reported
    # as such and not as a damaged frame.
    if len(data) < _HEADER.size:
        raise ProtocolError(f"a frame of {len(data)} bytes is shorter than its header")
    magic, version, boot, session, number = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ProtocolError(f"a frame begins with {magic!r}, not {MAGIC!r}: the other side is not streamd")
    if version != VERSION:
        raise OtherVersionError(version, VERSION)
    return FrameHeader(boot, session, number), memoryview(data)[_HEADER.size :]


def decode_client_frame(data: bytes) -> tuple[FrameHeader, ClientMessage]:
    """Returns the header and message of a client's frame. Raises ProtocolError for any other bytes."""
    if len(data) > MAX_CLIENT_FRAME_BYTES:
        raise ProtocolError(f"a client's frame of {len(data)} bytes is over {MAX_CLIENT_FRAME_BYTES}")
    header, rest = _split_frame(data)
    try:
        return header, _decode_client.decode(rest)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise ProtocolError(f"a client's message makes no sense: {error}") from error


def decode_daemon_frame(data: bytes) -> tuple[FrameHeader, DaemonMessage]:
    """Returns the header and message of a daemon's frame. Raises ProtocolError for any other bytes."""
    header, rest = _split_frame(data)
    try:
        return header, _decode_daemon.decode(rest)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise ProtocolError(f"the daemon's message makes no sense: {error}") from error


def bundle_records(records: Sequence[bytes]) -> bytes:
    """Returns one message with all records in order. A single record is returned as it is."""
    if len(records) == 1:
        return records[0]
    return _MARK + b"".join([_LENGTH.pack(len(record)) + record for record in records])


def split_records(data: bytes) -> list[bytes]:
    """Returns the records of a message. Raises ProtocolError for bytes that `bundle_records` did not make."""
    if not data.startswith(_MARK):
        return [data]
    records, at = [], len(_MARK)
    while at + _LENGTH.size <= len(data):
        start = at + _LENGTH.size
        at = start + int(_LENGTH.unpack_from(data, at)[0])
        records.append(data[start:at])
    if at != len(data) or not records:
        raise ProtocolError(f"a bundle of {len(records)} records ends at {at} of {len(data)} bytes")
    return records
