"""The comparison's consumer: what it takes for the same samples, and what it counts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import contest
import numpy as np
import pytest

PEERS = Path(contest.__file__).parent
COUNT = 70  # three batches, the last of them short


@pytest.fixture(scope="module")
def images() -> contest.Images:
    return np.random.default_rng(0).integers(0, 256, (COUNT, contest.SIDE, contest.SIDE, 3), dtype=np.uint8)


def epoch_of(images: contest.Images, ids: contest.Ids, names: contest.Ids | None = None) -> contest.Epoch:
    """Gives the images of `ids` in their order, under the names, if any."""

    def epoch(_: int) -> Iterator[contest.Batch]:
        for first in range(0, len(ids), contest.BATCH):
            chosen = slice(first, first + contest.BATCH)
            yield images[ids[chosen]], None if names is None else names[chosen]

    return epoch


def verdict(images: contest.Images, epoch: contest.Epoch) -> dict[str, Any]:
    return contest.verdict(contest.warm_up(epoch, contest.START(), None), contest.mean_colours(images))


def test_an_epoch_in_any_order_is_the_set(images: contest.Images) -> None:
    ids = np.random.default_rng(1).permutation(COUNT)
    seen = verdict(images, epoch_of(images, ids, ids))

    assert seen == {"samples": 70, "of": 70, "ids": True, "missed": 0, "repeated": 0, "worst": 0.0, "typical": 0.0}


def test_a_repeated_sample_is_counted_and_the_missed_one_too(images: contest.Images) -> None:
    ids = np.arange(COUNT)
    ids[5] = 6
    seen = verdict(images, epoch_of(images, ids, ids))

    assert (seen["samples"], seen["missed"], seen["repeated"]) == (70, 1, 1)


def test_ids_that_do_not_belong_to_their_images_are_told_by_the_colours(images: contest.Images) -> None:
    rows, names = images.copy(), np.arange(COUNT)
    rows[:2] = (0, 90, 255)
    rows[1] = 40

    assert verdict(rows, epoch_of(rows, names, names))["worst"] == 0
    assert verdict(rows, epoch_of(rows, np.array([1, 0, *range(2, COUNT)]), names))["worst"] == 215


def test_red_for_blue_is_told_by_the_colours() -> None:
    rows, names = np.zeros((COUNT, contest.SIDE, contest.SIDE, 3), dtype=np.uint8), np.arange(COUNT)
    rows[..., 0] = 200

    assert verdict(rows, epoch_of(rows[..., ::-1], names, names))["typical"] == 200


def test_without_ids_the_colours_of_all_images_must_be_the_sets(images: contest.Images) -> None:
    rows = np.zeros_like(images) + np.arange(COUNT, dtype=np.uint8)[:, None, None, None] * 3
    seen = verdict(rows, epoch_of(rows, np.random.default_rng(2).permutation(COUNT)))

    assert (seen["ids"], seen["worst"]) == (False, 0.0)
    assert verdict(rows, epoch_of(rows, np.zeros(COUNT, dtype=np.int64)))["worst"] == 207


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda images: images.astype(np.float32), id="float32"),
        pytest.param(lambda images: images[:, :64], id="64 pixels"),
        pytest.param(lambda images: images[:, ::-1], id="strided"),
    ],
)
def test_batches_of_another_kind_are_refused(images: contest.Images, change: Callable[[contest.Images], Any]) -> None:
    with pytest.raises(SystemExit, match="contest: batches are"):
        contest.warm_up(lambda _: [(change(images), None)], 0.0, None)


def test_one_byte_of_each_page_is_read(images: contest.Images) -> None:
    touched = images[:2].copy()
    touched[:] = 0
    touched.reshape(-1)[:: contest.PAGE_BYTES] = 1

    assert contest.touch(touched) == touched.size // contest.PAGE_BYTES == 24


def test_the_clock_runs_over_whole_batches_and_their_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 1.5, 3.0, 3.5])  # begin; asked and used, twice
    monkeypatch.setattr(contest, "START", lambda: next(now))
    batches = iter([(np.zeros((32, 1), np.uint8), None), (np.zeros((30, 1), np.uint8), None)])

    assert contest.count(batches, 2.0, lambda _: None) == {
        "samples": 62,
        "seconds": 3.5,
        "wait_s": 2.5,
        "longest_wait_s": 1.5,
    }


@pytest.mark.long
def test_a_peer_verifies_and_then_waits_for_the_start(images: contest.Images, tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "colours.npy", contest.mean_colours(images))
    command = [sys.executable, str(PEERS / "memmap.py"), "--data", str(tmp_path / "images.npy")]
    verified = subprocess.run([*command, "--verify", str(tmp_path / "colours.npy")], capture_output=True, check=True)
    times = ["--warm-s", "0.01", "--settle-s", "0.01", "--seconds", "0.05"]
    timed = subprocess.run([*command, *times], input="go\n", text=True, capture_output=True, check=True)

    assert json.loads(verified.stdout)["verified"]["missed"] == 0
    assert timed.stdout.splitlines()[0] == "ready"
    assert json.loads(timed.stdout.splitlines()[-1])["touch"]["samples"] >= contest.BATCH


def test_of_all_peers_and_limits_only_streamds_own_imports_it() -> None:
    files = [*PEERS.glob("*.py"), PEERS.parent / "limit.py"]
    importing = re.compile(r"^\s*(import|from) streamd\b", re.MULTILINE)

    assert [file.name for file in files if importing.search(file.read_text())] == ["streamd_.py"]
