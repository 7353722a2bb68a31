"""The head of an LMDB file: how far it may go, which write was its last, and whether all of it is there. Pure.

    page header 16 | magic u32 | version u32 | address 8 | map bytes 8 | two tables, 48 each | last page 8 | commit 8

The first two pages have one each, written by turns; the one of the later commit counts. The page size stands in the
first table, the page from which all others are found in the second. LMDB follows numbers in such a file without looking
where they lead: whoever opens it asks here before.
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
OFFSETS_COLUMN: Final = "offsets"  # a column of the manifest: where in such a file each image begins, in bytes
COMMIT_COLUMN: Final = "commit"  # the same: the number of the last write before it was listed, alone
HEAD_BYTES: Final = max(_PAGE_BYTES) + _META.size  # what `parse_lmdb_head` needs of a file, or all of a shorter one


_PAGE: Final = struct.Struct("<10x HH 2x")
_NODE: Final = struct.Struct("<HHHH")
_NUMBER: Final = struct.Struct("<Q")
_BRANCH, _LEAF = 1, 2  # kinds of pages
_LARGE, _TABLE = 1, 2  # kinds of values: on pages of their own; a table, of which the root stands at the end
_TABLE_BYTES: Final = 48
_NO_PAGE: Final = (1 << 64) - 1  # the root of a table without entries


@dataclass(frozen=True, slots=True)
class LmdbHead:
    """`commit` is the number of the last write; `end`, in bytes, is where the last page ends, which may be a free one.

    `root` is the number of the page from which all others that are in use are found.
    """

    page_bytes: int
    end_offset: int
    commit: int
    root: int


def parse_lmdb_head(data: bytes | memoryview) -> LmdbHead | None:
    """The head of the file that begins so; None when it is no LMDB file of a 64-bit, little-endian machine."""
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
    """The number of the last write to the file that begins so, which is a `LmdbHead.commit`; for one that has a
    head.
    """
    commits = (int(_COMMIT.unpack_from(data, page + _COMMIT_AT)[0]) for page in (0, page_bytes))
    return max(commits)


def is_file_whole(data: bytes | memoryview, head: LmdbHead) -> bool:
    """Whether every page that is in use lies in `data`, a whole file. Free pages at its end need not be written."""
    if len(data) >= head.end_offset:
        return True
    pending, seen = [head.root], {_NO_PAGE}
    while pending:
        page = pending.pop()
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
    """The pages below one, and the last of those that hold its large values."""
    kind, lower = _PAGE.unpack_from(page)
    below, last = [], 0
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
