"""Draining a stream in trainer processes, and the result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from streamd.cli import probe
from streamd.cli.probe import ProbeResult, TrainerRequest
from streamd.core.epoch_timing import BatchSupply, EpochTiming, format_timing_lines
from streamd.core.receipt import Receipt
from streamd.errors import ReceiptError, RefusedError

RECEIPT = Receipt("train", 0, 4, 32, 0, 0, 0, 0, changed=False, complete=True, ok=True, digest="00")
PROBE = ProbeResult("train", [100.0, 3000.0], [0.25, 0.5], 1.0, [RECEIPT, RECEIPT], None)


def ignore(_line: str) -> None: ...


@pytest.mark.long
def test_trainer_processes_see_the_same_data_and_each_has_an_entry(probed_endpoint: str) -> None:
    said: list[str] = []
    result = probe.probe_stream(TrainerRequest("train", probed_endpoint, epochs=2, digest=True), 2, said.append)
    assert said == ["draining 2 epochs of stream 'train' in 2 processes"]
    assert [len(result.samples_per_s), len(result.wait_fraction), len(result.receipts)] == [2, 2, 4]
    assert all(rate > 0 for rate in result.samples_per_s)
    assert all(0 <= fraction <= 1 for fraction in result.wait_fraction)
    assert [receipt.samples for receipt in result.receipts] == [32] * 4
    assert [[timing.epoch for timing in timings] for timings in result.verdicts] == [[0, 1]] * 2
    assert 1 <= result.decodes_per_batch <= 2
    assert result.ok
    assert result.digest is not None
    assert len(set(result.digest)) == 2


def test_digest_and_headroom_are_absent_unless_requested(probed_endpoint: str) -> None:
    result = probe.probe_stream(TrainerRequest("train", probed_endpoint, epochs=1), 1, ignore)
    assert (result.digest, result.headroom_samples_per_s, result.headroom_fraction) == (None, None, None)


@pytest.mark.long
def test_headroom_is_measured_with_the_users_own_function_and_its_batches_are_not_counted(
    probed_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    (tmp_path / "mytrainer.py").write_text(
        f"def step(batch):\n    print('hello')\n    open({str(seen)!r}, 'a').write(f'{{batch.index}} ')\n"
    )
    monkeypatch.chdir(tmp_path)
    request = TrainerRequest("train", probed_endpoint, epochs=1, load="mytrainer:step", headroom=True)
    result = probe.probe_stream(request, 1, ignore)
    taken = [int(index) for index in seen.read_text().split()]
    assert taken[:8] == [0, 1, 2, 3] * 2  # drained, and replayed at least once
    assert result.headroom_samples_per_s is not None
    assert result.headroom_samples_per_s[0] > 0
    assert result.headroom_fraction == [max(0.0, 1 - result.samples_per_s[0] / result.headroom_samples_per_s[0])]
    assert result.decodes_per_batch <= 1
    assert (len(result.receipts), result.ok) == (1, True)


@pytest.mark.long
def test_a_missing_function_fails_before_anything_is_drained(
    probed_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RefusedError, match="its message is above"):
        probe.probe_stream(TrainerRequest("train", probed_endpoint, epochs=1, load="mine:step"), 2, ignore)
    assert capfd.readouterr().err.count(f"streamd probe: there is no module 'mine' in {tmp_path}") == 2


def test_an_unknown_stream_is_refused_before_any_process_starts(probed_endpoint: str) -> None:
    with pytest.raises(RefusedError, match="did you mean 'train'"):
        probe.probe_stream(TrainerRequest("tran", probed_endpoint, epochs=1), 2, pytest.fail)


def test_trainers_that_saw_different_data_are_an_error() -> None:
    assert probe._require_equal_digests([["a", "b"], ["a", "b"]]) == ["a", "b"]
    with pytest.raises(ReceiptError, match="the trainers saw different data"):
        probe._require_equal_digests([["a", "b"], ["a", "c"]])


def test_the_lines_show_rates_waiting_decodes_and_receipts() -> None:
    assert replace(PROBE, digest=["0123"]).format_lines() == [
        "stream train, 2 trainers: 3,100 samples/s in all",
        "  samples/s each   100, 3,000 (median 1,550)",
        "  time waiting     25%, 50%",
        "  decodes/batch    1.00",
        "  receipts         all ok: missed 0, repeated 0",
        "  digest           0123",
    ]


def test_the_lines_show_where_the_time_of_each_trainer_went() -> None:
    timings = [EpochTiming(epoch, 43.0, 2.0, "none", BatchSupply()) for epoch in (0, 1)]
    two = replace(PROBE, verdicts=[timings[:1], timings[1:]])
    assert two.format_lines()[-3:] == [f"  {line}" for line in format_timing_lines(two.verdicts)]


def test_the_lines_show_the_cost_of_data_when_headroom_was_measured() -> None:
    lines = replace(PROBE, headroom_samples_per_s=[200.0, 3000.0], headroom_fraction=[0.5, 0.0]).format_lines()
    assert lines[-2:] == ["  with data free   200, 3,000", "  so data cost     50%, 0%"]


def test_one_bad_receipt_makes_the_probe_not_ok() -> None:
    bad = replace(RECEIPT, missed=2, repeated=1, ok=False)
    result = replace(PROBE, receipts=[RECEIPT, bad, RECEIPT, RECEIPT])
    assert not result.ok
    assert "NOT OK: missed 2, repeated 1" in "\n".join(result.format_lines())
