"""The stream that most tests of formats pack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pack_streams import stream_of, subject_of, write_table

from streamd.cli.pack.writer import PackJob


@pytest.fixture
def job(tmp_path: Path) -> Iterator[PackJob]:
    """Five pictures with labels in stored order, two a batch, to be packed at `pack`."""
    with stream_of(write_table(tmp_path / "data"), tmp_path / "list") as stream:
        yield subject_of(stream, tmp_path)


@pytest.fixture
def shuffled_job(tmp_path: Path) -> Iterator[PackJob]:
    """The same pictures in one global order."""
    with stream_of(write_table(tmp_path / "data"), tmp_path / "list", shuffled=True) as stream:
        yield subject_of(stream, tmp_path)
