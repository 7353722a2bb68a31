"""Finds the files in a tar by its headers, and groups them into samples, as WebDataset does: by their keys.

Plain, pax and GNU headers are read, at 4 to 8 us a member, and nothing is unpacked. The reader of the standard library,
which makes a record of twenty fields for each member, takes ten times as long.

The key is a file's name up to the first dot after its folder, and the rest is the suffix, in any case of letters: a
shard's `a/7.jpg`, `a/7.cls` and `a/7.meta.json` are the sample `a/7.jpg`, with two files beside it. The image is the
file with the suffix of an image, or if there is none, the one whose suffix ends so, such as `7.left.jpg`. Bookkeeping
is left out, as in a folder.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from streamd.core.text import escape_unprintable, format_count
from streamd.dataset.paths.confined import (
    IMAGE_SUFFIXES,
    PROGRESS_FILES,
    find_near_names,
    format_first_names,
    format_near_name,
    format_path,
)
from streamd.dataset.paths.patterns import LeftOutNames, has_bookkeeping
from streamd.errors import ConfigError

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
        place = 0
        long_name: bytes | None = None  # what extended headers say of the next member
        long_size: int | None = None
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
            # Several extended headers may precede one member, which takes what they say.
            if kind in {_PAX, _LONG_NAME}:
                if size > _MOST_EXTRA_BYTES:
                    raise _damaged_error(start)
                self._check_not_truncated(start + size)
                data = os.pread(self._descriptor, size, start)
                if kind == _LONG_NAME:
                    long_name = data.rstrip(b"\0")
                else:
                    records = dict(_parse_pax_records(data, start))
                    long_name = records.get(b"path", long_name)
                    if b"size" in records:
                        long_size = _parse_whole_number(records[b"size"], 10, start)
                    if any(key.startswith(b"GNU.sparse.") for key in records):
                        raise _sparse_error(records.get(b"GNU.sparse.name", b"a member"))
            else:
                # GNU tars have times where the prefix of a name is.
                prefix = block[345:500].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""
                base = block[:100].partition(b"\0")[0]
                name = long_name or (prefix + b"/" + base if prefix else base)
                size = size if long_size is None else long_size
                size = 0 if kind in _KINDS_WITHOUT_BYTES else size
                long_name = long_size = None
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


# --- samples

_IMAGE_SUFFIXES: Final = frozenset(suffix[1:] for suffix in IMAGE_SUFFIXES)
_SHOWN_SUFFIXES: Final = 8  # in a message
_LEADING: Final = re.compile(rb"\A(?:\.{0,2}/)+")  # as tar itself drops it

MembersBySuffix = dict[bytes, dict[bytes, TarMember]]  # by suffix and key


@dataclass(slots=True)
class Shard:
    """An open shard.

    `images` are by key, in byte order of their names. `other_files` are by suffix and key, whether beside an image or
    not. `parts` are the images of samples that have several, by suffix and key; empty where each sample has one.
    """

    name: bytes
    tar: TarReader
    images: dict[bytes, TarMember] = field(default_factory=dict)
    other_files: MembersBySuffix = field(default_factory=dict)
    parts: MembersBySuffix = field(default_factory=dict)
    left_out: LeftOutNames = field(default_factory=LeftOutNames)

    @property
    def suffix_summary(self) -> str:
        """The number of files of each suffix, for a message."""
        found = Counter({suffix: len(files) for suffix, files in self.other_files.items()})
        found.update(image.name.rpartition(b".")[2].lower() for image in self.images.values())
        return format_suffixes(found)


def read_shard(
    name: bytes,
    descriptor: int,
    size: int,
    key: str,
    progress: Callable[[int], None],
    suffixes: Sequence[bytes] = (),
) -> Shard:
    """Reads the headers of an open shard. With `suffixes`, each sample has an image of every suffix.

    `key` is the configuration key of its path. `progress` is called with the number of images seen. Raises ConfigError,
    naming the shard, if it is no whole tar, or if two of its files are the same part of a sample; OSError.
    """
    shard = Shard(name, TarReader(descriptor, size), parts={suffix: {} for suffix in suffixes})
    others: dict[bytes, list[TarMember]] = {}  # images by key, of suffixes that only end as an image's
    end = 0
    try:
        for member in shard.tar.read_members():
            _add_member(shard, others, member, key)
            end = member.offset + -(-member.size // _BLOCK_BYTES) * _BLOCK_BYTES
            if len(shard.images) % PROGRESS_FILES == 0:
                progress(len(shard.images))
    except TruncatedTarError as error:
        keep = (
            f", or keep its {format_count(len(shard.images), 'whole image')} with truncate -s {end}"
            if shard.images
            else ""
        )
        raise ConfigError(f"{key}: {format_path(name)}: {error}; copy it again{keep}") from error
    except BrokenTarError as error:
        raise ConfigError(f"{key}: {format_path(name)}: {error}") from error
    # With suffixes, no sample may lack an image, and that of the first suffix is its own.
    for suffix, files in shard.parts.items():
        for other, having in shard.parts.items():
            if lone := sorted(having.keys() - files.keys()):
                raise ConfigError(
                    f"{key}: {format_path(name)} has no {_format_suffix(suffix)} of "
                    f"{format_count(len(lone), 'sample')} with {_format_suffix(other)}: {format_first_names(lone)}; "
                    "pack every sample with all of its images, or correct the suffixes in images"
                    f"{suggest_near_key(lone, files)}"
                )
    if suffixes:
        shard.images = dict(shard.parts[suffixes[0]])
    # A suffix such as `left.jpg` makes a file the image only if its sample has no other one, which is known at the end.
    for sample, members in others.items():
        if sample not in shard.images:
            if len(members) > 1:
                raise _duplicate_error(shard, members, key)
            shard.images[sample] = members[0]
    links = [link for link in shard.tar.links if link.lower().endswith(IMAGE_SUFFIXES) and not has_bookkeeping(link)]
    if links:
        raise ConfigError(
            f"{key}: {format_path(shard.name)} holds links in place of images: {format_first_names(links)}; "
            "pack it again with tar --dereference --hard-dereference"
        )
    shard.images = dict(sorted(shard.images.items(), key=lambda each: each[1].name))
    return shard


def _add_member(shard: Shard, others: dict[bytes, list[TarMember]], member: TarMember, key: str) -> None:
    """Adds a file to the images, or to `others`, or to the other files, unless it is bookkeeping."""
    name = _LEADING.sub(b"", member.name)
    member = TarMember(name, member.offset, member.size)
    if has_bookkeeping(name):
        shard.left_out.add_file(name)
        return
    folder, slash, base = name.rpartition(b"/")
    stem, _, suffix = base.partition(b".")
    sample, suffix = folder + slash + stem, suffix.lower()
    if suffix in shard.parts:
        earlier = shard.parts[suffix].setdefault(sample, member)
    elif suffix in _IMAGE_SUFFIXES and not shard.parts:
        earlier = shard.images.setdefault(sample, member)
    elif suffix.rpartition(b".")[2] in _IMAGE_SUFFIXES and not shard.parts:
        others.setdefault(sample, []).append(member)
        return
    else:
        earlier = shard.other_files.setdefault(suffix, {}).setdefault(sample, member)
    # `setdefault` has returned an earlier file: the sample has an image already, or a file with the same suffix.
    if earlier is not member:
        raise _duplicate_error(shard, [earlier, member], key)


def _duplicate_error(shard: Shard, members: list[TarMember], key: str) -> ConfigError:
    first, second = (member.name for member in members[:2])
    if first == second:
        return ConfigError(
            f"{key}: {format_path(shard.name)} holds {format_path(first)} twice; pack the shard again with only one "
            "of them"
        )
    suffix = escape_unprintable(first.rpartition(b"/")[2].partition(b".")[2].decode(errors="replace"))
    noun = "image" if first.lower().endswith(IMAGE_SUFFIXES) else f".{suffix} file"
    return ConfigError(
        f"{key}: {format_path(shard.name)} holds {format_path(first)} and {format_path(second)}, which are two "
        f"{noun}s of one sample, because their names are the same up to the first dot; a sample has only one {noun}: "
        f"pack the other {noun} elsewhere, or under another name"
    )


def format_suffixes(suffixes: Counter[bytes]) -> str:
    """Formats the number of files of each suffix, for a message."""
    most = suffixes.most_common(_SHOWN_SUFFIXES)
    return ", ".join(f"{count} {_format_suffix(suffix)}" for suffix, count in most) or "nothing"


def _format_suffix(suffix: bytes) -> str:
    return escape_unprintable(f".{suffix.decode(errors='backslashreplace')}") if suffix else "without one"


def list_stray_files(shard: Shard) -> list[tuple[bytes, bytes]]:
    """Returns the suffix and the sample of each file that belongs to no image."""
    return [
        (suffix, sample)
        for suffix, files in shard.other_files.items()
        for sample in files
        if sample not in shard.images
    ]


def suggest_near_key(lone: Iterable[bytes], others: Iterable[bytes]) -> str:
    """Returns a remark on the first sample whose other files are there in another spelling; empty if there is none."""
    near = next(iter(find_near_names(lone, others).items()), None)
    return "" if near is None else f"; {format_near_name(*near)}"
