"""A fault that comes many times within one epoch, each time while batches lie at a trainer that it has not taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import Final, Protocol

from killers import wait_for_outstanding, wait_gone
from logged import LoggedTrainer, problems
from oracle import Truth

from streamd.core.text import format_count

_STRIDE: Final = 16  # batches between two strikes, on the average
_SPREAD: Final = 6  # so that any two are further apart than a credit of 8: each connection delivers something


def images_for(strikes: int) -> int:
    """Images of a stream, in batches of 2, whose epoch has room for so many strikes."""
    return 2 * _STRIDE * (strikes + 1)


def counts_of(strikes: int, dice: Random) -> list[int]:
    """The batch counts at which the strikes come."""
    return [_STRIDE * number + dice.randrange(2, 2 + _SPREAD) for number in range(strikes)]


class Struck(Protocol):
    """A daemon that comes back."""

    def workers(self) -> list[int]:
        """The pids of its decode processes."""
        ...

    def start(self) -> object:
        """Returns when it serves again."""
        ...


@dataclass(slots=True)
class Course:
    """What was seen: batches that lay untaken at each strike, and the time from it to the daemon's being there again.

    `struck_ns` and `ready_ns` are of the monotonic clock; `start_s` is what starting the daemon took.
    """

    outstanding: list[int] = field(default_factory=list)
    struck_ns: list[int] = field(default_factory=list)
    ready_ns: list[int] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)

    def pauses_s(self, trainer: LoggedTrainer) -> list[float]:
        """From each strike to the trainer's next batch from the daemon that came after it."""
        firsts = [next((step.ns for step in trainer.steps if step.ns > ready), None) for ready in self.ready_ns]
        return [(first - struck) / 1e9 for first, struck in zip(firsts, self.struck_ns, strict=True) if first]

    def told(self, trainer: LoggedTrainer) -> str:
        """A sentence for the report."""
        strikes = format_count(len(self.outstanding), "strike")
        met = f"{strikes}, {min(self.outstanding)} to {max(self.outstanding)} batches untaken at each"
        pauses = self.pauses_s(trainer)
        if not pauses:
            return f"{met}; the epoch was over before the daemon's start was seen"
        beyond = [pause - start for pause, start in zip(pauses, self.start_s, strict=False)]
        return (
            f"{met}; to the next batch {median(pauses):.2f} s (median), {max(pauses):.2f} s (worst), of "
            f"which beyond the daemon's start-up {median(beyond):.2f} and {max(beyond):.2f} s"
        )


def strike_often(
    daemon: Struck, trainers: Sequence[LoggedTrainer], strikes: int, dice: Random, strike: Callable[[], object]
) -> Course:
    """Strikes the daemon at so many batch counts of the epoch, drawn by the dice, and starts it again each time.

    The first trainer stands at its gate when it happens, with batches lying ready; the others have just been let go.
    """
    held, *others = trainers
    course = Course()
    counts = counts_of(strikes, dice)
    for each in trainers:
        each.allow(counts[0])
    for count, following in zip(counts, [*counts[1:], -1], strict=True):
        for each in trainers:
            each.wait_for(count)
        course.outstanding.append(wait_for_outstanding(held))
        course.workers += daemon.workers()
        for each in others:
            each.allow(following)
        course.struck_ns.append(time.monotonic_ns())
        strike()
        held.allow(following)
        began_s = time.monotonic()
        daemon.start()
        course.start_s.append(time.monotonic() - began_s)
        course.ready_ns.append(time.monotonic_ns())
    for each in trainers:
        each.finish()
    return course


def agree(truth: Truth, trainers: Sequence[LoggedTrainer], course: Course) -> None:
    """Nothing lost, repeated or wrong; no trainer began again; every strike met batches that the first had not taken.

    And that one noticed it. The others may have come to the epoch's end before a strike that takes its time.
    """
    strikes = len(course.struck_ns)
    assert problems(truth, *trainers) == []
    accounts = [each.judge(truth) for each in trainers]
    assert [(each.lives, each.steps) for each in accounts] == [(1, truth.spec.batches)] * len(trainers)
    assert trainers[0].steps[-1].connection >= strikes
    assert min(course.outstanding) > 0
    wait_gone(course.workers)
