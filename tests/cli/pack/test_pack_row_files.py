"""Plain rows in files keep their positions when a run is interrupted."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from streamd.cli.pack.write_npy import RowFiles

ROWS = np.arange(7 * 6, dtype=np.uint8).reshape(7, 2, 3)


def files(folder: Path, most: int) -> RowFiles:
    return RowFiles(lambda number: folder / str(number), 10, 6, most)


@pytest.mark.parametrize("most", [1, 3, 7, 100])
def test_rows_follow_the_header_and_fill_one_file_after_another(tmp_path: Path, most: int) -> None:
    written = files(tmp_path, most)
    written.append_rows(ROWS[:2])
    written.append_rows(ROWS[2:])
    written.close()
    parts = [(tmp_path / str(number)).read_bytes()[10:] for number in range(-(-7 // most))]
    assert b"".join(parts) == ROWS.tobytes()
    assert sum(written.list_row_counts()) == 7
    assert written.read_rows(0, 7).tobytes() == ROWS.tobytes()


@pytest.mark.parametrize("most", [2, 3, 100])
@pytest.mark.parametrize("safe", range(6))
def test_a_resumed_run_overwrites_rows_that_were_not_synced(tmp_path: Path, most: int, safe: int) -> None:
    first = files(tmp_path, most)
    first.append_rows(ROWS[:safe])
    first.append_rows(255 - ROWS[safe:])
    first.close()
    second = files(tmp_path, most)
    second.truncate_after_rows(safe)
    second.append_rows(ROWS[safe:5])
    second.close()
    assert second.read_rows(0, 5).tobytes() == ROWS[:5].tobytes()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == sum(
        10 + 6 * count for count in second.list_row_counts()
    )


def test_a_truncated_file_reads_back_different_rows(tmp_path: Path) -> None:
    written = files(tmp_path, 100)
    written.append_rows(ROWS)
    written.close()
    os.truncate(tmp_path / "0", 30)
    assert written.read_rows(0, 7).tobytes() != ROWS.tobytes()
