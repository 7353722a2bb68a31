"""Draining a stream in this process: samples, digests, and the replay of held batches."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from streamd.cli import probe
from streamd.cli.probe import DrainResult, TrainerRequest
from streamd.client import Batch
from streamd.errors import ConfigError, RefusedError, StreamdError

DRAINED = DrainResult(24, 0.01, 0.0, [], [])


def test_two_drains_have_the_same_digest(probed_endpoint: str) -> None:
    once = [probe.drain_stream("train", probed_endpoint, 1, digest=True) for _ in range(2)]
    assert once[0].digest == once[1].digest
    assert len(once[0].digest) == 1


def test_samples_are_counted_from_the_first_batch_to_the_last(probed_endpoint: str) -> None:
    drained = probe.drain_stream("train", probed_endpoint, 1, digest=False)
    assert drained.samples == 32 - 8
    assert [timing.epoch for timing in drained.timings] == [0]
    assert 0 <= drained.wait_s <= drained.seconds
    assert drained.samples_per_s == drained.samples / drained.seconds


def test_held_batches_are_replayed_at_least_once_each_and_only_the_rate_is_added(probed_endpoint: str) -> None:
    taken: list[int] = []

    def work(batch: Batch) -> None:
        taken.append(batch.index)

    drained = probe.replay_held_batches(TrainerRequest("train", probed_endpoint, 1), DRAINED, work)
    assert taken[:4] == [0, 1, 2, 3]
    assert drained.free_samples_per_s is not None
    assert drained.free_samples_per_s > 0
    assert replace(drained, free_samples_per_s=None) == DRAINED


def test_a_stream_of_one_batch_is_too_short_for_a_rate(probed_endpoint: str) -> None:
    with pytest.raises(
        StreamdError, match="stream 'train' has only one batch, which is too little to measure a rate: add  --epochs 2"
    ):
        probe.replay_held_batches(
            TrainerRequest("train", probed_endpoint, 1),
            replace(DRAINED, seconds=0.0),
            probe.touch_image_pages,
        )


def test_a_trainer_whose_starter_is_gone_ends_without_a_word(probed_endpoint: str) -> None:
    request = msgspec.json.encode(TrainerRequest("train", probed_endpoint, 1)).decode()
    command = [sys.executable, "-m", "streamd.cli.probe", request]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=30, check=False)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.fixture
def own_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ownsteps.py").write_text(
        "from streamd.errors import RefusedError\n"
        "def fails(batch): batch.nothing\n"
        "def refused(batch): raise RefusedError('no')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own_steps")
def test_a_failing_user_function_is_named_with_its_line(probed_endpoint: str) -> None:
    said = r"ownsteps:fails failed: AttributeError: .*nothing.*ownsteps\.py, line 2"
    with pytest.raises(ConfigError, match=said):
        probe.drain_stream("train", probed_endpoint, 1, digest=False, step=probe._load_trainer_step("ownsteps:fails"))
    with pytest.raises(RefusedError, match=r"^no$"):
        probe.drain_stream("train", probed_endpoint, 1, digest=False, step=probe._load_trainer_step("ownsteps:refused"))
