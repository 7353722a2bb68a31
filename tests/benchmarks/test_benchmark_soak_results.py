"""What a soak writes down and asks the kernel, its judgement, which must be able to say no, its page and picture."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import threading
from dataclasses import astuple, fields, replace
from pathlib import Path

import numpy as np
import pytest
import soak_results as results
from PIL import Image
from report import Machine
from soak_results import (
    LEAST_ROWS,
    PANELS,
    Fit,
    Row,
    RowTable,
    Totals,
    Use,
    fits,
    most,
    overdrawn,
    slope,
    slots_bytes,
    use_of,
)

MIB = 1 << 20

ROW = Row(
    time_s=0.0,
    life=1,
    daemon_age_s=0.0,
    daemon_bytes=50 * MIB,
    daemon_descriptors=60,
    daemon_threads=5,
    slots_bytes=20 * MIB,
    accounted_bytes=20 * MIB,
    workers=3,
    worker_bytes=30 * MIB,
    worker_descriptors=20,
    trainers=4,
    trainer_bytes=40 * MIB,
    trainer_descriptors=25,
    trainer_threads=4,
    trainers_bytes=160 * MIB,
    batches_per_s=120.0,
    batches=0,
    epochs=0,
    faults=0,
)


def hour(*, every_s: float = 10.0, life_s: float = 3600.0) -> list[Row]:
    """An hour in which nothing grows; a new daemon begins every `life_s`."""
    return [
        replace(ROW, time_s=at, life=1 + int(at // life_s), daemon_age_s=at % life_s)
        for at in (every_s * number for number in range(int(3600 / every_s)))
    ]


def test_what_is_written_is_a_line_a_row_with_gaps_as_gaps(tmp_path: Path) -> None:
    table = RowTable(tmp_path / "soak.csv")
    for row in (ROW, replace(ROW, time_s=10.5, daemon_bytes=None, life=2)):
        table.add(row)
    head, first, second = csv.reader((tmp_path / "soak.csv").read_text().splitlines())

    assert head == [field.name for field in fields(Row)]
    assert [float(cell) for cell in first] == list(astuple(ROW))
    assert second[:5] == ["10.5", "2", "0.0", "", "60"]


def test_descriptors_threads_and_slots_are_those_of_the_process() -> None:
    before, end = use_of(os.getpid()), threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    descriptor = os.memfd_create("slot")
    try:
        os.write(descriptor, b"x" * MIB)
        after = use_of(os.getpid())
        assert before.descriptors is not None
        assert before.threads is not None
        assert (after.descriptors, after.threads) == (before.descriptors + 1, before.threads + 1)
        assert slots_bytes(os.getpid()) == MIB
    finally:
        end.set()
        thread.join()
        os.close(descriptor)


def test_nothing_is_known_of_a_process_that_has_ended() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    assert (use_of(ended.pid), slots_bytes(ended.pid)) == (Use(), None)
    assert (most([None, 3, None, 2]), most([None])) == (3, None)


def test_totals_add_up() -> None:
    assert Totals(10, 1, 2, 1) + Totals(5, 0, 1, 2) == Totals(15, 1, 3, 3)


def growing(rows: list[Row]) -> set[tuple[str, str]]:
    return {(each.curve, each.over) for each in fits(rows) if not each.flat}


def test_a_slope_is_not_moved_by_a_few_wild_values() -> None:
    values = [3.0 * time for time in range(20)]

    assert slope(range(20), values) == pytest.approx(3)
    assert slope(range(20), [*values[:5], 1e9, *values[6:]]) == pytest.approx(3, rel=0.01)


def test_an_hour_in_which_nothing_grows_is_flat() -> None:
    found = fits(hour())

    assert len(found) == 8 + 5  # all curves over all, and the daemon's over its one life
    assert growing(hour()) == set()


@pytest.mark.parametrize(
    ("name", "growth", "curve"),
    [
        ("daemon_bytes", 6 * MIB, "memory of the daemon, MiB"),
        ("daemon_descriptors", 6, "descriptors of the daemon"),
        ("daemon_threads", 2, "threads of the daemon"),
        ("worker_bytes", 6 * MIB, "memory of the largest worker, MiB"),
        ("trainer_bytes", 6 * MIB, "memory of the lasting trainer, MiB"),
        ("trainer_descriptors", 6, "descriptors of the lasting trainer"),
        ("trainer_threads", 2, "threads of the lasting trainer"),
    ],
)
def test_what_grows_within_an_hour_is_told_by_name(name: str, growth: int, curve: str) -> None:
    rows = [replace(row, **{name: getattr(row, name) + int(growth * row.time_s / 3600)}) for row in hour()]

    assert (curve, "all") in growing(rows)
    assert {each for each, _ in growing(rows)} == {curve}


def test_a_leak_that_each_new_daemon_begins_again_is_found_within_a_life() -> None:
    rows = [replace(row, daemon_bytes=50 * MIB + int(10 * MIB * row.daemon_age_s / 600)) for row in hour(life_s=600.0)]

    assert ("memory of the daemon, MiB", "daemon 2") in growing(rows)


def test_a_start_is_no_growth_and_a_short_run_says_nothing() -> None:
    young = [replace(ROW, time_s=time, daemon_age_s=time, daemon_bytes=MIB * int(1 + time)) for time in range(29)]

    assert fits(young) == []
    assert fits(hour()[: LEAST_ROWS - 1]) == []


def test_values_that_are_not_known_are_left_out() -> None:
    rows = [replace(row, daemon_bytes=None) if number % 2 else row for number, row in enumerate(hour())]

    assert [each.median for each in fits(rows) if each.curve == "memory of the daemon, MiB"] == [50.0, 50.0]


def test_shrinking_is_flat() -> None:
    assert Fit("a curve", "all", 60.0, median=10.0, growth=-5.0, allowed=1.0).flat


@pytest.mark.parametrize("counted", ["slots_bytes", "accounted_bytes"])
def test_more_batch_memory_than_allowed_is_told(counted: str) -> None:
    assert overdrawn([ROW], 20 * MIB) == []
    assert len(overdrawn([ROW, replace(ROW, **{counted: 20 * MIB + 1})], 20 * MIB)) == 1


FLAT = Fit("threads of the daemon", "all", 59.0, median=5.0, growth=0.0, allowed=1.0)
GROWN = replace(FLAT, growth=2.0)
GOOD = results.Outcome(
    Machine("abc", "2026-01-01", 4, "3.11"),
    60.0,
    7,
    {"kill -9 of a worker": 3},
    Totals(1000, 10, 5, 8),
    (24, 17),
    (FLAT,),
    (),
)


def test_the_page_says_how_to_do_it_again_and_what_was_done() -> None:
    said = results.render(GOOD)

    assert "`scripts/bench soak --minutes 60 --seed 7`" in said
    assert "| kill -9 of a worker | 3 |" in said
    assert "24, 17 batches on loan" in said
    assert "**as promised**" in said


@pytest.mark.parametrize("worse", [{"fits": (FLAT, GROWN)}, {"problems": ("a trainer hangs",)}])
def test_a_problem_or_a_growing_curve_makes_it_a_no(worse: dict[str, object]) -> None:
    bad = replace(GOOD, **worse)  # type: ignore[arg-type]  # the table's keys are fields

    assert GOOD.ok
    assert not bad.ok
    assert "**NOT AS PROMISED**" in results.render(bad)
    assert ("**GROWS**" in results.render(bad), "- a trainer hangs" in results.render(bad)) == (
        "fits" in worse,
        "problems" in worse,
    )


def test_a_curve_is_cut_where_a_new_daemon_began_and_where_nothing_is_known() -> None:
    rows = [replace(ROW, time_s=60.0 * n, life=1 + n // 3, daemon_threads=None if n == 4 else n) for n in range(7)]

    assert results.Panel("", {}).points("daemon_threads", rows) == [
        [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0)],
        [(3.0, 3.0)],
        [(5.0, 5.0)],
        [(6.0, 6.0)],
    ]
    assert results.restarts(rows) == [3.0, 6.0]


@pytest.mark.long
def test_every_panel_of_the_picture_shows_a_curve(tmp_path: Path) -> None:
    rows = hour(every_s=60.0, life_s=1800.0)
    results.save(replace(GOOD, fits=tuple(fits(rows))), rows, tmp_path)
    with Image.open(tmp_path / "soak.png") as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    height, width = pixels.shape[0] // (len(PANELS) // 2), pixels.shape[1] // 2
    blue = np.abs(pixels - (44, 108, 188)).sum(axis=2) < 60

    shown = [blue[y * height : (y + 1) * height, x * width : (x + 1) * width].any() for y in range(4) for x in range(2)]
    assert shown[:7] == [True] * 7  # the last counts faults, and there were none: its curve lies on the axis
    assert (tmp_path / "soak.md").read_text() == results.render(replace(GOOD, fits=tuple(fits(rows))))
