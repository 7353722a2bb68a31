"""The parts that scripts/test runs: what each is, its budget of processor time, and which share the two cores.

Called by scripts/test, which sets up what all of them need. Parts begin in the order of the table. One that needs a
whole machine runs alone; of those that keep one core busy two run at a time, and one that mostly waits runs beside
any. A budget is processor time, which depends less than the clock on what else runs; a fixed piece of work, timed
before each part, tells how much longer this processor takes than the one that the budgets are made for.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import queue
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, NoReturn

ROOT: Final = Path(__file__).resolve().parents[1]
PYTHON: Final = ".venv/bin/python"
PYTEST: Final = f"env PYTHONPATH=tests {PYTHON} -m pytest -p ci_plugin"
CORES: Final = len(os.sched_getaffinity(0))  # those that this process may use
_SLOWNESS: Final = """
import time
before = time.process_time()
sum(number * number for number in range(3_000_000))
print(max(100, round((time.process_time() - before) / 0.0025)))
"""
_HELP: Final = """\
Every check there is. Without an option the quick parts: at most 150 s of processor time, one to two minutes on two idle
cores. With --all the long ones too, which takes most of an hour. The first run installs what they need, which takes
some minutes more.

Every part runs, even after a failure; the summary names those that failed, and has the processor time of each beside
its budget. Over budget is a warning, and over three times a failure with CI=1, which makes a skipped test one too.
Before each part a fixed piece of work is timed: where the processor is slower than the budgets assume, they grow."""
_LANES: Final = 2  # parts of one core that run at a time
_SLOW_PERCENT: Final = 150
_SPOKEN_EVERY_S: Final = 60.0
_GRACE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the checks. Without a `command` it is the tests that have the mark of its name, or `marks`.

    `options` are pytest's. `cores` is 2 for one that runs alone, 1 for one of two that run at a time, 0 for one that
    mostly waits. `processes` are those among which its tests are divided, by files or, if they are `alike`, test by
    test; 0 is pytest itself. `needs` names what scripts/setup.sh gets first, which neither budget nor time counts.
    """

    name: str
    budget_s: int
    command: str = ""
    cores: int = _LANES
    marks: str = ""
    options: str = ""
    processes: int = 0
    alike: bool = False
    needs: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_alone(self) -> bool:
        """Whether no other part that computes runs beside it."""
        return self.cores == _LANES

    @property
    def limit_s(self) -> int:
        """When it is ended: by the clock, far beyond its budget, for on a busy machine it waits for others."""
        return self.budget_s * 2 + 900

    def build_command(self, arguments: Sequence[str]) -> list[str]:
        """Returns what to run; `arguments` are for pytest."""
        if self.command:
            return shlex.split(self.command)
        by = "load" if self.alike else "loadfile"
        command = f"{PYTEST} --numprocesses {self.processes} --dist {by} {self.options}"
        return [*shlex.split(command), "-m", self.marks or self.name, *arguments]


# Marks with a part of their own; what is left is divided by the mark `long` alone.
_OWN: Final = (
    "train or trainers or bench or abuse or mutants or systemd or browser or package or prometheus or proxy or "
    "pictures or ray or fuzz or site"
)  # fmt: skip
QUICK: Final = (
    Part("lint", 2, ".venv/bin/ruff check --output-format concise"),
    Part("format", 2, ".venv/bin/ruff format --check"),
    Part("imports", 2, ".venv/bin/lint-imports --no-logo"),
    Part("types", 34, ".venv/bin/mypy", cores=0),
    Part("tests", 110, marks=f"not (long or {_OWN})", processes=CORES),
)
# More processes than cores, where they wait for other processes and for deadlines. Budgets are bounds: what two cores
# could spend in the time that the part may take.
LONG: Final = (
    Part("long", 400, marks=f"long and not ({_OWN})", processes=CORES * 3 // 2),
    Part("systemd", 60, f"scripts/systemd-box {PYTEST} -m systemd tests/units", cores=0),
    Part("backends", 450, f"{PYTHON} benchmarks/loader_process.py keras_jax keras_torch trainers"),
    Part("train", 700, processes=2),
    Part("trainers", 500, processes=CORES),
    Part("bench", 340),
    Part("abuse", 400, processes=2, alike=True),
    Part("mutants", 300, processes=CORES, alike=True),
    Part("ray", 120, processes=2, needs="ray"),
    Part("browser", 120, cores=1, needs="chromium"),
    Part("demo", 90, ".venv/bin/streamd demo --quick", cores=1),
    Part("package", 150, cores=1),
    Part("prometheus", 50, cores=1, needs="prometheus"),
    Part("proxy", 16, cores=1, needs="nginx"),
    Part("pictures", 30, cores=1, needs="pictures"),
    Part("site", 60, cores=1, needs="site"),
    Part("audit", 30, f"{PYTHON} tools/audit_packages.py", cores=1),
    Part("fuzz", 420, processes=CORES, alike=True),
)  # fmt: skip


def list_full_parts(seed: int, report: bool) -> tuple[Part, Part]:
    """Returns the parts that repeat tests in full number: faults, and attacks one by one, for they compare rates."""
    full = {"FAULTS_FULL": "1", "FAULTS_SEED": str(seed)}
    faults, attacks = (
        f"-p evidence_plugin {f'--{name}-report docs/evidence/{page}.md' if report else ''}"
        for name, page in (("fault", "faults"), ("abuse", "abuse"))
    )
    # Fewer processes than cores: each test has a daemon and several trainers of its own.
    processes = (CORES * 3 + 3) // 4
    return (
        Part("faults", 600, marks="fault", options=faults, processes=processes, alike=True, environment=full),
        Part("attacks", 2100, marks="abuse", options=attacks, environment=full),
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a part ended: its exit status, or None if it had to be ended, and its times in seconds."""

    part: Part
    status: int | None
    took_s: float = 0.0
    spent_s: float = 0.0
    said: Path | None = None

    def judge(self, slowness: int) -> str:
        """Returns the last column of its row; `slowness` is in percent."""
        if self.status is None:
            return f"FAILED: ended, for it had run for {self.part.limit_s} s"
        if self.status:
            return f"FAILED: exit status {self.status}"
        if math.ceil(self.spent_s) <= self.part.budget_s:
            return "ok"
        # Beside busy neighbours a second of a processor does less: the same tests were seen to take twice as many.
        allowed_s = 3 * self.part.budget_s / 100
        if (
            os.environ.get("CI")
            and self.spent_s > allowed_s * slowness
            and self.spent_s > allowed_s * measure_slowness()
        ):
            return "FAILED: over three times its budget"
        return "ok, but over its budget"


def say(text: str) -> None:
    """Writes a line for whoever watches."""
    print(f"test: {text}", file=sys.stderr, flush=True)


def measure_slowness() -> int:
    """Returns the processor time of a fixed piece of work, in percent of what it takes on the machine of the budgets.

    Neighbours on a shared host make a processor half as fast, and the times of processes do not show it. All cores
    work at once, as they do in the parts. At least 100.
    """
    command = [sys.executable, "-c", _SLOWNESS]
    timed = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(CORES)]
    return max(int(each.communicate()[0]) for each in timed)


class Checks:
    """Runs parts, each in a process group of its own, in threads that wait for them."""

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        self._folder = folder
        self._arguments = arguments
        self._ended: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._running: dict[str, Part] = {}
        # A part that begins while all of them are ended must not be missed.
        self._lock = threading.Lock()
        self._groups: dict[str, int] = {}
        self._is_ending = False
        self._unshown: list[Outcome] = []
        self._slowness = 100
        self.outcomes: dict[str, tuple[Outcome, str]] = {}

    def run(self, parts: Sequence[Part]) -> None:
        """Runs all of them, also after a failure."""
        try:
            for part in parts:
                while sum(each.cores for each in self._running.values()) + part.cores > _LANES:
                    self._collect()
                self._begin(part)
            while self._running:
                self._collect()
        finally:
            with self._lock:
                self._is_ending = True
                for group in self._groups.values():
                    _end_group(group, signal.SIGINT)  # as Ctrl-C would: pytest ends what its tests have started
            deadline_s = time.monotonic() + _GRACE_S
            while self._running and time.monotonic() < deadline_s:
                with contextlib.suppress(queue.Empty):
                    del self._running[self._ended.get(timeout=max(0.0, deadline_s - time.monotonic())).part.name]
            with self._lock:
                for group in self._groups.values():
                    _end_group(group, signal.SIGKILL)

    def _begin(self, part: Part) -> None:
        say(f"{part.name} (budget: {part.budget_s} s of processor time)")
        slowness = measure_slowness()
        if slowness >= _SLOW_PERCENT:
            say(f"this processor takes {slowness} % of the time that the budgets are made for")
        self._running[part.name] = part
        self._slowness = slowness
        # Only one that runs alone may speak at once; what the others say would be mixed.
        said = None if part.is_alone else self._folder / part.name
        threading.Thread(target=self._wait_for, args=(part, said), daemon=True).start()

    def _wait_for(self, part: Part, said: Path | None) -> None:
        outcome = Outcome(part, 1, said=said)
        try:
            outcome = self._run_part(part, said)
        finally:
            self._ended.put(outcome)

    def _run_part(self, part: Part, said: Path | None) -> Outcome:
        with contextlib.ExitStack() as stack:
            log = None if said is None else stack.enter_context(said.open("wb"))
            if part.needs:
                need = ["bash", "-c", f". scripts/setup.sh && need_{part.needs}", "scripts/test"]
                if subprocess.run(need, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False).returncode:
                    return Outcome(part, 1, said=said)
            began = time.monotonic()
            process = self._start(part, log)
            is_late = threading.Event()
            timer = threading.Timer(part.limit_s, _end_late_group, (process.pid, is_late))
            timer.daemon = True
            timer.start()
            # The processor time of the part and of every process that it waited for.
            _, status, used = os.wait4(process.pid, 0)
            timer.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
            with self._lock:
                del self._groups[part.name]
            took_s, spent_s = time.monotonic() - began, used.ru_utime + used.ru_stime
            return Outcome(part, None if is_late.is_set() else process.returncode, took_s, spent_s, said)

    def _start(self, part: Part, log: IO[bytes] | None) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_ending:
                raise SystemExit
            process = subprocess.Popen(
                part.build_command(self._arguments), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **part.environment}, cwd=ROOT, start_new_session=True,
            )  # fmt: skip
            self._groups[part.name] = process.pid
        return process

    def _collect(self) -> None:
        """Waits until a part has ended, and shows what it said."""
        while True:
            try:
                outcome = self._ended.get(timeout=_SPOKEN_EVERY_S)
                break
            except queue.Empty:
                say(f"running: {', '.join(self._running)}")
        del self._running[outcome.part.name]
        self.outcomes[outcome.part.name] = outcome, outcome.judge(self._slowness)
        if outcome.said is not None:
            self._unshown.append(outcome)
        if any(part.is_alone for part in self._running.values()):
            return  # it speaks at this moment
        for each in self._unshown:
            say(f"{each.part.name} said:")
            print(each.said.read_text(errors="replace") if each.said else "", flush=True)
        self._unshown.clear()


def _end_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _end_late_group(group: int, is_late: threading.Event) -> None:
    is_late.set()
    _end_group(group, signal.SIGTERM)
    time.sleep(_GRACE_S)
    _end_group(group, signal.SIGKILL)


def print_summary(checks: Checks, parts: Sequence[Part], took_s: float) -> list[str]:
    """Prints a row a part, and returns the names of those that failed."""
    row = "{:10} {:>7} {:>10} {:>7}  {}".format
    print("\n" + row("part", "time", "processor", "budget", "result"))
    spent_s = 0
    for part in parts:
        outcome, result = checks.outcomes[part.name]
        spent_s += math.ceil(outcome.spent_s)
        print(
            row(part.name, f"{outcome.took_s:.0f} s", f"{math.ceil(outcome.spent_s)} s", f"{part.budget_s} s", result)
        )
    print(row("all", f"{took_s:.0f} s", f"{spent_s} s", f"{sum(part.budget_s for part in parts)} s", ""), flush=True)
    return [part.name for part in parts if checks.outcomes[part.name][1].startswith("FAILED")]


def run_parts(parts: Sequence[Part], arguments: Sequence[str] = ()) -> int:
    """Runs parts and prints their summary. Returns the exit status: 1 if any failed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        checks = Checks(Path(folder), arguments)
        checks.run(parts)
        failed = print_summary(checks, parts, time.monotonic() - began)
    say(f"failed: {' '.join(failed)}" if failed else "all parts passed")
    return bool(failed)


def main() -> int:
    """Runs what the command line asks for, and returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/test", formatter_class=argparse.RawDescriptionHelpFormatter, description=_HELP, allow_abbrev=False
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="the long parts too")
    which.add_argument("--nightly", action="store_true", help="all of --all, and the fault tests in full number")
    which.add_argument("--faults", action="store_true", help="the fault tests alone, in full number")
    which.add_argument("--abuse", action="store_true", help="the attacks of other users alone, in full, as root")
    parser.add_argument("--report", action="store_true", help="write the page that --faults or --abuse is for")
    parser.add_argument("--seed", type=int, help="what the fault tests draw from; each run prints its own")
    parser.add_argument("pytest", nargs="*", metavar="-- ARGUMENT", help="for pytest, such as -k WORDS")
    chosen = parser.parse_args()

    seed = secrets.randbelow(1 << 15) if chosen.seed is None else chosen.seed
    faults, attacks = list_full_parts(seed, chosen.report)
    if chosen.faults or chosen.nightly:
        say(f"seed {seed}: scripts/test --faults --seed {seed} does the same again")
    parts: tuple[Part, ...] = QUICK
    if chosen.all or chosen.nightly:
        parts = QUICK + LONG
    if chosen.nightly:
        parts += (faults,)
    elif chosen.faults or chosen.abuse:
        parts = (faults if chosen.faults else attacks,)
    try:
        return run_parts(parts, chosen.pytest)
    except KeyboardInterrupt:
        say("interrupted")
        return 128 + signal.SIGINT


def end(number: int, _frame: object) -> NoReturn:
    """Handles a signal: what is running ends on the way out."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    # The tests start hundreds of processes: each would compile streamd anew, and start a thread a core for matrices.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.update(MYPY_FORCE_COLOR="0", NO_COLOR="1", OPENBLAS_NUM_THREADS="1")
    sys.exit(main())
