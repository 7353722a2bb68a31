"""Several records as one message: to wake a process costs as much as to write a dozen of them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from streamd.errors import ProtocolError

_MARK: Final = b"\x08"  # no record begins with it
_LENGTH: Final = struct.Struct("<I")


def bundle(records: Sequence[bytes]) -> bytes:
    """One message of all records, in their order; a single record is its own."""
    if len(records) == 1:
        return records[0]
    return _MARK + b"".join([_LENGTH.pack(len(record)) + record for record in records])


def parted(data: bytes) -> list[bytes]:
    """The records of a message. Raises ProtocolError for what `bundle` did not make."""
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
