"""Which samples are the rows of a pack, and the error of rows that read back differently."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streamd.cli.pack import batches
from streamd.cli.pack.batches import PackJob, build_read_mismatch_error


@pytest.mark.parametrize("together", [1, 2, 64])
@pytest.mark.parametrize("bad", [[], [3], [0, 1, 2, 3, 4]])
def test_rows_are_the_samples_in_the_order_of_the_pack_less_the_bad_ones(
    shuffled_pack_job: PackJob, monkeypatch: pytest.MonkeyPatch, together: int, bad: list[int]
) -> None:
    monkeypatch.setattr(batches, "_BLOCK_BATCHES", together)
    rows, ids = zip(*shuffled_pack_job.iterate_kept_rows(np.array(bad, dtype=np.int64)), strict=True)
    kept = np.concatenate(ids)
    assert [number for each in rows for number in range(each.start, each.stop)] == list(range(kept.size))
    planned = [int(each) for index in range(3) for each in shuffled_pack_job.stream.compute_planned_ids(0, index)]
    assert kept.tolist() == [each for each in planned if each not in bad]


def test_the_read_mismatch_error_names_the_file_and_the_option_restart() -> None:
    assert str(build_read_mismatch_error(Path("/packs/\x1b"))).startswith(
        "/packs/\\x1b does not read back from the disk as"
    )
    assert "--restart" in str(build_read_mismatch_error(Path("x")))
