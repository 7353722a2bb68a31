"""The head of an LMDB file gives its end and its last commit, as LMDB itself does."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import lmdb
import pytest
from support.lmdb_files import put

from streamd.dataset.lmdb.pyxis_layout import HEAD_BYTES, is_file_whole, parse_last_commit, parse_lmdb_head


@pytest.fixture
def path(tmp_path: Path) -> Path:
    for number in range(3):
        put(tmp_path / "d", {b"%d" % number: bytes(5000)})
    return tmp_path / "d/data.mdb"


def test_a_head_says_what_lmdb_says_of_its_file(path: Path) -> None:
    data = path.read_bytes()
    head = parse_lmdb_head(data)
    with lmdb.open(str(path.parent), readonly=True) as environment:
        info, page_bytes = environment.info(), environment.stat()["psize"]
    assert head is not None
    assert (head.commit, head.page_bytes) == (info["last_txnid"], page_bytes)
    assert head.end_offset == (info["last_pgno"] + 1) * page_bytes == len(data)
    assert parse_last_commit(data, page_bytes) == head.commit
    assert parse_lmdb_head(data[:HEAD_BYTES]) == head


def test_every_write_increases_the_commit_number(path: Path) -> None:
    seen = []
    for number in range(4):
        put(path.parent, {b"more": b"%d" % number})
        data = path.read_bytes()
        head = parse_lmdb_head(data)
        assert head is not None
        assert parse_last_commit(memoryview(data), head.page_bytes) == head.commit
        seen.append(head.commit)
    assert seen == list(range(seen[0], seen[0] + 4))


@pytest.mark.parametrize("data", [b"", b"x" * 10_000, bytes(10_000)], ids=["nothing", "something else", "zeros"])
def test_another_file_has_no_head(data: bytes) -> None:
    assert parse_lmdb_head(data) is None


def test_a_file_without_its_second_page_or_of_another_version_has_no_head(path: Path) -> None:
    data = path.read_bytes()
    assert parse_lmdb_head(data[:4096]) is None
    assert parse_lmdb_head(data[:20] + b"\x02" + data[21:]) is None


def test_a_file_whose_last_pages_are_free_is_whole_though_they_were_never_written(path: Path) -> None:
    with lmdb.open(str(path.parent), map_size=1 << 24, max_dbs=4) as environment:
        data = environment.open_db(b"data_db")
        with environment.begin(data, write=True) as transaction:
            transaction.put(b"large", bytes(500_000))
            transaction.delete(b"large")
    written = path.read_bytes()
    head = parse_lmdb_head(written)
    assert head is not None
    assert head.end_offset > len(written) + 400_000
    assert is_file_whole(written, head)


@pytest.mark.parametrize("value_bytes", [20, 5000], ids=["on the pages of the tree", "on pages of their own"])
def test_a_file_is_whole_down_to_its_last_page_in_use_and_not_a_byte_less(tmp_path: Path, value_bytes: int) -> None:
    values = [b"%04d" % number * (value_bytes // 4) for number in range(900)]
    put(tmp_path / "d", {b"%04d" % number: value for number, value in enumerate(values)})
    data = memoryview((tmp_path / "d/data.mdb").read_bytes())
    head = parse_lmdb_head(data)
    assert head is not None
    pages, page_bytes = len(data) // head.page_bytes, head.page_bytes
    needed = next(
        page for page in range(pages + 1) if is_file_whole(data[: page * page_bytes], replace(head, end_offset=1 << 40))
    )
    furthest = max(bytes(data).rfind(value) + len(value) for value in values)
    assert furthest <= needed * page_bytes
    assert needed > pages * 0.9
    assert not is_file_whole(data[: needed * page_bytes - 1], head)
    with lmdb.open(str(tmp_path / "d"), max_dbs=4) as environment:
        os.truncate(tmp_path / "d/data.mdb", needed * page_bytes)
        opened = environment.open_db(b"data_db")
        with environment.begin(opened) as transaction:
            assert [value for _, value in transaction.cursor()] == values


def test_a_tree_with_a_circle_is_walked_to_an_end(path: Path) -> None:
    changed = bytearray(path.read_bytes())
    data = memoryview(changed)
    head = parse_lmdb_head(data)
    assert head is not None
    page = data[head.root * head.page_bytes :]
    page[10:14] = b"\x01\x00\x12\x00"  # a branch with one node, ...
    page[16:18] = b"\x20\x00"
    page[32:40] = head.root.to_bytes(6, "little") + b"\x00\x00"  # ... which is itself
    assert is_file_whole(data, replace(head, end_offset=len(data) + 1))
