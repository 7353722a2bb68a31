"""The head of an LMDB file: where its last page ends, which commit was its last, and whether it is whole. Pure.

    page header 16 | magic u32 | version u32 | address 8 | map bytes 8 | two tables, 48 each | last page 8 | commit 8

Each of the first two pages has such a head. Commits write them alternately, and the head of the later commit counts.
The page size is in the first table; the root page, from which all others are found, is in the second. LMDB follows page
numbers in a file without checking them, so a file is checked here before it is opened.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

_META: Final = struct.Struct("<16x II 16x I 84x QQQ")
_COMMIT: Final = struct.Struct("<Q")
_COMMIT_AT: Final = _META.size - _COMMIT.size
_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_PAGE_BYTES: Final = frozenset(1 << power for power in range(9, 17))
OFFSETS_COLUMN: Final = "offsets"  # a column of the manifest: the offset of each image in such a file, in bytes
COMMIT_COLUMN: Final = "commit"  # a column of the manifest, of one number: the last commit before the listing
HEAD_BYTES: Final = max(_PAGE_BYTES) + _META.size  # `parse_lmdb_head` needs these first bytes, or a whole shorter file


_PAGE: Final = struct.Struct("<10x HH 2x")
_NODE: Final = struct.Struct("<HHHH")
_NUMBER: Final = struct.Struct("<Q")
_BRANCH, _LEAF = 1, 2  # kinds of pages
_LARGE, _TABLE = 1, 2  # kinds of values: on pages of their own; a table, which ends with its root page
_TABLE_BYTES: Final = 48
_NO_PAGE: Final = (1 << 64) - 1  # the root of a table without entries


@dataclass(frozen=True, slots=True)
class LmdbHead:
    """The later of the two heads of an LMDB file.

    `end_offset` is where the last page ends, in bytes; that page may be free. `commit` is the number of the last
    commit. `root` is the number of the page from which all other pages in use are found.
    """

    page_bytes: int
    end_offset: int
    commit: int
    root: int


def parse_lmdb_head(data: bytes | memoryview) -> LmdbHead | None:
    """Returns the head of a file that begins with `data`.

    Returns None if it is no LMDB file of a 64-bit, little-endian machine.
    """
    first = _parse_meta_page(data, 0)
    second = None if first is None else _parse_meta_page(data, first.page_bytes)
    if first is None or second is None:
        return None
    return max(first, second, key=lambda head: head.commit)


def _parse_meta_page(data: bytes | memoryview, offset: int) -> LmdbHead | None:
    if len(data) < offset + _META.size:
        return None
    magic, version, page_bytes, root, last_page, commit = _META.unpack_from(data, offset)
    if (magic, version) != (_MAGIC, _VERSION) or page_bytes not in _PAGE_BYTES:
        return None
    return LmdbHead(page_bytes, (last_page + 1) * page_bytes, commit, root)


def parse_last_commit(data: bytes | memoryview, page_bytes: int) -> int:
    """Returns the `LmdbHead.commit` of a file that begins with `data`, and that is known to have a head."""
    commits = (int(_COMMIT.unpack_from(data, page + _COMMIT_AT)[0]) for page in (0, page_bytes))
    return max(commits)


def is_file_whole(data: bytes | memoryview, head: LmdbHead) -> bool:
    """Returns whether every page in use lies in `data`, the whole file. Free pages at its end need not exist."""
    if len(data) >= head.end_offset:
        return True
    pending, seen = [head.root], {_NO_PAGE}
    while pending:
        page = pending.pop()
        # A damaged file may have cycles. Each page is visited once, so the walk ends.
        if page in seen:
            continue
        seen.add(page)
        start = page * head.page_bytes
        if start + head.page_bytes > len(data):
            return False
        below, last = _list_child_pages(data[start : start + head.page_bytes])
        if (last + 1) * head.page_bytes > len(data):
            return False
        pending += below
    return True


def _list_child_pages(page: bytes | memoryview) -> tuple[list[int], int]:
    """Returns the pages below one, and the last of the pages that hold its large values."""
    kind, lower = _PAGE.unpack_from(page)
    below, last = [], 0
    # The bounds keep a damaged page from raising here. A wrong page number does no harm, since the caller checks each.
    for (at,) in struct.iter_unpack("<H", page[_PAGE.size : min(lower, len(page)) & ~1]):
        low, high, flags, key_bytes = _NODE.unpack_from(page, min(at, len(page) - _NODE.size))
        value = page[at + _NODE.size + key_bytes :]
        if kind & _BRANCH:
            below.append(low | high << 16 | flags << 32)
        elif kind & _LEAF and flags & _LARGE and len(value) >= _NUMBER.size:
            pages = -(-(_PAGE.size + (low | high << 16)) // len(page))
            last = max(last, int(_NUMBER.unpack_from(value)[0]) + pages - 1)
        elif kind & _LEAF and flags & _TABLE and len(value) >= _TABLE_BYTES:
            below.append(int(_NUMBER.unpack_from(value, _TABLE_BYTES - _NUMBER.size)[0]))
    return below, last
