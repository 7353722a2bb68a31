"""The page of packs, from made-up figures."""

from __future__ import annotations

from pathlib import Path

import pack_page as page
from report import Machine

FAST = tuple(page.Round(1000.0, disk, 450.0, 2.0) for disk in (500.0, 2000.0, 550.0))
SLOW = (page.Round(1000.0, 4000.0, 700.0, 1.0),)
FOUND = page.Packs(Machine("abc", "2026-01-01", 4, "3.11"), 20_000, 2, {"npy": FAST, "lmdb": SLOW})


def test_a_pack_is_held_to_the_slower_of_decoder_and_disk_and_its_median_round() -> None:
    assert [each.ratio for each in FAST] == [0.9, 0.45, 450 / 550]
    assert FOUND.ratio("npy") == 450 / 550
    assert FOUND.ratio("lmdb") == 0.7


def test_the_page_has_a_table_and_a_verdict_for_each_format(tmp_path: Path) -> None:
    written = page.render(FOUND)
    assert "`--format npy`, 0.8 of the slower is wanted: **held**." in written
    assert "`--format lmdb`, 0.8 of the slower is wanted: **missed**." in written
    assert "| of the slower of both | **0.82** | 0.90 | 0.45 | 0.82 |" in written
    page.PAGE.save(FOUND, tmp_path / "pack.json")
    assert page.PAGE.load(tmp_path / "pack.json") == FOUND
