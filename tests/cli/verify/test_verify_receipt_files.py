"""Files of receipts: what is read, and what is refused by file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.rank_receipts import make_receipt

from streamd.cli import verify
from streamd.cli.verify import read_receipts
from streamd.errors import ConfigError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "receipts-0.jsonl"


def test_each_line_is_a_receipt_with_its_place(path: Path) -> None:
    receipts = [make_receipt(0, 1, epoch=epoch) for epoch in range(2)]
    path.write_text("\n".join(each.to_json() for each in receipts) + "\n\n")
    assert [(each.place, each.receipt) for each in read_receipts(path)] == [
        (f"{path}:1", receipts[0]), (f"{path}:2", receipts[1]),
    ]  # fmt: skip


def test_the_output_of_probe_has_all_its_receipts(path: Path) -> None:
    receipts = [make_receipt(rank, 2) for rank in range(2)]
    path.write_text(json.dumps({"stream": "train", "receipts": [json.loads(each.to_json()) for each in receipts]}))
    assert [each.receipt for each in read_receipts(path)] == receipts


@pytest.mark.parametrize("content", ["", "no json\n", "[]\n", '{"receipts": 3}\n', "{}\n", "\xff"])
def test_a_file_that_holds_no_receipts_is_refused(path: Path, content: str) -> None:
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"receipts-0\.jsonl"):
        read_receipts(path)


def test_a_torn_line_is_refused_by_its_number(path: Path) -> None:
    whole = make_receipt(0, 1).to_json()
    path.write_text(f"{whole}\n{whole[:40]}")
    with pytest.raises(ConfigError, match=r"receipts-0.jsonl:2 is neither a receipt nor"):
        read_receipts(path)


def test_a_file_that_is_not_there_or_too_large_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_receipts(path)
    path.write_text(make_receipt(0, 1).to_json())
    monkeypatch.setattr(verify, "MAX_RECEIPT_FILE_BYTES", 100)
    with pytest.raises(ConfigError, match="more than 100 bytes"):
        read_receipts(path)
