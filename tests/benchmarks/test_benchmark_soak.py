"""The long measurements, in small: each is run whole, as its users run it."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import independence
import pytest
from report import Series, load_report
from support.daemon_process import write_images

ROOT = Path(__file__).resolve().parent.parent.parent


def run(name: str, *options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/tests:{ROOT}/tests/faults"}
    command = [sys.executable, str(ROOT / "benchmarks" / name), *map(str, options)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.bench
@pytest.mark.timeout(300)
def test_a_minute_of_faults_loses_and_repeats_nothing(tmp_path: Path) -> None:
    done = run("soak.py", "--minutes", 0.75, "--seed", 0, "--between", 1, 3, "--results", tmp_path)
    rows = list(csv.DictReader((tmp_path / "soak.csv").read_text().splitlines()))

    assert done.returncode == 0, done.stdout + done.stderr
    assert int(rows[-1]["faults"]) > 0
    assert int(rows[-1]["batches"]) > int(rows[0]["batches"])
    assert "**as promised**" in (tmp_path / "soak.md").read_text()
    assert (tmp_path / "soak.png").exists()


@pytest.mark.bench
@pytest.mark.timeout(180)
def test_the_cost_of_a_stopped_trainer_and_the_pause_after_a_kill_are_measured(tmp_path: Path) -> None:
    data = write_images(tmp_path / "data", {"cat": 800, "dog": 800}, size=(128, 128))
    results = tmp_path / "found.json"
    done = run("independence.py", "--rounds", 1, "--kills", 2, "--data", data, "--results", results)

    assert done.returncode in {0, 1}, done.stderr  # 1 says that a figure missed, which one round may
    rates, pauses = (load_report(results).find_table(title).rows for title in independence.TITLES)
    assert [len(cast("Series", row[1]).values) for row in rates] == [1] * len(rates)
    assert [len(cast("Series", row[1]).values) for row in pauses] == [2, 6, 6]
    assert all(value > 0 for row in (*rates, *pauses[:2]) for value in cast("Series", row[1]).values)
