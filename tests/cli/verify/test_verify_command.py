"""`streamd verify`: what it reads and prints, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from support.rank_receipts import BATCHES, make_receipt, receipts_of_world, token_after
from typer.testing import CliRunner, Result

from streamd.cli.main import app
from streamd.core.receipt import Receipt


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """The files of four ranks."""
    return [write(tmp_path, rank, [receipt]) for rank, receipt in enumerate(receipts_of_world(4))]


def write(folder: Path, rank: int, receipts: Iterable[Receipt]) -> Path:
    path = folder / f"receipts-{rank}.jsonl"
    path.write_text("".join(f"{each.to_json()}\n" for each in receipts))
    return path


def verify(*arguments: Path | str) -> Result:
    return CliRunner().invoke(app, ["verify", *map(str, arguments)])


def test_the_files_of_all_ranks_are_one_epoch(files: list[Path]) -> None:
    done = verify(*files)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[0] == f"train epoch 0: one epoch, {BATCHES} batches in 4 receipts"


def test_a_missing_file_is_named_by_its_batches(files: list[Path]) -> None:
    done = verify(*files[1:])
    assert done.exit_code == 1
    assert "NOT one epoch" in done.output
    assert "missing: 25 batches: 0, 4, 8" in done.output


def test_two_jobs_have_their_batches_twice(files: list[Path], tmp_path: Path) -> None:
    done = verify(*files, write(tmp_path, 9, [make_receipt(0, 1)]))
    assert done.exit_code == 1
    assert f"twice: {BATCHES - BATCHES % 4} batches: 0 to {BATCHES - BATCHES % 4 - 1}" in done.output


def test_a_resumed_history_is_listed_as_by_token(tmp_path: Path) -> None:
    token = token_after(5, 8)
    done = verify(*(write(tmp_path, rank, [make_receipt(rank, 6, start=token)]) for rank in range(6)))
    assert done.exit_code == 0
    assert "by token: batches 0 to 39, world 8" in done.output


def test_output_of_probe_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "probe.json"
    receipts = [json.loads(make_receipt(0, 1, epoch=epoch).to_json()) for epoch in range(2)]
    path.write_text(json.dumps({"stream": "train", "samples_per_s": [1.0], "receipts": receipts}))
    done = verify(path)
    assert done.exit_code == 0, done.output
    assert [line for line in done.output.splitlines() if "one epoch" in line] == [
        f"train epoch {epoch}: one epoch, {BATCHES} batches in 1 receipt" for epoch in range(2)
    ]


def test_json_is_one_object_that_names_the_batches(files: list[Path]) -> None:
    done = verify(*files[1:], "--json")
    said = json.loads(done.stdout)
    (epoch,) = said["epochs"]
    assert (done.exit_code, said["ok"], epoch["ok"]) == (1, False, False)
    assert epoch["missing"][:2] == [0, 4]
    assert epoch["dropped"] == [100, 101, 102]


def test_ranks_that_saw_other_pixels_end_with_1_and_changed_pixels_with_0(tmp_path: Path) -> None:
    one, other = receipts_of_world(2)
    paths = [write(tmp_path, 0, [one]), write(tmp_path, 1, [replace(other, pixel_id="f" * 32)])]
    done = verify(*paths)
    assert (done.exit_code, f"but {'f' * 32} in {paths[1]}:1" in done.output) == (1, True)
    write(tmp_path, 1, [replace(other, pixel_id="f" * 32, changed=True)])
    done = verify(*paths)
    assert (done.exit_code, f"note: {paths[1]}:1 says changed" in done.output) == (0, True)
    (epoch,) = json.loads(verify(*paths, "--json").stdout)["epochs"]
    assert epoch["changed"] == [f"{paths[1]}:1"]
    assert set(epoch["pixel_ids"]) == {one.pixel_id, "f" * 32}


def test_numbers_that_contradict_each_other_are_another_status(tmp_path: Path) -> None:
    one, other = receipts_of_world(2)
    done = verify(write(tmp_path, 0, [one]), write(tmp_path, 1, [other, replace(other, samples=999)]))
    assert getattr(done.exception, "exit_status", None) == 2
    assert "receipts-1.jsonl:2: this receipt is damaged: 999 samples" in str(done.exception)


def test_a_file_that_cannot_be_read_is_another_status(tmp_path: Path) -> None:
    done = verify(tmp_path / "none")
    assert getattr(done.exception, "exit_status", None) == 2


def test_without_a_file_it_is_a_usage_error() -> None:
    assert verify().exit_code == 2
