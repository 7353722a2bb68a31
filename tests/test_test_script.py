"""What scripts/test says of parts that take too much, in a checkout whose parts are stand-ins."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

SCRIPT: Final = Path(__file__).resolve().parent.parent / "scripts" / "test"
SETUP: Final = """
say() { echo "$*" >&2; }
fail() { say "$*"; exit 1; }
set_up() { :; }
need_nothing() { false; }
"""
PROGRAMS: Final = {
    "compute": f"#!{sys.executable}\nimport time\nwhile time.process_time() < 0.05: pass\n",
    "wait": "#!/usr/bin/env bash\nexec sleep 1.2\n",
    "hang": "#!/usr/bin/env bash\nexec sleep 60\n",
    "fail": "#!/usr/bin/env bash\nexit 3\n",
}
OVER: Final = 0  # a budget that any part goes over


class Checkout:
    """Where scripts/test has other parts, and otherwise is as it is."""

    def __init__(self, place: Path) -> None:
        self._place = place
        (place / "scripts").mkdir()
        (place / "scripts" / "setup.sh").write_text(SETUP)
        for name, program in PROGRAMS.items():
            (place / name).write_text(program)
            (place / name).chmod(0o755)

    def run_parts(self, *parts: str, ci: str = "", limit: str = "") -> subprocess.CompletedProcess[str]:
        """With these quick parts; `limit` is an expression for when a part that hangs is ended."""
        table = "\n".join(parts)
        script = re.sub(r'(?ms)^QUICK_PARTS=".*?^"', f'QUICK_PARTS="{table}"', SCRIPT.read_text(encoding="utf-8"))
        if limit:
            script = script.replace("$1 * 2 + 900", limit)
        (self._place / "scripts" / "test").write_text(script)
        environment = {**os.environ, "CI": ci, "TMPDIR": str(self._place)}
        command = [shutil.which("bash") or "bash", str(self._place / "scripts" / "test")]
        return subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def result_of(done: subprocess.CompletedProcess[str], part: str) -> str:
    """The last column of a part's row."""
    (found,) = re.findall(rf"^{part} +\d+ s +\d+ s +\d+ s  (.*)$", done.stdout, re.MULTILINE)
    return str(found)


@pytest.mark.parametrize("command", ["./compute", "beside ./compute"])
def test_a_part_over_its_budget_is_a_warning_for_people_and_a_failure_in_ci(checkout: Checkout, command: str) -> None:
    at_home = checkout.run_parts(f"sums {OVER} {command}")
    in_ci = checkout.run_parts(f"sums {OVER} {command}", ci="1")

    assert (at_home.returncode, result_of(at_home, "sums")) == (0, "ok, but over its budget")
    assert (in_ci.returncode, result_of(in_ci, "sums")) == (1, "FAILED: over three times its budget")
    assert "failed: sums" in in_ci.stderr


def test_a_part_that_waits_longer_than_its_budget_passes_in_ci(checkout: Checkout) -> None:
    done = checkout.run_parts("waits 1 ./wait", ci="1")

    assert (done.returncode, result_of(done, "waits")) == (0, "ok")


@pytest.mark.parametrize("command", ["./hang", "beside ./hang"])
def test_a_part_that_hangs_is_ended(checkout: Checkout, command: str) -> None:
    done = checkout.run_parts(f"stuck 50 {command}", limit="1")

    assert done.returncode == 1
    assert result_of(done, "stuck").startswith("FAILED: ended")


def test_every_part_runs_and_the_summary_counts_each_for_itself(checkout: Checkout) -> None:
    done = checkout.run_parts(
        "wrong 9 ./fail", "absent 9 with nothing ./compute", "sums 9 ./compute", "beside 9 beside ./fail"
    )
    rows = [row.replace(" s ", " ").split(maxsplit=4) for row in done.stdout.splitlines()]

    assert done.returncode == 1
    assert "failed: wrong absent beside" in done.stderr
    assert result_of(done, "wrong") == "FAILED: exit status 3"
    assert result_of(done, "sums") == "ok"
    assert [row[0] for row in rows if row] == ["part", "wrong", "absent", "sums", "beside", "all"]
    spent_s = [int(row[2]) for row in rows if row and row[0] not in {"part", "all"}]
    assert (sum(spent_s), 9 * len(spent_s)) == (int(rows[-1][2]), int(rows[-1][3]))


def test_parts_that_run_beside_others_follow_one_another(checkout: Checkout) -> None:
    done = checkout.run_parts("first 9 beside ./fail", "second 9 beside ./compute", "third 9 ./compute")

    assert "failed: first" in done.stderr
    assert [result_of(done, part) for part in ("second", "third")] == ["ok", "ok"]


def test_nothing_is_left_of_it(checkout: Checkout, tmp_path: Path) -> None:
    checkout.run_parts("sums 9 ./compute")

    assert list(tmp_path.glob("tmp.*")) == []
