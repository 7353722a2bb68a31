"""One run of `streamd pack`: it publishes a whole pack or none, and the next run resumes an interrupted one."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from support.pack_streams import ROWS, decoding_here, labels_of, pixels_of, stream_of, write_table

from streamd.cli.pack import batches, run
from streamd.cli.pack.batches import DecodedBatch, PackJob
from streamd.cli.pack.run import PACK_FORMATS, PackFormat, PackOptions, PackResult, PackWorkdir, open_pack_writer
from streamd.cli.pack.write_npy import NpyWriter
from streamd.cli.terminal import ProgressDisplay
from streamd.config.load import load_config
from streamd.errors import ConfigError, MissingExtraError, PackError


class Killed(BaseException):
    """As if the process had ended there: nothing is put away."""


@pytest.fixture(autouse=True)
def decodes_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches of two."""
    monkeypatch.setattr(run, "open_batch_decoder", decoding_here)
    monkeypatch.setattr(run, "compute_pack_batch_rows", lambda *_: 2)


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    return write_table(tmp_path / "data")


@pytest.fixture
def options(tmp_path: Path) -> PackOptions:
    return PackOptions("train", tmp_path / "out", "npy")


def pack(config: dict[str, Any], options: PackOptions) -> PackResult:
    return run.pack_stream(load_config(config), options, ProgressDisplay())


def read_packed(packed: PackResult, folder: Path) -> dict[str, Any]:
    """Pixels and labels of a pack, by streamd itself."""
    with stream_of({"streams": {"train": packed.serving}}, folder) as stream:
        return {"pixels": pixels_of(stream), **labels_of(stream)}


def bytes_of(path: Path) -> dict[str, bytes]:
    """Every file of a pack."""
    files = [path] if path.is_file() else sorted(path.iterdir())
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.parametrize("name", PACK_FORMATS)
def test_a_pack_serves_the_same_pixels_and_labels(
    tmp_path: Path, config: dict[str, Any], options: PackOptions, name: PackFormat
) -> None:
    config["streams"]["train"]["weights"] = "x"
    packed = pack(config, replace(options, format=name))
    with stream_of(config, tmp_path / "list") as stream:
        images, labels = pixels_of(stream), labels_of(stream)
    again = read_packed(packed, tmp_path / "again")
    assert np.array_equal(again.pop("pixels"), images)
    assert again == labels
    assert labels["weights"] == [1, 3, 5, 7, 9]
    assert (packed.samples, packed.bad) == (5, ())
    assert packed.bytes > 0


@pytest.mark.parametrize("name", PACK_FORMATS)
def test_a_pack_is_served_under_the_names_of_the_files_that_were_packed(
    tmp_path: Path, config: dict[str, Any], options: PackOptions, name: PackFormat
) -> None:
    config["streams"]["train"]["labels"]["name"] = {"type": "string", "from": "text"}  # takes the pack's own key
    (tmp_path / "data" / "b.png").write_bytes(b"no picture")
    serving = pack(config, replace(options, format=name)).serving
    with stream_of({"streams": {"train": serving}}, tmp_path / "again") as stream:
        names = [stream.format_file_name(sample_id) for sample_id in range(4)]
        assert names == ["a.png", "c.png", "d.png", "e.png"]
        assert stream.manifest.gather_label("name", np.arange(4)).tolist() == [b"", b"two words", b"x", b"y"]
        reason = stream.format_unreadable_reason(1, "Input/output error")
        assert reason.startswith("c.png (packed as ")
        physical = {stream.manifest.file_name(sample_id) for sample_id in range(4)}
    assert len(physical) == 4
    assert b"c.png" not in physical


def test_a_shuffled_pack_has_every_sample_once_in_another_order(
    tmp_path: Path, config: dict[str, Any], options: PackOptions
) -> None:
    again = read_packed(pack(config, replace(options, shuffle=True)), tmp_path / "again")
    angles = [float(row[2]) for row in ROWS]
    assert sorted(again["angle"]) == sorted(angles) != again["angle"] != angles
    with stream_of(config, tmp_path / "list") as stream:
        images = pixels_of(stream)
    assert np.array_equal(again["pixels"], images[[angles.index(angle) for angle in again["angle"]]])


ONE_ROW_A_SHARD = ("npy", "tar")  # in these tests; the other formats are one file
STAGES: dict[str, tuple[Any, str, list[int]]] = {  # where a run ends, and the batches to be written after it
    "listing": (batches, "write_sample_manifests", [0, 1, 2]),
    "writing": (run.JournaledPack, "write_batch", [1, 2]),
    "writing the journal": (run, "write_journal", [1, 2]),
    "reading back": (run._PackRun, "_verify_pack", []),
    "putting in place": (PackWorkdir, "move_product_to_destination", []),
}
IN_FORMAT = ("writing", "reading back")  # where formats differ


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is a shard."""
    monkeypatch.setattr(run, "PACK_SHARD_BYTES", 1)
    monkeypatch.setattr(run, "PACK_TAR_BYTES", 1)


def fail_at(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, time: int, error: BaseException) -> None:
    """Has the call of that number end the run."""
    real: Callable[..., Any] = getattr(place, name)
    calls = iter(range(1000))

    def fail(*arguments: Any, **more: Any) -> Any:
        if next(calls) >= time:
            raise error
        return real(*arguments, **more)

    monkeypatch.setattr(place, name, fail)


def killed_at(stage: str, config: dict[str, Any], options: PackOptions) -> None:
    """A run that ends there, at its second batch where it has several, and saves nothing more."""
    place, name, left = STAGES[stage]
    with pytest.MonkeyPatch.context() as cut:
        fail_at(cut, place, name, 1 if left == [1, 2] else 0, Killed())
        cut.setattr(PackWorkdir, "__exit__", lambda self, *_: os.close(self._descriptor))  # as a kill does
        with pytest.raises(Killed):
            pack(config, options)


def pack_and_list_batches(config: dict[str, Any], options: PackOptions) -> list[int]:
    """Packs; which batches were written."""
    taken: list[int] = []
    take = run.JournaledPack.write_batch

    def watch(self: run.JournaledPack, batch: DecodedBatch) -> None:
        taken.append(batch.index)
        take(self, batch)

    with pytest.MonkeyPatch.context() as watched:
        watched.setattr(run.JournaledPack, "write_batch", watch)
        pack(config, options)
    return taken


@pytest.mark.parametrize(
    ("name", "stage"), [*(("npy", stage) for stage in STAGES), *product(PACK_FORMATS[1:], IN_FORMAT)]
)
def test_a_killed_run_leaves_no_pack_and_the_next_run_resumes(
    tmp_path: Path, config: dict[str, Any], options: PackOptions, name: PackFormat, stage: str
) -> None:
    options = replace(options, format=name)
    killed_at(stage, config, options)
    assert not options.destination.exists()
    written = pack_and_list_batches(config, options)
    whole = pack(config, replace(options, destination=tmp_path / "whole"))
    assert written == (STAGES[stage][2] if name in ONE_ROW_A_SHARD or stage != "writing" else [0, 1, 2])
    if name == "lmdb":  # its pages lie wherever some were free
        assert samples_of(options.destination) == samples_of(Path(whole.path))
    else:
        assert [*bytes_of(options.destination).values()] == [*bytes_of(Path(whole.path)).values()]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("name", ONE_ROW_A_SHARD)
def test_a_finished_pack_is_only_read_back_though_its_last_shard_is_short(
    config: dict[str, Any], options: PackOptions, monkeypatch: pytest.MonkeyPatch, name: PackFormat
) -> None:
    monkeypatch.setattr(run, "PACK_SHARD_BYTES", 1 << 30)
    monkeypatch.setattr(run, "PACK_TAR_BYTES", 1 << 30)
    options = replace(options, format=name)
    killed_at("reading back", config, options)
    assert pack_and_list_batches(config, options) == []


def samples_of(folder: Path) -> list[tuple[bytes, bytes]]:
    """All keys and values."""
    with (
        lmdb.open(str(folder), readonly=True, lock=False, max_dbs=2) as environment,
        environment.begin(environment.open_db(b"data_db")) as transaction,
    ):
        return list(transaction.cursor())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hdf5", "has no whole file, so this run begins it again"),
        ("npy", "continues after 2 samples, which are in the whole files"),
        ("tar", "continues after 2 samples, which are in the whole files"),
    ],
)
def test_a_run_after_a_kill_says_whether_it_continues(
    config: dict[str, Any], options: PackOptions, name: PackFormat, said: str
) -> None:
    class Notes(ProgressDisplay):
        def print_note(self, text: str) -> None:
            notes.append(text)

    notes: list[str] = []
    options = replace(options, format=name)
    killed_at("writing", config, options)
    run.pack_stream(load_config(config), options, Notes())
    assert [said in note for note in notes] == [True]


FULL: dict[PackFormat, tuple[Any, str, int]] = {  # the call that fails on a full disk: whose, which, and its number
    "npy": (os, "pwrite", 2),
    "tar": (os, "pwrite", 1),
    "hdf5": (h5py.Dataset, "__setitem__", 1),
    "lmdb": (os, "posix_fallocate", 0),
}


@pytest.mark.parametrize(("name", "code"), [*product(PACK_FORMATS, [errno.ENOSPC]), ("npy", errno.EDQUOT)])
def test_a_full_disk_is_reported_and_the_next_run_packs(
    config: dict[str, Any], options: PackOptions, name: PackFormat, code: int
) -> None:
    options = replace(options, format=name)
    with pytest.MonkeyPatch.context() as full:
        fail_at(full, *FULL[name], OSError(code, os.strerror(code)))
        with pytest.raises(PackError, match=r"out: .* are still to be written, and .* are free"):
            pack(config, options)
    assert not options.destination.exists()
    assert pack_and_list_batches(config, options) == ([1, 2] if name == "npy" else [0, 1, 2])


def test_a_pack_larger_than_the_free_disk_is_not_begun(
    config: dict[str, Any], options: PackOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NpyWriter, "estimate_bytes", lambda _: 1 << 53)
    with pytest.raises(PackError, match="takes about 8192 TiB"):
        pack(config, options)
    assert list(options.destination.parent.glob("*out*")) == []


def test_a_resumed_run_also_names_the_bad_samples_left_out_earlier(
    tmp_path: Path, config: dict[str, Any], options: PackOptions
) -> None:
    for name in ("b.png", "e.png"):
        (tmp_path / "data" / name).write_bytes(b"no picture")
    killed_at("writing", config, options)
    packed = pack(config, options)
    assert (packed.samples, [bad.file for bad in packed.bad]) == (3, ["b.png", "e.png"])
    assert "text" in packed.bad[0].reason
    assert read_packed(packed, tmp_path / "again")["angle"] == [0.5, 3, 0]


def test_random_crops_can_only_be_packed_as_files(config: dict[str, Any], options: PackOptions) -> None:
    config["streams"]["train"]["image"] |= {"resize": "random_crop"}
    with pytest.raises(ConfigError, match=r"streams\.train\.image\.resize: .* use --format tar"):
        pack(config, options)
    packed = pack(config, replace(options, format="tar"))
    assert packed.serving["image"]["resize"] == "random_crop"  # type: ignore[index]  # a mapping of keys


def test_all_samples_bad_is_an_error(tmp_path: Path, config: dict[str, Any], options: PackOptions) -> None:
    for name, *_ in ROWS:
        (tmp_path / "data" / name).write_bytes(b"no picture")
    with pytest.raises(PackError, match="all samples are bad"):
        pack(config, options)
    assert not options.destination.exists()


def test_a_run_with_other_data_or_settings_does_not_resume(
    tmp_path: Path, config: dict[str, Any], options: PackOptions
) -> None:
    killed_at("reading back", config, options)
    with pytest.raises(
        PackError, match=r"there is an unfinished pack of other data, .*\(5 of 5 samples are in it\): add --restart"
    ):
        pack(config, replace(options, shuffle=True))
    (tmp_path / "data" / "a.png").write_bytes((tmp_path / "data" / "a.png").read_bytes() + b"more")
    with pytest.raises(PackError, match="add --restart"):
        pack(config, options)
    assert pack(config, replace(options, restart=True)).samples == 5


def test_a_pack_that_reads_back_differently_is_not_published(config: dict[str, Any], options: PackOptions) -> None:
    killed_at("reading back", config, options)
    images = next(options.destination.parent.rglob("*.npy"))
    with images.open("r+b") as file:
        file.seek(130)
        file.write(b"!")
    with pytest.raises(PackError, match="does not read back from the disk as it was written"):
        pack(config, options)
    assert not options.destination.exists()
    assert pack(config, replace(options, restart=True)).samples == 5


def test_a_run_without_its_journal_starts_over(config: dict[str, Any], options: PackOptions) -> None:
    killed_at("reading back", config, options)
    next(options.destination.parent.rglob("journal.json")).unlink()
    assert pack_and_list_batches(config, options) == [0, 1, 2]


@pytest.mark.parametrize("name", PACK_FORMATS)
def test_every_format_says_how_its_pack_is_served(pack_job: PackJob, name: PackFormat) -> None:
    writer = open_pack_writer(name, pack_job, None)
    serving = writer.build_serving_settings(Path("/packs/here"))
    assert serving["source"]["kind"] == name  # type: ignore[index]  # a mapping of keys
    assert set(serving) == {"source", "labels", "image"}
    assert writer.estimate_bytes() >= 5 * pack_job.stream.spec.sample_bytes
    writer.close()


@pytest.mark.parametrize(("name", "library"), [("hdf5", "h5py"), ("lmdb", "lmdb")])
def test_a_missing_library_is_named_with_its_extra(
    pack_job: PackJob, monkeypatch: pytest.MonkeyPatch, name: PackFormat, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"streamd.cli.pack.write_{name}", raising=False)
    with pytest.raises(MissingExtraError, match=rf"needs {library}, .* pip install 'streamd-loader\[{name}\]'"):
        open_pack_writer(name, pack_job, None)


@pytest.mark.parametrize(
    ("name", "shard_bytes", "told"),
    [
        ("hdf5", 1 << 30, "--shard is for npy and tar"),
        ("lmdb", 1 << 30, "is one file"),
        ("tar", 1, "write 1MiB or more"),
    ],
)
def test_an_impossible_shard_size_is_refused(pack_job: PackJob, name: PackFormat, shard_bytes: int, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        open_pack_writer(name, pack_job, shard_bytes)
