"""`streamd probe`: what it prints and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.daemon_process import wait_until
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.cli.probe import ProbeResult, TrainerRequest
from streamd.core.receipt import Receipt

RECEIPT = Receipt("train", 0, 4, 32, 0, 0, 0, 0, changed=False, complete=True, ok=True, digest="00")
PROBE = ProbeResult("train", [100.0], [0.5], 1.0, [RECEIPT], None)


def test_json_is_one_object_on_standard_output_with_the_promised_keys(probed_endpoint: str) -> None:
    wish = ["probe", "train", "--endpoint", probed_endpoint, "--epochs", "2", "--trainers", "2", "--digest", "--json"]
    done = CliRunner().invoke(app, wish)
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert len(done.stdout.splitlines()) == 1
    assert [len(result[name]) for name in ("samples_per_s", "wait_fraction", "digest")] == [2] * 3
    assert result["decodes_per_batch"] >= 1
    assert [receipt["ok"] for receipt in result["receipts"]] == [True] * 4
    assert "draining 2 epochs of stream 'train' in 2 processes" in done.stderr


@pytest.mark.long
def test_ctrl_c_ends_probe_and_its_trainers_silently(probed_endpoint: str) -> None:
    command = [sys.executable, "-m", "streamd.cli.main", "probe", "train", "--endpoint", probed_endpoint]
    wish = ["--epochs", "1000000", "--trainers", "2"]
    with subprocess.Popen([*command, *wish], stderr=subprocess.PIPE, process_group=0) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: len(children.read_text().split()) == 2, "its trainers start")
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate()
    assert process.returncode == 130
    assert said == b"draining 1,000,000 epochs of stream 'train' in 2 processes\n"


def stub_probe(monkeypatch: pytest.MonkeyPatch, result: ProbeResult) -> list[tuple[TrainerRequest, int]]:
    """Lets the command have `result`; what it asked for."""
    asked: list[tuple[TrainerRequest, int]] = []

    def drain_all(request: TrainerRequest, trainers: int, _write_line: object) -> ProbeResult:
        asked.append((request, trainers))
        return result

    monkeypatch.setattr("streamd.cli.probe.probe_stream", drain_all)
    monkeypatch.setattr("streamd.cli.options.find_socket", lambda endpoint: endpoint or "ipc:///default")
    return asked


def test_without_json_it_prints_lines_and_by_default_drains_one_epoch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stub_probe(monkeypatch, PROBE)
    done = CliRunner().invoke(app, ["probe", "train"])
    assert (done.exit_code, done.stdout.splitlines()) == (0, PROBE.format_lines())
    assert asked == [(TrainerRequest("train", "ipc:///default", epochs=1), 1)]


@pytest.mark.long
def test_headroom_is_reported_for_each_trainer(probed_endpoint: str) -> None:
    done = CliRunner().invoke(
        app, ["probe", "train", "--endpoint", probed_endpoint, "--trainers", "2", "--headroom", "--json"]
    )
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert len(result["headroom_samples_per_s"]) == 2
    for served, free, lost in zip(
        result["samples_per_s"], result["headroom_samples_per_s"], result["headroom_fraction"], strict=True
    ):
        assert free > 0
        assert lost == max(0, 1 - served / free)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_bad_receipt_is_printed_with_exit_status_1(monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    stub_probe(monkeypatch, replace(PROBE, receipts=[replace(RECEIPT, missed=1, ok=False)]))
    done = CliRunner().invoke(app, ["probe", "train", *options])
    assert done.exit_code == 1
    assert "missed" in done.stdout
