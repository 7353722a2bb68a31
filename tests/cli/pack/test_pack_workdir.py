"""The work folder, its space on the disk, and its journal."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from streamd.cli.pack import run
from streamd.cli.pack.batches import DecodedBatch, PackChecksum, PackedRows, WholeShards
from streamd.cli.pack.run import (
    JournaledPack,
    LeftOutSample,
    PackJournal,
    PackWorkdir,
    check_free_space,
    measure_allocated_bytes,
    translate_disk_full_error,
)
from streamd.core.sampler import BadRow, Words
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
        translate_disk_full_error(work, lambda: 1 << 20, "it begins again"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert "No space left on device: about 1 MiB are still to be written" in str(told.value)
    assert "then run the same command again: it begins again" in str(told.value)


def test_other_disk_errors_pass_unchanged(tmp_path: Path) -> None:
    with (
        PackWorkdir(tmp_path / "out") as work,
        pytest.raises(OSError, match="Input/output"),
        translate_disk_full_error(work, lambda: 0, ""),
    ):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


JOURNAL = PackJournal(
    identity="abc",
    samples=10,
    batch_rows=2,
    done=4,
    tally=PackChecksum(3, (1 << 64) - 1),
    bad=(LeftOutSample(1, "b.png", "an empty file"),),
    whole=WholeShards(3, 1),
)


def test_a_written_journal_reads_back_equal(tmp_path: Path) -> None:
    assert run.read_journal(tmp_path / "journal.json") is None
    run.write_journal(tmp_path / "journal.json", JOURNAL)
    assert run.read_journal(tmp_path / "journal.json") == JOURNAL
    assert [path.name for path in tmp_path.iterdir()] == ["journal.json"]


def test_a_journal_that_is_not_text_is_refused_with_the_option_restart(tmp_path: Path) -> None:
    run.write_journal(tmp_path / "journal.json", JOURNAL)
    (tmp_path / "journal.json").write_bytes((tmp_path / "journal.json").read_bytes().replace(b"abc", b"\xff"))
    with pytest.raises(PackError, match="--restart"):
        run.read_journal(tmp_path / "journal.json")


@pytest.mark.parametrize(
    "text", ["", '{"identity": 1}', '{"version": 1, "identity": "", "samples": 1, "batch_rows": 1}']
)
def test_an_unusable_journal_is_refused_with_the_option_restart(tmp_path: Path, text: str) -> None:
    (tmp_path / "journal.json").write_text(text)
    with pytest.raises(PackError, match="--restart"):
        run.read_journal(tmp_path / "journal.json")


class MemoryWriter:
    """A writer into nothing, a shard of which has so many rows, and how many of its rows were safe."""

    def __init__(self, shard_rows: int) -> None:
        self.shard_rows = shard_rows
        self.rows = self.safe = self.syncs = 0

    @property
    def whole_shards(self) -> WholeShards:
        files = self.rows // self.shard_rows
        return WholeShards(files * self.shard_rows, files)

    def resume_after_shards(self, whole: WholeShards) -> None:
        self.rows = self.safe = whole.rows

    def append_rows(self, rows: PackedRows) -> Words:
        self.rows += rows.ids.size
        return rows.compute_checksums()

    def sync_to_disk(self) -> None:
        self.safe, self.syncs = self.rows, self.syncs + 1


def open_journaled_pack(begun: PackJournal, path: Path, shard_rows: int = 3) -> tuple[JournaledPack, MemoryWriter]:
    writer = MemoryWriter(shard_rows)
    return JournaledPack(begun, path, writer), writer  # type: ignore[arg-type]  # as much of a writer as is asked


def batch(index: int, bad: Sequence[int] = ()) -> DecodedBatch:
    """Four samples, of which some may be bad."""
    ids = np.arange(4 * index, 4 * index + 4)
    left_out = tuple(BadRow(row, 4 * index + row, f"{4 * index + row}.png", "broken", "masked") for row in bad)
    rows = PackedRows(ids, {"image": ids.astype(np.uint8).reshape(4, 1, 1, 1)})
    return DecodedBatch(index, rows.select_rows(~np.isin(np.arange(4), bad)), left_out, 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.json"


def fresh() -> PackJournal:
    return PackJournal(identity="x", samples=16, batch_rows=4)


BATCHES: tuple[list[int], ...] = ([], [0, 3], [1, 2], [])  # the bad rows of each


@pytest.mark.parametrize("shard_rows", [1, 2, 3, 4, 5, 7, 12])
@pytest.mark.parametrize("written", [1, 2, 3, 4])
def test_a_killed_pack_goes_on_after_its_last_whole_shard(path: Path, shard_rows: int, written: int) -> None:
    whole, _ = open_journaled_pack(fresh(), path.with_name("other"), shard_rows)
    for index, bad in enumerate(BATCHES):
        whole.write_batch(batch(index, bad))

    killed, writer = open_journaled_pack(fresh(), path, shard_rows)
    for index, bad in enumerate(BATCHES[:written]):
        killed.write_batch(batch(index, bad))
    said = run.read_journal(path)
    assert (said is None) == (writer.rows < shard_rows)
    if said is None:
        return
    assert said.whole == (writer.rows // shard_rows * shard_rows, writer.rows // shard_rows)
    assert said.done == said.tally.rows + len(said.bad)

    resumed, writer = open_journaled_pack(said, path, shard_rows)
    assert writer.rows == said.tally.rows == said.whole.rows
    assert resumed.next_batch_index == said.done // 4
    for index in range(resumed.next_batch_index, 4):
        resumed.write_batch(batch(index, BATCHES[index]))
    assert resumed.done_at_start == said.done
    assert (resumed.done_samples, resumed.checksum, resumed.left_out) == (16, whole.checksum, whole.left_out)
    assert resumed.left_out_ids.tolist() == [4, 7, 9, 10]
    assert writer.rows == 12


def test_a_sample_that_went_bad_after_its_shard_was_whole_stays_in_the_pack(path: Path) -> None:
    first, _ = open_journaled_pack(fresh(), path)
    first.write_batch(batch(0))
    said = run.read_journal(path)
    assert said is not None
    assert said.done == 3
    second, writer = open_journaled_pack(said, path)
    second.write_batch(batch(0, [1]))
    assert (second.done_samples, second.left_out, second.checksum) == (4, [], first.checksum)
    assert writer.rows == 4


def test_a_journal_is_written_only_after_a_sync(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account, writer = open_journaled_pack(fresh(), path)

    def write_journal(_: Path, journal: PackJournal) -> None:
        assert writer.safe >= journal.whole.rows == 3

    monkeypatch.setattr(run, "write_journal", write_journal)
    account.write_batch(batch(0))
    assert writer.syncs == 1


def test_rows_are_synced_after_so_many_bytes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PACK_SYNC_BYTES", 8)
    account, writer = open_journaled_pack(fresh(), path, 100)
    for index in range(3):
        account.write_batch(batch(index))
    assert writer.safe == 8
    assert run.read_journal(path) is None
    account.sync_to_disk()
    assert writer.safe == 12
