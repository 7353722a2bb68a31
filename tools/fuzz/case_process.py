"""Runs cases in a process of their own, which they may crash, hang or fill with memory.

The parent writes a batch of cases to a file, and a byte to the process's standard input. The process answers each case
on its standard output, so the number of answers says at which case it ended. `python -m fuzz.case_process TARGET FILE`
is that process.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

from fuzz.target import FuzzTarget, RunCase, load_target, run_case
from streamd.core.log import LineFormatter
from streamd.limits import WORKER_ENVIRONMENT

_LENGTH: Final = struct.Struct("<I")
_ANSWER: Final = struct.Struct("<IIIIH")  # effect, units, resident pages, microseconds of the processor, fault's bytes
_PAGE_BYTES: Final = resource.getpagesize()
_START_S: Final = 120.0  # to import the libraries of a target, on a busy machine
_LAST_WORDS_S: Final = 5.0  # for the traceback of a process that hangs
_MAX_STDERR_CHARS: Final = 4000
_READ_BYTES: Final = 1 << 16
_READY: Final = b"R"  # the first byte of the output, before all answers
_STDOUT, _STDERR = 1, 2


@dataclass(frozen=True, slots=True)
class CaseAnswer:
    """What the process says of one case; `fault` is a traceback, or empty. It was `resident_bytes` large after it."""

    effect: int
    units: int
    resident_bytes: int
    processor_s: float
    fault: str


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process ended before it answered all cases: hung, or with an exit status (negative: by a signal)."""

    hung: bool
    status: int
    said: str

    @property
    def description(self) -> str:
        if self.hung:
            return "hung"
        return f"killed by {signal.Signals(-self.status).name}" if self.status < 0 else f"exit status {self.status}"


class CaseProcess:
    """A running process for the cases of one target. After an end it is of no more use, and must be closed."""

    def __init__(self, target: FuzzTarget) -> None:
        self._target = target
        self._folder = TemporaryDirectory(prefix="fuzz-")
        self._cases = Path(self._folder.name) / "cases"
        self._stderr = Path(self._folder.name) / "stderr"
        environment = {**os.environ, **WORKER_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fuzz.case_process", target.name, str(self._cases)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                cwd=self._folder.name,
            )
        self._is_ready = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run_cases(self, cases: Sequence[bytes]) -> tuple[list[CaseAnswer], ProcessEnd | None]:
        """Runs cases in order. Returns an answer for each; fewer, and how the process ended, if it did."""
        self._cases.write_bytes(b"".join(_LENGTH.pack(len(each)) + each for each in cases))
        answers, waiting = list[CaseAnswer](), b""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the process was started without pipes")
        if not self._is_ready:
            # The time to import libraries is no case's own.
            self._is_ready = (
                bool(select.select([stdout], [], [], _START_S)[0]) and os.read(stdout.fileno(), 1) == _READY
            )
        try:
            os.write(stdin.fileno(), b"\n")
        except BrokenPipeError:
            return answers, self._describe_end(hung=False)
        while len(answers) < len(cases):
            if not select.select([stdout], [], [], self._target.deadline_s)[0]:
                return answers, self._end_hung_process()
            if not (part := os.read(stdout.fileno(), _READ_BYTES)):
                return answers, self._describe_end(hung=False)
            waiting = _take_answers(waiting + part, answers)
        return answers, None

    def _end_hung_process(self) -> ProcessEnd:
        self._process.send_signal(signal.SIGABRT)  # its fault handler writes where it hangs
        try:
            self._process.wait(_LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._describe_end(hung=True)

    def _describe_end(self, *, hung: bool) -> ProcessEnd:
        status = self._process.wait()
        return ProcessEnd(hung, status, self._stderr.read_text(errors="replace")[-_MAX_STDERR_CHARS:])

    def close(self) -> None:
        """Ends the process, and removes its files."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._folder.cleanup()


def _take_answers(data: bytes, answers: list[CaseAnswer]) -> bytes:
    """Adds the whole answers in `data` to `answers`, and returns the rest."""
    at = 0
    while at + _ANSWER.size <= len(data):
        effect, units, pages, micros, length = _ANSWER.unpack_from(data, at)
        end = at + _ANSWER.size + length
        if end > len(data):
            break
        fault = data[at + _ANSWER.size : end].decode(errors="replace")
        answers.append(CaseAnswer(effect, units, pages * _PAGE_BYTES, micros / 1e6, fault))
        at = end
    return data[at:]


class _FormattingHandler(logging.Handler):
    """Formats each record as the daemon's log does, and drops the text: that formatting may fail, too."""

    def emit(self, record: logging.LogRecord) -> None:
        self.format(record)


def _apply_limits(target: FuzzTarget) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (target.data_bytes, target.data_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    faulthandler.enable()
    handler = _FormattingHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _answer_cases(target: FuzzTarget, run: RunCase, cases: Path, output: int) -> None:
    """Runs batches until the standard input ends."""
    memory = os.open("/proc/self/statm", os.O_RDONLY)
    while os.read(0, 1):
        data, at = cases.read_bytes(), 0
        while at < len(data):
            start = at + _LENGTH.size
            at = start + int(_LENGTH.unpack_from(data, start - _LENGTH.size)[0])
            began_ns = time.process_time_ns()
            result = run_case(target, run, data[start:at])
            micros = min((time.process_time_ns() - began_ns) // 1000, 0xFFFFFFFF)
            pages = int(os.pread(memory, 100, 0).split()[1])
            fault = result.fault.encode(errors="replace")
            os.write(output, _ANSWER.pack(result.effect, result.units, pages, micros, len(fault)) + fault)


def main() -> None:
    """Runs the cases of the target in the first argument, from the file in the second."""
    output = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)  # nothing that a case prints may become an answer
    target = load_target(sys.argv[1])
    _apply_limits(target)
    with target.open_runner() as run:
        os.write(output, _READY)
        _answer_cases(target, run, Path(sys.argv[2]), output)


if __name__ == "__main__":
    main()
