"""Feeds a target with damaged inputs for a time or a number of cases, and judges what comes of them.

An input whose effect is new, another refusal or another result, joins the corpus that later inputs are made from. That
is the only guidance there is: it costs nothing, and streamd's refusals say where an input was refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from signal import Signals
from typing import Final

from fuzz.case_process import CaseAnswer, CaseProcess, ProcessEnd
from fuzz.findings import Finding
from fuzz.mutations import mutate
from fuzz.target import FuzzTarget, compute_fault_id
from streamd.limits import MIB

_BATCH_CASES: Final = 32  # answers of a batch with a fault in each still fit into a pipe
_MAX_CORPUS: Final = 1000
_SETTLED_CASES: Final = 1000  # after so many cases, libraries have their caches and the process its size
_PROGRESS_S: Final = 10.0


@dataclass(slots=True)
class CampaignFigures:
    """What a campaign has done so far. `contained_ends` counts ends of the process that the daemon survives."""

    cases: int = 0
    units: int = 0
    effects: int = 0
    contained_ends: int = 0
    slowest_s: float = 0.0
    resident_bytes: int = 0
    elapsed_s: float = 0.0


@dataclass(slots=True)
class Campaign:
    """A run over one target. Cases depend on `seed` alone, and on the effects that earlier ones had."""

    target: FuzzTarget
    seed: int
    on_finding: Callable[[Finding], None]
    on_progress: Callable[[CampaignFigures], None]
    figures: CampaignFigures = field(default_factory=CampaignFigures)
    _seeds: list[bytes] = field(default_factory=list)
    _corpus: list[bytes] = field(default_factory=list)
    _effects: set[int] = field(default_factory=set)
    _fault_ids: set[int] = field(default_factory=set)
    _settled_bytes: int = 0

    def run(self, seconds: float, max_cases: int | None = None) -> CampaignFigures:
        """Runs cases for a time, or until `max_cases` have run. The seeds come first, and must have no fault."""
        self._seeds = list(self.target.make_seeds())
        self._corpus += self._seeds
        began_s = told_s = time.monotonic()
        batches = self._make_batches()
        with _restarted_process(self.target) as process:
            while self.figures.elapsed_s < seconds and (max_cases is None or self.figures.cases < max_cases):
                batch = next(batches)
                answers, end = process.run_cases(batch)
                self._judge_answers(batch, answers)
                if end is not None:
                    self._judge_end(batch[len(answers)], end)
                    process.restart()
                    self._settled_bytes = 0
                now_s = time.monotonic()
                self.figures.elapsed_s = now_s - began_s
                if now_s - told_s > _PROGRESS_S:
                    told_s = now_s
                    self.on_progress(self.figures)
        return self.figures

    def _make_batches(self) -> Iterator[Sequence[bytes]]:
        for start in range(0, len(self._seeds), _BATCH_CASES):
            yield self._seeds[start : start + _BATCH_CASES]
        rng = Random(self.seed)  # noqa: S311 - a seed is wanted, no secret
        while True:
            yield [self._make_case(rng) for _ in range(_BATCH_CASES)]

    def _make_case(self, rng: Random) -> bytes:
        # Half of the cases are made from the seeds, or the corpus would drift to what is refused at once.
        data = rng.choice(self._seeds if rng.getrandbits(1) else self._corpus)
        other, target = rng.choice(self._corpus), self.target
        return mutate(rng, data, other, target.edit, target.repair, edit_share=target.edit_share)

    def _judge_answers(self, batch: Sequence[bytes], answers: Sequence[CaseAnswer]) -> None:
        figures = self.figures
        for data, answer in zip(batch, answers, strict=False):
            figures.cases += 1
            figures.units += answer.units
            figures.slowest_s = max(figures.slowest_s, answer.processor_s)
            figures.resident_bytes = answer.resident_bytes
            if answer.fault:
                self._add_finding("unexpected error", answer.fault, data, answer.effect)
            elif answer.effect not in self._effects and len(self._corpus) < _MAX_CORPUS:
                self._effects.add(answer.effect)
                self._corpus.append(data)
                figures.effects += 1
            self._judge_memory(data, answer)

    def _judge_memory(self, data: bytes, answer: CaseAnswer) -> None:
        if self.figures.cases <= _SETTLED_CASES or not self._settled_bytes:
            self._settled_bytes = max(self._settled_bytes, answer.resident_bytes)
        elif answer.resident_bytes > self._settled_bytes + self.target.growth_bytes:
            grown = f"it grew from {self._settled_bytes // MIB} to {answer.resident_bytes // MIB} MiB"
            self._add_finding("memory", f"{grown} within {self.figures.cases} cases", data, compute_fault_id("memory"))
            self._settled_bytes = answer.resident_bytes

    def _judge_end(self, data: bytes, end: ProcessEnd) -> None:
        self.figures.cases += 1
        if end.status < 0 and not end.hung and Signals(-end.status) in self.target.contained:
            self.figures.contained_ends += 1
            return
        text = f"{end.said}\n{end.description}"
        self._add_finding("hang" if end.hung else "end of the process", text, data, compute_fault_id(text))

    def _add_finding(self, kind: str, text: str, data: bytes, fault_id: int) -> None:
        """Reports a finding, once for each cause, after trying it alone. A hang must repeat: machines are busy."""
        if fault_id in self._fault_ids:
            return
        repeats = kind != "memory" and find_fault(self.target, data) is not None
        if kind == "hang" and not repeats:
            return
        self._fault_ids.add(fault_id)
        self.on_finding(Finding(self.target.name, kind, text, data, fault_id, repeats))


@dataclass(slots=True)
class _RestartedProcess:
    """A process of a target, which is replaced when it has ended."""

    target: FuzzTarget
    process: CaseProcess

    def run_cases(self, batch: Sequence[bytes]) -> tuple[list[CaseAnswer], ProcessEnd | None]:
        return self.process.run_cases(batch)

    def restart(self) -> None:
        self.process.close()
        self.process = CaseProcess(self.target)


@contextmanager
def _restarted_process(target: FuzzTarget) -> Iterator[_RestartedProcess]:
    restarted = _RestartedProcess(target, CaseProcess(target))
    try:
        yield restarted
    finally:
        restarted.process.close()


def find_fault(target: FuzzTarget, data: bytes) -> Finding | None:
    """Runs one input in a new process. Returns what is wrong with the result, or None."""
    found = find_faults(target, [data])
    return found[0] if found else None


def find_faults(target: FuzzTarget, inputs: Sequence[bytes]) -> list[Finding]:
    """Runs inputs in one process, and in another after each that ends it. Returns what is wrong with the results."""
    found = []
    at = 0
    with _restarted_process(target) as process:
        while at < len(inputs):
            batch = inputs[at : at + _BATCH_CASES]
            answers, end = process.run_cases(batch)
            for data, answer in zip(batch, answers, strict=False):
                if answer.fault:
                    found.append(Finding(target.name, "unexpected error", answer.fault, data, answer.effect))
            at += len(answers)
            if end is not None:
                if end.hung or end.status >= 0 or Signals(-end.status) not in target.contained:
                    text = f"{end.said}\n{end.description}"
                    found.append(Finding(target.name, end.description, text, inputs[at], compute_fault_id(text)))
                at += 1
                process.restart()
    return found
