"""The account: what is in the pack, and what of it the journal vouches for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from streamd.cli.pack import workdir
from streamd.cli.pack.batches import DecodedBatch
from streamd.cli.pack.checksums import compute_row_checksums
from streamd.cli.pack.workdir import JournaledPack, PackJournal
from streamd.core.bad_samples import BadRow
from streamd.core.permutation import Ids, Words
from streamd.dataset.arrays.store import Pixels


class Memory:
    """A writer into nothing: how many rows it had, and how many of them were safe."""

    def __init__(self) -> None:
        self.rows = self.safe = 0

    def resume_after_rows(self, rows: int, _place: Mapping[str, int]) -> None:
        self.rows = self.safe = rows

    def append_rows(self, _ids: Ids, images: Pixels) -> Words:
        self.rows += len(images)
        return compute_row_checksums(images)

    def sync_to_disk(self) -> dict[str, int]:
        self.safe = self.rows
        return {"rows": self.rows}


def account_of(begun: PackJournal, path: Path) -> JournaledPack:
    return JournaledPack(begun, path, Memory())  # type: ignore[arg-type]  # as much of a writer as is asked


def batch(index: int, *, bad: bool = False) -> DecodedBatch:
    """Two samples, of which the second may be bad."""
    ids = np.arange(2 * index, 2 * index + 2)
    left_out = (BadRow(1, 2 * index + 1, "b.png", "broken", "masked"),) if bad else ()
    images = np.full((2, 1, 1, 3), index, np.uint8)
    return DecodedBatch(index, ids[:1] if bad else ids, images[:1] if bad else images, left_out, 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.json"


def fresh() -> PackJournal:
    return PackJournal(identity="x", samples=100, batch_rows=2)


def test_the_journal_vouches_for_what_was_made_safe_alone(path: Path) -> None:
    account = account_of(fresh(), path)
    account.write_batch(batch(0, bad=True))
    assert workdir.read_journal(path) is None
    account.save_progress()
    account.write_batch(batch(1))
    said = workdir.read_journal(path)
    assert said is not None
    assert (said.done, said.tally.rows, said.place) == (2, 1, {"rows": 1})
    assert [(each.sample_id, each.file, each.reason) for each in said.bad] == [(1, "b.png", "broken")]
    assert (account.done_samples, account.checksum.rows, account.next_batch_index) == (4, 3, 2)


def test_who_goes_on_has_the_same_account_as_who_was_never_cut_short(path: Path) -> None:
    first = account_of(fresh(), path)
    first.write_batch(batch(0, bad=True))
    first.save_progress()
    said = workdir.read_journal(path)
    assert said is not None
    second, whole = account_of(said, path), account_of(fresh(), path.with_name("other"))
    second.write_batch(batch(1))
    for each in (batch(0, bad=True), batch(1)):
        whole.write_batch(each)
    assert (second.done_samples, second.checksum, second.left_out) == (
        whole.done_samples,
        whole.checksum,
        whole.left_out,
    )
    assert second.left_out_ids.tolist() == [1]
    assert second.done_at_start == 2


@pytest.mark.parametrize(("name", "value"), [("PACK_SYNC_BYTES", 7), ("PACK_SYNC_S", 0.0)])
def test_it_is_saved_each_so_many_bytes_or_seconds(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: float
) -> None:
    monkeypatch.setattr(workdir, name, value)
    account = account_of(fresh(), path)
    for index in range(2):
        account.write_batch(batch(index))
    said = workdir.read_journal(path)
    assert said is not None
    assert said.done == 4


def test_a_run_that_is_stopped_saves_what_it_has(path: Path) -> None:
    account = account_of(fresh(), path)
    account.write_batch(batch(0))
    with pytest.raises(KeyboardInterrupt), account.save_when_interrupted():
        raise KeyboardInterrupt
    said = workdir.read_journal(path)
    assert said is not None
    assert said.done == 2


def test_a_disk_that_refuses_is_not_asked_for_more(path: Path) -> None:
    account = account_of(fresh(), path)
    account.write_batch(batch(0))
    with pytest.raises(OSError, match="full"), account.save_when_interrupted():
        raise OSError(28, "full")
    assert workdir.read_journal(path) is None
