"""The account: what is in the pack, and what of it the journal vouches for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from streamd.cli.pack import journal
from streamd.cli.pack import journal as accounts
from streamd.cli.pack.batches import Decoded
from streamd.cli.pack.checksums import row_sums
from streamd.cli.pack.journal import Account, Journal
from streamd.core.bad_samples import BadRow
from streamd.core.permutation import Ids, Words
from streamd.dataset.arrays.store import Pixels


class Memory:
    """A writer into nothing: how many rows it had, and how many of them were safe."""

    def __init__(self) -> None:
        self.rows = self.safe = 0

    def resume(self, rows: int, _place: Mapping[str, int]) -> None:
        self.rows = self.safe = rows

    def append(self, _ids: Ids, images: Pixels) -> Words:
        self.rows += len(images)
        return row_sums(images)

    def sync(self) -> dict[str, int]:
        self.safe = self.rows
        return {"rows": self.rows}


def account_of(begun: Journal, path: Path) -> Account:
    return Account(begun, path, Memory())  # type: ignore[arg-type]  # as much of a writer as is asked


def batch(index: int, *, bad: bool = False) -> Decoded:
    """Two samples, of which the second may be bad."""
    ids = np.arange(2 * index, 2 * index + 2)
    left_out = (BadRow(1, 2 * index + 1, "b.png", "broken", "masked"),) if bad else ()
    images = np.full((2, 1, 1, 3), index, np.uint8)
    return Decoded(index, ids[:1] if bad else ids, images[:1] if bad else images, left_out, 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.json"


def fresh() -> Journal:
    return Journal(identity="x", samples=100, batch_rows=2)


def test_the_journal_vouches_for_what_was_made_safe_alone(path: Path) -> None:
    account = account_of(fresh(), path)
    account.take(batch(0, bad=True))
    assert journal.read(path) is None
    account.save()
    account.take(batch(1))
    said = journal.read(path)
    assert said is not None
    assert (said.done, said.tally.rows, said.place) == (2, 1, {"rows": 1})
    assert [(each.sample_id, each.file, each.reason) for each in said.bad] == [(1, "b.png", "broken")]
    assert (account.done, account.tally.rows, account.next_batch) == (4, 3, 2)


def test_who_goes_on_has_the_same_account_as_who_was_never_cut_short(path: Path) -> None:
    first = account_of(fresh(), path)
    first.take(batch(0, bad=True))
    first.save()
    said = journal.read(path)
    assert said is not None
    second, whole = account_of(said, path), account_of(fresh(), path.with_name("other"))
    second.take(batch(1))
    for each in (batch(0, bad=True), batch(1)):
        whole.take(each)
    assert (second.done, second.tally, second.bad) == (whole.done, whole.tally, whole.bad)
    assert second.bad_ids.tolist() == [1]
    assert second.begun_at == 2


@pytest.mark.parametrize(("name", "value"), [("PACK_SYNC_BYTES", 7), ("PACK_SYNC_S", 0.0)])
def test_it_is_saved_each_so_many_bytes_or_seconds(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: float
) -> None:
    monkeypatch.setattr(accounts, name, value)
    account = account_of(fresh(), path)
    for index in range(2):
        account.take(batch(index))
    said = journal.read(path)
    assert said is not None
    assert said.done == 4


def test_a_run_that_is_stopped_saves_what_it_has(path: Path) -> None:
    account = account_of(fresh(), path)
    account.take(batch(0))
    with pytest.raises(KeyboardInterrupt), account.kept_when_cut_short():
        raise KeyboardInterrupt
    said = journal.read(path)
    assert said is not None
    assert said.done == 2


def test_a_disk_that_refuses_is_not_asked_for_more(path: Path) -> None:
    account = account_of(fresh(), path)
    account.take(batch(0))
    with pytest.raises(OSError, match="full"), account.kept_when_cut_short():
        raise OSError(28, "full")
    assert journal.read(path) is None
