"""Which stage an epoch was limited by, in figures, and what people read of it."""

from __future__ import annotations

import pytest

from streamd.core.epoch_timing import Effort, EpochClock, Stage, Supply, Supplying, Timing, limit

FEW_READY = {"ready": 10, "awaited": 90}


@pytest.mark.parametrize(
    ("waited_s", "supply", "verdict"),
    [
        (5.0, Supply(0, 100, 900.0, 100.0, 1.0), "none"),
        (5.1, Supply(0, 100, 900.0, 100.0, 1.0), "disk"),
        (60.0, Supply(51, 49, 900.0, 100.0, 1.0), "transport"),
        (60.0, Supply(50, 50, 900.0, 100.0, 1.0), "disk"),
        (60.0, Supply(**FEW_READY, reading_s=51.0, working_s=49.0, at_work=0.1), "disk"),
        (60.0, Supply(**FEW_READY, reading_s=50.0, working_s=50.0, at_work=1.0), "decode"),
        (60.0, Supply(**FEW_READY, reading_s=0.0, working_s=50.0, at_work=0.75), "decode"),
        (60.0, Supply(**FEW_READY, reading_s=0.0, working_s=50.0, at_work=0.74), "transport"),
        (60.0, Supply(), "transport"),
    ],
)
def test_an_epoch_of_a_hundred_seconds_is_limited_by_one_stage(waited_s: float, supply: Supply, verdict: Stage) -> None:
    assert limit(100.0, waited_s, supply) == verdict


def test_an_epoch_without_any_time_is_limited_by_nothing() -> None:
    assert limit(0.0, 0.0, Supply()) == "none"


@pytest.mark.parametrize(
    ("verdict", "supply", "reason"),
    [
        ("none", Supply(), "the trainer itself is the limit"),
        ("disk", Supply(0, 9, 3.0, 1.0, 1.0), "disk is the limit: workers waited for reads 75% of their time"),
        ("decode", Supply(0, 9, 1.0, 3.0, 0.98), "decode is the limit: 98% of the workers were busy"),
        ("transport", Supply(9, 1, 1.0, 3.0, 1.0), "transport is the limit: 90% of the batches lay ready"),
        (
            "transport",
            Supply(1, 9, 1.0, 3.0, 0.5),
            "transport is the limit: 50% of the workers were busy, and not with reading",
        ),
    ],
)
def test_the_line_gives_both_times_and_the_reason(verdict: Stage, supply: Supply, reason: str) -> None:
    line = Timing(3, 43.2, 2.0, verdict, supply).line
    assert line == f"epoch 3 if data were free: 41 s; with data: 43 s; {reason}"


def test_short_times_show_hundredths_and_none_is_below_zero() -> None:
    assert Timing(0, 1.5, 1.75, "decode", Supply()).line.startswith(
        "epoch 0 if data were free: 0.00 s; with data: 1.50 s;"
    )


def test_an_epoch_lasts_from_the_first_wish_to_the_last_batch_and_only_its_own_waits_count() -> None:
    clock = EpochClock()
    clock.begin(100 * 10**9, 30.0)
    clock.ended_ns = 110 * 10**9
    supply = Supply(0, 5, 0.0, 8.0, 1.0)
    assert clock.timing(2, 34.0, supply) == Timing(2, 10.0, 4.0, "decode", supply)


def test_an_epoch_that_was_never_begun_has_taken_no_time() -> None:
    assert EpochClock().timing(0, 0.0, Supply()) == Timing(0, 0.0, 0.0, "none", Supply())


def test_what_went_to_a_trainer_is_counted_anew_after_each_epoch() -> None:
    supplying = Supplying()
    supplying.add(3, [Effort(1.0, 2.0, 1.0)])
    supplying.add(1, [Effort(3.0, 0.0, 0.5)])
    supplying.add(4, [])
    assert supplying.take() == Supply(6, 2, 4.0, 2.0, 0.75)
    supplying.add(1, [])
    assert supplying.take() == Supply(1, 0, 0.0, 0.0, 0.0)
