"""Finds the files in a tar by its headers: the name of each and the offset of its bytes. Nothing is unpacked.

Plain, pax and GNU headers are read, at 4 to 8 us a member. The reader of the standard library, which makes a record of
twenty fields for each member, takes ten times as long.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from streamd.dataset.paths.confined import format_path

_BLOCK_BYTES: Final = 512
_EMPTY: Final = bytes(_BLOCK_BYTES)
_MOST_PADDING_BYTES: Final = 1 << 20  # after the end; tar itself pads to a multiple of 10 KiB
_MOST_EXTRA_BYTES: Final = 1 << 20  # of an extended header; no system has longer names
_PACKED: Final = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}
_MOST_DIGITS: Final = 20  # of a number: more than any file has bytes

_FILES: Final = frozenset((b"0", b"\0", b"7"))
_LINKS: Final = frozenset((b"1", b"2"))

# Links, devices and folders have no bytes, whatever size their headers give.
_KINDS_WITHOUT_BYTES: Final = frozenset((b"1", b"2", b"3", b"4", b"5", b"6"))
_SPARSE: Final = b"S"
_PAX: Final = b"x"
_LONG_NAME: Final = b"L"


class BrokenTarError(Exception):
    """A file that is not a whole tar, or whose members cannot be read at their offsets."""


class TruncatedTarError(BrokenTarError):
    """A tar that ends too early."""


class TarMember(NamedTuple):
    """A file in a tar: `size` bytes from byte `offset` of the tar."""

    name: bytes
    offset: int
    size: int

    @property
    def next_header_offset(self) -> int:
        """The offset of the next header."""
        return self.offset + -(-self.size // _BLOCK_BYTES) * _BLOCK_BYTES


@dataclass(slots=True)
class _ExtendedHeader:
    """What an extended header says of the member after it."""

    name: bytes | None = None
    size: int | None = None


class TarReader:
    """A tar of `size` bytes.

    `read_members` collects the `links` that it meets, which have no bytes, and sets `has_end_mark` if the tar has one.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = size
        self.links: list[bytes] = []
        self.has_end_mark = False

    def read_members(self) -> Iterator[TarMember]:
        """Yields the files, in their order; folders and devices are skipped. Raises BrokenTarError, OSError."""
        place, header = 0, _ExtendedHeader()
        while place < self._size:
            block = os.pread(self._descriptor, _BLOCK_BYTES, place)
            if block == _EMPTY:
                # Two empty blocks mark the end, and only a little padding may follow.
                rest = os.pread(self._descriptor, _MOST_PADDING_BYTES, place)
                if rest.count(0) < len(rest):
                    raise BrokenTarError(
                        f"there is more after its end at byte {place:,}, as happens when tars are joined with cat: "
                        "unpack it with tar --ignore-zeros and pack it again"
                    )
                if self._size - place > _MOST_PADDING_BYTES:
                    raise BrokenTarError(
                        f"from byte {place:,} on, it holds only zeros, as happens when a download stops after its "
                        "space was reserved: copy it again"
                    )
                self.has_end_mark = True
                return
            # Where the first block is too short, the file is no tar, and its checksum fails. Where a later one is, the
            # tar is cut off.
            if place:
                self._check_not_truncated(place + _BLOCK_BYTES)
            size, kind, start = _parse_member_size(block, place), block[156:157], place + _BLOCK_BYTES
            # Extended headers add to `header` until the member that they describe; that one resets it. Several may
            # precede one member.
            if kind in {_PAX, _LONG_NAME}:
                # An extended header says something of the next member.
                if size > _MOST_EXTRA_BYTES:
                    raise _damaged_error(start)
                self._check_not_truncated(start + size)
                data = os.pread(self._descriptor, size, start)
                if kind == _LONG_NAME:
                    header.name = data.rstrip(b"\0")
                else:
                    records = dict(_parse_pax_records(data, start))
                    header.name = records.get(b"path", header.name)
                    if b"size" in records:
                        header.size = _parse_whole_number(records[b"size"], 10, start)
                    if any(key.startswith(b"GNU.sparse.") for key in records):
                        raise _sparse_error(records.get(b"GNU.sparse.name", b"a member"))
            else:
                name = header.name or _parse_member_name(block)
                size = size if header.size is None else header.size
                size, header = 0 if kind in _KINDS_WITHOUT_BYTES else size, _ExtendedHeader()
                self._check_not_truncated(start + size, name)
                if kind in _FILES and not name.endswith(b"/"):
                    yield TarMember(name, start, size)
                elif kind in _LINKS:
                    self.links.append(name)
                elif kind == _SPARSE:
                    raise _sparse_error(name)
            place = start + -(-size // _BLOCK_BYTES) * _BLOCK_BYTES

    def read_member(self, member: TarMember) -> bytes:
        """Returns the bytes of a member, as far as they exist. Raises OSError."""
        return os.pread(self._descriptor, member.size, member.offset)

    def _check_not_truncated(self, end: int, name: bytes = b"") -> None:
        if end > self._size:
            what = format_path(name) if name else "a header"
            raise TruncatedTarError(
                f"it is truncated at byte {self._size:,}, in {what}, which should end at byte {end:,}"
            )


def _parse_member_size(block: bytes, place: int) -> int:
    """Returns the size in a header. Raises BrokenTarError unless its checksum is right."""
    try:
        checksum = int(block[148:156].rstrip(b" \0"), 8)
    except ValueError:
        raise _damaged_error(place, block) from None
    # The checksum is the sum of all bytes, with its own field as spaces. The low half of Adler-32 is such a sum plus 1,
    # modulo a prime.
    if (checksum + sum(block[148:156]) - 8 * 32 + 1) % 65521 != zlib.adler32(block) & 0xFFFF:
        raise _damaged_error(place, block)
    size = block[124:136]
    if size[0] == 0x80:  # in binary, since 8 GiB and more do not fit into the octal digits  # noqa: PLR2004 - of the format
        return int.from_bytes(size[1:], "big")
    return _parse_whole_number(size.strip(b" \0") or b"0", 8, place)


def _parse_whole_number(digits: bytes, base: int, place: int) -> int:
    # Longer ones are refused before they are parsed, which takes time by the square of their length.
    if not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise _damaged_error(place)
    try:
        return int(digits, base)
    except ValueError:  # an 8 or a 9 among octal digits
        raise _damaged_error(place) from None


def _parse_member_name(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    prefix = block[345:500].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""  # GNU tars have times there
    return prefix + b"/" + name if prefix else name


def _parse_pax_records(data: bytes, place: int) -> Iterator[tuple[bytes, bytes]]:
    """Yields the records of a pax header, each `length key=value` and a line's end; the length counts all of that."""
    while data:
        digits, _, _ = data[:20].partition(b" ")
        length = _parse_whole_number(digits, 10, place)
        key, equals, value = data[len(digits) + 1 : max(length - 1, 0)].partition(b"=")
        if not equals or length > len(data):
            raise _damaged_error(place)
        yield key, value
        data = data[length:]


def _damaged_error(place: int, block: bytes = b"") -> BrokenTarError:
    """Returns the error for a place where a header should be."""
    if place:
        return BrokenTarError(f"it is damaged: there is no header at byte {place:,}; copy it again")
    tool = next((tool for mark, tool in _PACKED.items() if block.startswith(mark)), "")
    if tool:
        return BrokenTarError(f"it is compressed, so its files cannot be read one by one: unpack it with {tool}")
    return BrokenTarError("it is not a tar; name only tars, such as shards/*.tar")


def _sparse_error(name: bytes) -> BrokenTarError:
    return BrokenTarError(f"{format_path(name)} in it is stored as a sparse file: pack the tar again without --sparse")
