"""The stage that limited an epoch, its figures and its summary."""

from __future__ import annotations

import pytest

from streamd.core.epoch_timing import (
    BOTTLENECK_ADVICE,
    BatchEffort,
    BatchSupply,
    Bottleneck,
    EpochBottleneck,
    EpochClock,
    EpochTiming,
    SupplyCounter,
    find_bottleneck,
    find_epoch_bottleneck,
    format_timing_lines,
)

FEW_READY = {"ready": 10, "awaited": 90}


@pytest.mark.parametrize(
    ("waited_s", "supply", "verdict"),
    [
        (5.0, BatchSupply(0, 100, 900.0, 100.0, 1.0), "none"),
        (5.1, BatchSupply(0, 100, 900.0, 100.0, 1.0), "disk"),
        (60.0, BatchSupply(51, 49, 900.0, 100.0, 1.0), "transport"),
        (60.0, BatchSupply(50, 50, 900.0, 100.0, 1.0), "disk"),
        (60.0, BatchSupply(**FEW_READY, reading_s=51.0, working_s=49.0, at_work=0.1), "disk"),
        (60.0, BatchSupply(**FEW_READY, reading_s=50.0, working_s=50.0, at_work=1.0), "decode"),
        (60.0, BatchSupply(**FEW_READY, reading_s=0.0, working_s=50.0, at_work=0.75), "decode"),
        (60.0, BatchSupply(**FEW_READY, reading_s=0.0, working_s=50.0, at_work=0.74), "transport"),
        (60.0, BatchSupply(), "transport"),
    ],
)
def test_an_epoch_of_a_hundred_seconds_is_limited_by_one_stage(
    waited_s: float, supply: BatchSupply, verdict: EpochBottleneck
) -> None:
    assert find_epoch_bottleneck(100.0, waited_s, supply) == verdict


def test_an_epoch_without_any_time_is_limited_by_nothing() -> None:
    assert find_epoch_bottleneck(0.0, 0.0, BatchSupply()) == "none"


@pytest.mark.parametrize(
    ("verdict", "supply", "reason"),
    [
        ("none", BatchSupply(), "the trainer is the limit: good, data come faster than the trainer takes them; only a"),
        (
            "disk",
            BatchSupply(0, 9, 3.0, 1.0, 1.0),
            "disk is the limit (workers waited for reads 75% of their time): bad, trainers wait while workers read; a",
        ),
        (
            "decode",
            BatchSupply(0, 9, 1.0, 3.0, 0.98),
            "decoding is the limit (98% of the workers were busy): bad, trainers wait while all workers decode; more",
        ),
        (
            "transport",
            BatchSupply(9, 1, 1.0, 3.0, 1.0),
            "transport is the limit (90% of the batches were ready): bad, trainers wait though disk and workers could",
        ),
        (
            "transport",
            BatchSupply(1, 9, 1.0, 3.0, 0.5),
            "transport is the limit (50% of the workers were busy, and not with reading): bad, trainers wait though",
        ),
    ],
)
def test_the_summary_gives_both_times_the_bottleneck_and_a_remedy(
    verdict: EpochBottleneck, supply: BatchSupply, reason: str
) -> None:
    line = EpochTiming(3, 43.2, 2.0, verdict, supply).summary_text
    assert line.startswith(f"epoch 3 if data were free: 41 s; with data: 43 s; {reason}")


def test_a_list_of_epochs_ends_with_one_advice_for_each_bottleneck() -> None:
    timings = [EpochTiming(epoch, 43.0, 2.0, "none", BatchSupply()) for epoch in (0, 1)]
    slow = EpochTiming(1, 43.0, 20.0, "decode", BatchSupply(0, 9, 1.0, 3.0, 0.98))
    assert format_timing_lines([timings]) == [
        *(each.short_text for each in timings),
        BOTTLENECK_ADVICE["none"].sentence,
    ]
    assert format_timing_lines([timings[:1], [slow]]) == [
        f"trainer 1, {timings[0].short_text}",
        f"trainer 2, {slow.short_text}",
        BOTTLENECK_ADVICE["none"].sentence,
        BOTTLENECK_ADVICE["decode"].sentence,
    ]
    assert format_timing_lines([[slow]]) == [slow.summary_text]
    assert format_timing_lines([]) == []


def test_short_times_show_hundredths_and_are_never_negative() -> None:
    assert EpochTiming(0, 1.5, 1.75, "decode", BatchSupply()).summary_text.startswith(
        "epoch 0 if data were free: 0.00 s; with data: 1.50 s;"
    )


def test_an_epoch_is_timed_from_its_start_to_its_last_batch_with_its_own_waits() -> None:
    clock = EpochClock()
    clock.start_epoch(100 * 10**9, 30.0)
    clock.ended_ns = 110 * 10**9
    supply = BatchSupply(0, 5, 0.0, 8.0, 1.0)
    assert clock.compute_timing(2, 34.0, supply) == EpochTiming(2, 10.0, 4.0, "decode", supply)


def test_an_epoch_that_never_began_took_no_time() -> None:
    assert EpochClock().compute_timing(0, 0.0, BatchSupply()) == EpochTiming(0, 0.0, 0.0, "none", BatchSupply())


def test_the_supply_counter_starts_at_zero_in_each_epoch() -> None:
    supplying = SupplyCounter()
    supplying.add_batches(3, [BatchEffort(1.0, 2.0, 1.0)])
    supplying.add_batches(1, [BatchEffort(3.0, 0.0, 0.5)])
    supplying.add_batches(4, [])
    assert supplying.take_and_reset_supply() == BatchSupply(6, 2, 4.0, 2.0, 0.75)
    supplying.add_batches(1, [])
    assert supplying.take_and_reset_supply() == BatchSupply(1, 0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("asking", "waiting", "reading", "decoding", "slot_wait", "limit"),
    [
        (0, 0.0, 0.5, 0.5, 1.0, "nobody"),
        (2, 0.1, 0.1, 0.9, 1.0, "none"),
        (2, 0.2, 0.1, 0.9, 0.6, "memory"),
        (2, 0.2, 0.1, 0.9, 0.4, "decode"),
        (2, 0.2, 0.6, 0.5, 0.0, "disk"),
        (2, 0.2, 0.1, 0.2, 0.0, "transport"),
        (2, 1.0, 0.0, 0.0, 0.0, "pending"),
    ],
)
def test_the_limit_now_follows_from_where_time_goes(
    asking: int, waiting: float, reading: float, decoding: float, slot_wait: float, limit: Bottleneck
) -> None:
    assert find_bottleneck(asking, waiting, reading, decoding, slot_wait) == limit
