"""Changes values within a format, and makes its checksums right again, so that damage reaches beyond them. Pure."""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Callable
from random import Random
from typing import Any, Final

import msgspec

from fuzz.mutations import INTERESTING, Edit

_TAR_BLOCK: Final = 512
_TAR_CHECKSUM: Final = slice(148, 156)
_PNG_MAGIC: Final = b"\x89PNG\r\n\x1a\n"
_PNG_HEAD: Final = struct.Struct(">I4s")
_MANIFEST_PREFIX: Final = struct.Struct("<8sII32s")
_MAX_DEPTH: Final = 40  # of a value that is nested on purpose: what most parsers refuse is deeper
_CELL: Final = re.compile(rb"[^,\t\n]*")

# Text that other layers may treat in a way of their own: paths, formats, encodings, spreadsheets, numbers.
TEXTS: Final = (
    *("", " ", "\0", "\n", "\x1b[31m", "a" * 300, "../../etc/passwd", "/dev/zero", "~", "%s%n", "{}", "\ud7ff\uffff"),
    *("train", "nan", "-inf", "1e999", "0x10", "true", "null", "=1+1", "\u202e", "\U0001f600", "1_000", "C:\\x"),
)


def pick_value(rng: Random) -> Any:
    """Returns a value that JSON and MessagePack can hold, and that a program may not expect."""
    kind = rng.randrange(10)
    if kind < 4:  # noqa: PLR2004 - most fields are numbers
        number = rng.choice(INTERESTING)
        return -min(number, 1 << 63) if rng.getrandbits(2) == 0 else min(number, (1 << 64) - 1)
    if kind < 6:  # noqa: PLR2004 - as above
        return rng.choice(TEXTS)
    nested: Any = []
    for _ in range(rng.randrange(_MAX_DEPTH)):
        nested = [nested]
    many = [rng.choice(INTERESTING[:30])] * rng.choice((2, 100, 600, 5000))
    return rng.choice((None, True, False, 0.5, -1e308, [], {}, {"": []}, nested, many))


def edit_value(rng: Random, value: Any) -> Any:
    """Returns a nested value with one change, at any depth."""
    if isinstance(value, list) and value and rng.random() < 0.85:  # noqa: PLR2004 - seldom the list as a whole
        return _edit_list(rng, value)
    if isinstance(value, dict) and value and rng.random() < 0.9:  # noqa: PLR2004 - as above
        return _edit_dict(rng, value)
    if isinstance(value, int) and not isinstance(value, bool) and rng.getrandbits(1):
        return max(min(value + rng.randint(-3, 3), (1 << 64) - 1), -(1 << 63))
    return pick_value(rng)


def _edit_list(rng: Random, value: list[Any]) -> list[Any]:
    at = rng.randrange(len(value))
    match rng.randrange(8):
        case 0:
            return value[:at] + value[at + 1 :]
        case 1:
            return [*value[:at], value[at], *value[at:]]
        case _:
            return [*value[:at], edit_value(rng, value[at]), *value[at + 1 :]]


def _edit_dict(rng: Random, value: dict[Any, Any]) -> dict[Any, Any]:
    key = rng.choice(list(value))
    match rng.randrange(10):
        case 0:
            return {each: inner for each, inner in value.items() if each != key}
        case 1:
            return {**value, rng.choice(TEXTS): pick_value(rng)}
        case 2:
            return {rng.choice(TEXTS) if each == key else each: inner for each, inner in value.items()}
        case _:
            return {**value, key: edit_value(rng, value[key])}


def build_msgpack_edit(start: int) -> Edit:
    """Returns an edit of the MessagePack value that begins at byte `start`."""

    def edit_message(rng: Random, data: bytes) -> bytes:
        try:
            value = msgspec.msgpack.decode(data[start:])
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return data
        return data[:start] + msgspec.msgpack.encode(edit_value(rng, value))

    return edit_message


def edit_json(rng: Random, data: bytes) -> bytes:
    """Changes a value of a JSON text."""
    try:
        return msgspec.json.encode(edit_value(rng, msgspec.json.decode(data)))
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return data


def edit_cell(rng: Random, data: bytes) -> bytes:
    """Replaces a cell of a text table or list."""
    found = _CELL.search(data, rng.randrange(len(data) + 1))
    if found is None:
        return data
    cell = rng.choice((*TEXTS, '"', '""x"', "\r", str(rng.choice(INTERESTING)), "\ufeff"))
    return data[: found.start()] + cell.encode(errors="surrogatepass") + data[found.end() :]


def repair_tar(data: bytes) -> bytes:
    """Makes the checksum right in each block that looks like a header."""
    fixed = bytearray(data)
    for start in range(0, len(data) - _TAR_BLOCK + 1, _TAR_BLOCK):
        block = bytearray(data[start : start + _TAR_BLOCK])
        if block[257:262] == b"ustar":
            block[_TAR_CHECKSUM] = b" " * 8
            block[_TAR_CHECKSUM] = b"%06o\0 " % sum(block)
            fixed[start : start + _TAR_BLOCK] = block
    return bytes(fixed)


def repair_png(data: bytes) -> bytes:
    """Makes the checksum of each chunk right."""
    if not data.startswith(_PNG_MAGIC):
        return data
    fixed, at = bytearray(data), len(_PNG_MAGIC)
    while at + _PNG_HEAD.size <= len(data):
        length, _ = _PNG_HEAD.unpack_from(data, at)
        end = at + _PNG_HEAD.size + length
        if end + 4 > len(data):
            break
        fixed[end : end + 4] = zlib.crc32(data[at + 4 : end]).to_bytes(4)
        at = end + 4
    return bytes(fixed)


def repair_manifest(data: bytes) -> bytes:
    """Makes the length and the checksum of a manifest's header right."""
    header = _find_manifest_header(data)
    return data if header is None else _replace_manifest_header(data, header, header)


def edit_manifest(rng: Random, data: bytes) -> bytes:
    """Changes a value in the header of a manifest."""
    header = _find_manifest_header(data)
    return data if header is None else _replace_manifest_header(data, header, edit_json(rng, header))


def _find_manifest_header(data: bytes) -> bytes | None:
    if len(data) < _MANIFEST_PREFIX.size:
        return None
    length = _MANIFEST_PREFIX.unpack_from(data)[2]
    return data[_MANIFEST_PREFIX.size : _MANIFEST_PREFIX.size + min(length, len(data))]


def _replace_manifest_header(data: bytes, before: bytes, header: bytes) -> bytes:
    magic, version, *_ = _MANIFEST_PREFIX.unpack_from(data)
    checksum = hashlib.blake2b(header, digest_size=32).digest()
    columns = data[_align_column(_MANIFEST_PREFIX.size + len(before)) :]
    head = _MANIFEST_PREFIX.pack(magic, version, len(header), checksum) + header
    return head + bytes(_align_column(len(head)) - len(head)) + columns


def _align_column(offset: int) -> int:
    return -(-offset // 64) * 64


def edit_record_of(split: Callable[[bytes], list[bytes]], join: Callable[[list[bytes]], bytes], edit: Edit) -> Edit:
    """Returns an edit of one record of an input of several; it may also repeat, remove or move a record."""

    def edit_records(rng: Random, data: bytes) -> bytes:
        records = split(data)
        if not records:
            return data
        at = rng.randrange(len(records))
        match rng.randrange(8):
            case 0:
                records.insert(rng.randrange(len(records) + 1), records[at])
            case 1:
                del records[at]
            case 2:
                records.append(records.pop(at))
            case _:
                records[at] = edit(rng, records[at])
        return join(records)

    return edit_records
