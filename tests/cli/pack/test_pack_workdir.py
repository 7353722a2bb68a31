"""The work folder, its space on the disk, and its journal."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from streamd.cli.pack import workdir
from streamd.cli.pack.batches import DecodedBatch
from streamd.cli.pack.packed_rows import PackChecksum, PackedRows
from streamd.cli.pack.workdir import (
    JournaledPack,
    LeftOutSample,
    PackJournal,
    PackWorkdir,
    check_free_space,
    measure_allocated_bytes,
    translate_disk_full_error,
)
from streamd.core.bad_samples import BadRow
from streamd.core.permutation import Words
from streamd.errors import ConfigError, PackError


def test_the_pack_moves_to_its_destination_and_the_work_folder_is_removed(tmp_path: Path) -> None:
    with PackWorkdir(tmp_path / "out") as work:
        work.product_path.mkdir()
        (work.product_path / "part").write_text("x")
        work.journal_path.write_text("{}")
        assert not (tmp_path / "out").exists()
        work.move_product_to_destination()
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["out", "out/part"]


@pytest.mark.parametrize(
    ("destination", "said"),
    [("out", "already exists"), ("/", "name a folder or file"), ("missing/out", "no such folder")],
)
def test_a_destination_that_cannot_be_used_is_refused(tmp_path: Path, destination: str, said: str) -> None:
    (tmp_path / "out").symlink_to("nowhere")
    with pytest.raises(ConfigError, match=said):
        PackWorkdir(tmp_path / destination)


def test_a_destination_created_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    with PackWorkdir(tmp_path / "out") as work:
        work.product_path.write_text("ours")
        (tmp_path / "out").write_text("theirs")
        with pytest.raises(ConfigError, match="already exists"):
            work.move_product_to_destination()
    assert (tmp_path / "out").read_text() == "theirs"


def test_two_packs_to_one_destination_exclude_each_other(tmp_path: Path) -> None:
    with (
        PackWorkdir(tmp_path / "out"),
        pytest.raises(PackError, match="another streamd pack"),
        PackWorkdir(tmp_path / "out"),
    ):
        pass


def test_a_run_without_a_journal_leaves_no_files(tmp_path: Path) -> None:
    with PackWorkdir(tmp_path / "out") as work:
        work.product_path.mkdir()
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_a_journal_leaves_its_files_for_the_next_run(tmp_path: Path) -> None:
    with PackWorkdir(tmp_path / "out") as work:
        work.product_path.mkdir()
        work.journal_path.write_text("{}")
    with PackWorkdir(tmp_path / "out") as work:
        assert work.product_path.is_dir()
        work.clear_work_folder()
        assert list(work.folder.iterdir()) == []


def test_a_pack_that_cannot_fit_is_refused_with_the_arithmetic(tmp_path: Path) -> None:
    with PackWorkdir(tmp_path / "out") as work:
        with pytest.raises(PackError, match=r"out takes about 8192 TiB, of which 0 bytes are written, and .* are free"):
            check_free_space(work, 1 << 53)
        check_free_space(work, 1000)


def test_bytes_already_written_need_no_more_space(tmp_path: Path) -> None:
    with PackWorkdir(tmp_path / "out") as work:
        work.product_path.mkdir()
        (work.product_path / "part").write_bytes(bytes(100_000))
        assert 100_000 <= measure_allocated_bytes(work.product_path) < 200_000
        free = os.statvfs(tmp_path)
        check_free_space(work, free.f_bavail * free.f_frsize + 50_000)


def test_a_full_disk_error_names_the_bytes_still_to_be_written(tmp_path: Path) -> None:
    with (
        PackWorkdir(tmp_path / "out") as work,
        pytest.raises(PackError) as told,
        translate_disk_full_error(work, lambda: 1 << 20),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert "No space left on device: about 1 MiB are still to be written" in str(told.value)
    assert "then run the same command again to continue" in str(told.value)


def test_other_disk_errors_pass_unchanged(tmp_path: Path) -> None:
    with (
        PackWorkdir(tmp_path / "out") as work,
        pytest.raises(OSError, match="Input/output"),
        translate_disk_full_error(work, lambda: 0),
    ):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


JOURNAL = PackJournal(
    identity="abc",
    samples=10,
    batch_rows=2,
    done=4,
    tally=PackChecksum(3, (1 << 64) - 1),
    bad=(LeftOutSample(1, "b.png", "an empty file"),),
    place={"shard": 1, "bytes": 512},
)


def test_a_written_journal_reads_back_equal(tmp_path: Path) -> None:
    assert workdir.read_journal(tmp_path / "journal.json") is None
    workdir.write_journal(tmp_path / "journal.json", JOURNAL)
    assert workdir.read_journal(tmp_path / "journal.json") == JOURNAL
    assert [path.name for path in tmp_path.iterdir()] == ["journal.json"]


def test_a_journal_that_is_not_text_is_refused_with_the_option_restart(tmp_path: Path) -> None:
    workdir.write_journal(tmp_path / "journal.json", JOURNAL)
    (tmp_path / "journal.json").write_bytes((tmp_path / "journal.json").read_bytes().replace(b"abc", b"\xff"))
    with pytest.raises(PackError, match="--restart"):
        workdir.read_journal(tmp_path / "journal.json")


@pytest.mark.parametrize(
    "text", ["", '{"identity": 1}', '{"version": 2, "identity": "", "samples": 1, "batch_rows": 1}']
)
def test_an_unusable_journal_is_refused_with_the_option_restart(tmp_path: Path, text: str) -> None:
    (tmp_path / "journal.json").write_text(text)
    with pytest.raises(PackError, match="--restart"):
        workdir.read_journal(tmp_path / "journal.json")


class MemoryWriter:
    """A writer into nothing: how many rows it had, and how many of them were safe."""

    def __init__(self) -> None:
        self.rows = self.safe = 0

    def resume_after_rows(self, rows: int, _place: Mapping[str, int]) -> None:
        self.rows = self.safe = rows

    def append_rows(self, rows: PackedRows) -> Words:
        self.rows += rows.ids.size
        return rows.compute_checksums()

    def sync_to_disk(self) -> dict[str, int]:
        self.safe = self.rows
        return {"rows": self.rows}


def open_journaled_pack(begun: PackJournal, path: Path) -> JournaledPack:
    return JournaledPack(begun, path, MemoryWriter())  # type: ignore[arg-type]  # as much of a writer as is asked


def batch(index: int, *, bad: bool = False) -> DecodedBatch:
    """Two samples, of which the second may be bad."""
    ids = np.arange(2 * index, 2 * index + 2)
    left_out = (BadRow(1, 2 * index + 1, "b.png", "broken", "masked"),) if bad else ()
    images = np.full((2, 1, 1, 3), index, np.uint8)
    rows = PackedRows(ids[:1] if bad else ids, {"image": images[:1] if bad else images})
    return DecodedBatch(index, rows, left_out, 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.json"


def fresh() -> PackJournal:
    return PackJournal(identity="x", samples=100, batch_rows=2)


def test_the_journal_records_only_synced_batches(path: Path) -> None:
    account = open_journaled_pack(fresh(), path)
    account.write_batch(batch(0, bad=True))
    assert workdir.read_journal(path) is None
    account.save_progress()
    account.write_batch(batch(1))
    said = workdir.read_journal(path)
    assert said is not None
    assert (said.done, said.tally.rows, said.place) == (2, 1, {"rows": 1})
    assert [(each.sample_id, each.file, each.reason) for each in said.bad] == [(1, "b.png", "broken")]
    assert (account.done_samples, account.checksum.rows, account.next_batch_index) == (4, 3, 2)


def test_a_resumed_pack_has_the_counts_of_an_uninterrupted_one(path: Path) -> None:
    first = open_journaled_pack(fresh(), path)
    first.write_batch(batch(0, bad=True))
    first.save_progress()
    said = workdir.read_journal(path)
    assert said is not None
    second, whole = open_journaled_pack(said, path), open_journaled_pack(fresh(), path.with_name("other"))
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
def test_progress_is_saved_after_so_many_bytes_or_seconds(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: float
) -> None:
    monkeypatch.setattr(workdir, name, value)
    account = open_journaled_pack(fresh(), path)
    for index in range(2):
        account.write_batch(batch(index))
    said = workdir.read_journal(path)
    assert said is not None
    assert said.done == 4


def test_nothing_is_saved_after_a_disk_error(path: Path) -> None:
    account = open_journaled_pack(fresh(), path)
    account.write_batch(batch(0))
    with pytest.raises(OSError, match="full"), account.save_when_interrupted():
        raise OSError(28, "full")
    assert workdir.read_journal(path) is None
