"""The file of a rank's receipts has each of them once, in whole lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.rank_receipts import make_receipt

from streamd.cli.verify import read_receipts
from streamd.frameworks.receipt_file import ReceiptFile, receipt_file_path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return receipt_file_path(tmp_path, 3)


def test_the_file_has_the_rank_in_its_name(path: Path) -> None:
    assert path.name == "receipts-3.jsonl"


def test_each_receipt_is_appended_once_and_read_back(path: Path) -> None:
    receipts = [make_receipt(0, 1, epoch=epoch) for epoch in range(3)]
    file = ReceiptFile(path)
    for count in (1, 1, 3):
        file.append_new_receipts(receipts[:count])
    assert [each.receipt for each in read_receipts(path)] == receipts


def test_receipts_from_before_the_fit_are_left_out(path: Path) -> None:
    receipts = [make_receipt(0, 1, epoch=epoch) for epoch in range(3)]
    ReceiptFile(path, known=2).append_new_receipts(receipts)
    assert [each.receipt for each in read_receipts(path)] == receipts[2:]


def test_a_torn_line_of_a_killed_process_is_replaced(path: Path) -> None:
    receipts = [make_receipt(0, 1, epoch=epoch) for epoch in range(2)]
    ReceiptFile(path).append_new_receipts(receipts[:1])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:50])
    ReceiptFile(path).append_new_receipts(receipts[1:])
    assert [each.receipt for each in read_receipts(path)] == receipts


def test_without_receipts_there_is_no_file(path: Path) -> None:
    ReceiptFile(path).append_new_receipts([])
    assert not path.exists()
