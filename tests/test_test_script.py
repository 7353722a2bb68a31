"""What scripts/test says of parts that take too much, and which files it reads for a part; the parts are stand-ins."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Final

import pytest
from support.daemon_process import wait_until

ROOT: Final = Path(__file__).resolve().parent.parent
COMPUTE: Final = shlex.join([sys.executable, "-c", "import time\nwhile time.process_time() < 0.05: pass"])
WAIT: Final = "sleep 1.2"
HANG: Final = "sleep 60"
FAIL: Final = "sh -c 'exit 3'"
OVER: Final = 0  # a budget that any part goes over


def start(*parts: str, ci: str = "", limit_s: float = 900.0) -> subprocess.Popen[str]:
    """Starts these parts, each written as its arguments; `limit_s` is when one that hangs is ended."""
    program = f"""
        import signal, sys
        sys.path.insert(0, {str(ROOT / "tools")!r})
        import checks
        from checks import Part
        checks.Part.limit_s = {limit_s!r}
        signal.signal(signal.SIGTERM, checks.end)
        sys.exit(checks.run_parts([{", ".join(f"Part({part})" for part in parts)}]))
        """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.Popen(
        command, env={**os.environ, "CI": ci}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(*parts: str, ci: str = "", limit_s: float = 900.0) -> subprocess.CompletedProcess[str]:
    process = start(*parts, ci=ci, limit_s=limit_s)
    said, told = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, said, told)


def result_of(done: subprocess.CompletedProcess[str], part: str) -> str:
    """The last column of a part's row."""
    (found,) = re.findall(rf"^{part} +\d+ s +\d+ s +\d+ s  (.*)$", done.stdout, re.MULTILINE)
    return str(found)


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()  # nobody may be there to reap it
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("cores", [0, 1, 2])
def test_a_part_over_its_budget_is_a_warning_for_people_and_a_failure_in_ci(cores: int) -> None:
    part = f"'sums', {OVER}, {COMPUTE!r}, cores={cores}"
    at_home = run(part)
    in_ci = run(part, ci="1")

    assert (at_home.returncode, result_of(at_home, "sums")) == (0, "ok, but over its budget")
    assert (in_ci.returncode, result_of(in_ci, "sums")) == (1, "FAILED: over three times its budget")
    assert "failed: sums" in in_ci.stderr


def test_a_part_that_waits_longer_than_its_budget_passes_in_ci() -> None:
    done = run(f"'waits', 1, {WAIT!r}", ci="1")

    assert (done.returncode, result_of(done, "waits")) == (0, "ok")


@pytest.mark.parametrize("cores", [0, 2])
def test_a_part_that_hangs_is_ended(cores: int) -> None:
    done = run(f"'stuck', 50, {HANG!r}, cores={cores}", limit_s=1)

    assert done.returncode == 1
    assert result_of(done, "stuck").startswith("FAILED: ended")


def test_every_part_runs_and_the_summary_counts_each_for_itself() -> None:
    done = run(
        f"'wrong', 9, {FAIL!r}",
        f"'absent', 9, {COMPUTE!r}, needs='nothing'",
        f"'sums', 9, {COMPUTE!r}",
        f"'beside', 9, {FAIL!r}, cores=0",
    )
    rows = [row.replace(" s ", " ").split(maxsplit=4) for row in done.stdout.splitlines()]

    assert done.returncode == 1
    assert "failed: wrong absent beside" in done.stderr
    assert result_of(done, "wrong") == "FAILED: exit status 3"
    assert result_of(done, "sums") == "ok"
    assert [row[0] for row in rows if row] == ["part", "wrong", "absent", "sums", "beside", "all"]
    spent_s = [int(row[2]) for row in rows if row and row[0] not in {"part", "all"}]
    assert (sum(spent_s), 9 * len(spent_s)) == (int(rows[-1][2]), int(rows[-1][3]))


def test_two_parts_of_one_core_run_at_a_time_and_one_of_two_alone(tmp_path: Path) -> None:
    """Each of the first two ends once it has seen the other; the last must not see either."""
    meet = "sh -c 'touch {0}; while ! test -e {1}; do sleep 0.05; done; rm {1}'"
    one, other = tmp_path / "one", tmp_path / "other"
    look = f"sh -c '! test -e {one} && ! test -e {other}'"
    done = run(
        f"'one', 9, {meet.format(one, other)!r}, cores=1",
        f"'other', 9, {meet.format(other, one)!r}, cores=1",
        f"'alone', 9, {look!r}",
    )

    assert [result_of(done, part) for part in ("one", "other", "alone")] == ["ok"] * 3


def test_what_a_part_beside_others_says_is_shown_when_it_has_ended() -> None:
    done = run("'speaks', 9, 'echo all is well', cores=1", f"'sums', 9, {COMPUTE!r}")

    assert "all is well\n" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_part_ends_with_the_checks(tmp_path: Path, number: signal.Signals) -> None:
    name = tmp_path / "pid"
    hang = f"sh -c 'echo $$ > {name}; exec sleep 60'"
    process = start(f"'stuck', 50, {hang!r}")
    wait_until(lambda: name.exists() and name.read_text().endswith("\n"), "the part runs")
    process.send_signal(number)
    process.communicate()

    pid = int(name.read_text())
    wait_until(lambda: not is_running(pid), "the part has ended")
    assert process.returncode not in {0, 1}


OF_ONE: Final = "def test_it(): pass\n@pytest.mark.long\ndef test_more(): pass\n"
OF_ALL: Final = "pytestmark = [pytest.mark.train, pytest.mark.timeout(60)]\ndef test_it(): pass\n"


@pytest.mark.parametrize(
    ("expression", "source", "is_read"),
    [
        ("not (long or train)", OF_ONE, True),
        ("long and not (train)", OF_ONE, True),
        ("train", OF_ONE, False),
        ("not (long or train)", OF_ALL, False),
        ("long and not (train)", OF_ALL, False),
        ("train", OF_ALL, True),
        ("train and long", OF_ALL, False),
        ("timeout", OF_ALL, True),
    ],
)
def test_a_file_that_has_no_test_of_a_part_is_not_read_for_it(
    tmp_path: Path, expression: str, source: str, is_read: bool
) -> None:
    """The file says so by failing: it does not import what it needs."""
    (tmp_path / "test_one.py").write_text(source)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = [long, train]\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTEST_ADDOPTS": ""}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "ci_plugin",
        "-p",
        "no:cacheprovider",
        "-q",
        "-m",
        expression,
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert ("name 'pytest' is not defined" in done.stdout) is is_read, done.stdout
