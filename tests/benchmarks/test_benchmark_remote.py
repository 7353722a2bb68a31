"""A trainer behind the project's own link, which is far and lossy and is cut for a while: a benchmark in small."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import remote

pytestmark = [pytest.mark.bench, pytest.mark.timeout(120)]

RATE_BITS: Final = 200e6
DELAY_MS: Final = 10.0
LOSS: Final = 1.0  # percent
CUT_S: Final = 2.0
LEAST_MB_PER_S: Final = 1.0  # of 25: a processor that others use, too, must not fail this


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sd") as name:  # sockets have short names
        yield Path(name)


def test_every_receipt_is_ok_over_a_link_that_loses_packets_and_is_cut(folder: Path) -> None:
    with (
        remote.Link(folder, bits_per_s=RATE_BITS, delay_ms=DELAY_MS, loss=LOSS) as link,
        remote.run_daemon(link, folder, remote.SIZE),
    ):
        read = remote.measure_cut(link, folder, CUT_S, before_s=5.0, after_s=10.0, loss=LOSS)
    assert read["all_ok"]
    assert read["longest_pause_s"] > CUT_S / 2
    assert read["mb_per_s"] > LEAST_MB_PER_S
    assert read["receipts"] > 0
