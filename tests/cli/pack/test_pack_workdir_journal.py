"""The journal: whole or not there, and of nobody else's pack."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.cli.pack import workdir
from streamd.cli.pack.checksums import PackChecksum
from streamd.cli.pack.workdir import LeftOutSample, PackJournal
from streamd.errors import PackError

SAID = PackJournal(
    identity="abc",
    samples=10,
    batch_rows=2,
    done=4,
    tally=PackChecksum(3, (1 << 64) - 1),
    bad=(LeftOutSample(1, "b.png", "an empty file"),),
    place={"shard": 1, "bytes": 512},
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert workdir.read_journal(tmp_path / "journal.json") is None
    workdir.write_journal(tmp_path / "journal.json", SAID)
    assert workdir.read_journal(tmp_path / "journal.json") == SAID
    assert [path.name for path in tmp_path.iterdir()] == ["journal.json"]


@pytest.mark.parametrize(
    "text", ["", '{"identity": 1}', '{"version": 2, "identity": "", "samples": 1, "batch_rows": 1}']
)
def test_one_that_cannot_be_used_names_the_way_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "journal.json").write_text(text)
    with pytest.raises(PackError, match="--restart"):
        workdir.read_journal(tmp_path / "journal.json")
