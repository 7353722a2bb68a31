"""The measurement of the last step: what is measured are the batches, and a paced trainer's own time."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import frameworks
import numpy as np
import pytest


def test_a_way_that_gives_other_batches_is_not_measured() -> None:
    with pytest.raises(SystemExit, match="wrong does not give the batches"):
        frameworks.measure_way("wrong", frameworks.each(np.zeros_like), frameworks.lent_batches())


def test_a_way_is_measured_in_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()
    monkeypatch.setattr(frameworks, "time", SimpleNamespace(perf_counter=lambda: 0.5 * next(ticks)))
    rate = frameworks.measure_way("same", frameworks.each(lambda batch: batch), frameworks.lent_batches())
    assert rate == frameworks.CLOCKED * 32 / 1.0  # one round between the looks at 0.5 s and at 1.0 s


def test_a_paced_trainer_books_only_what_lies_between_asking_and_letting_go(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, slept = SimpleNamespace(own_ns=0, now_s=0.0), list[float]()

    class Batches:
        def __next__(self) -> list[int]:
            clock.own_ns += 7
            return [0] * 32

    def sleep(seconds: float) -> None:
        clock.own_ns += 1000
        clock.now_s += seconds
        slept.append(seconds)

    fake = SimpleNamespace(thread_time_ns=lambda: clock.own_ns, monotonic=lambda: clock.now_s, sleep=sleep)
    monkeypatch.setattr(frameworks, "time", fake)
    spent_ns, rate = frameworks.take_paced(cast("Any", Batches()), 10)
    assert spent_ns == 70
    assert rate == pytest.approx(frameworks.PACE)
    assert slept == pytest.approx([32 / frameworks.PACE] * 10)
