"""What each benchmark makes of its measurements, from made-up ones: ratios within a round, and the bounds on them."""

from __future__ import annotations

from dataclasses import replace

import fits
import frameworks
import gates
import growth
import hdf5
import independence
import lmdb_rows
import pack
import pytest
import restart
import run
from processes import BatchCost
from report import Machine, Report

import monitoring
from streamd.limits import BACKOFF_MAX_S

MACHINE = Machine("abc", "2026-01-01", 4, "3.11")


def values(report: Report) -> list[float]:
    """What its bounds are judged by."""
    return [bound.value for section in report.sections for bound in section.bounds]


def test_a_fit_is_held_against_what_is_lower_of_probe_and_constant() -> None:
    jax = [fits.Fit(constant=100.0, stream=stream, probe=1000.0) for stream in (70.0, 80.0, 90.0)]
    slow = [replace(fit, probe=50.0, stream=39.0) for fit in jax]
    report = fits.build_report(MACHINE, {"jax": jax, "torch": slow})
    assert values(report) == [0.8, 0.78]
    assert "| jax: of it | **0.80** | 0.70 | 0.80 | 0.90 |" in report.render()
    assert "torch, of it: 0.78, at least 0.80 is promised: **missed**" in report.render()


def test_a_pack_is_held_to_the_slower_of_decoder_and_disk() -> None:
    rounds = [pack.Round(1000.0, disk, 450.0, 2.0) for disk in (500.0, 2000.0, 550.0)]
    report = pack.build_report(MACHINE, 20_000, 2, {"npy": rounds})
    assert values(report) == [450 / 550]
    assert "| of the slower of both | **0.82** | 0.90 | 0.45 | 0.82 |" in report.render()


def test_the_first_hdf5_file_decides_by_ratios_within_a_round() -> None:
    plain = hdf5.File("Not compressed", 20_000, 2, (100.0, 300.0, 200.0), (400.0, 900.0, 500.0))
    packed = hdf5.File("Compressed", 4_000, 5, (100.0,) * 3, (50.0,) * 3)
    report = hdf5.build_report(MACHINE, "PyTables 3", [plain, packed])
    assert (values(report), report.holds) == ([3.0], True)
    assert not hdf5.build_report(MACHINE, "PyTables 3", [packed, plain]).holds


def test_a_clients_cost_is_told_for_a_pace_and_not_for_a_batch() -> None:
    client = frameworks.Client(batch=32, rate=10_000.0, loop_us=50.0, io_us=30.0, zmq_us=16.0)
    assert client.of_core == pytest.approx(3.0)
    assert replace(client, batch=64).of_core == pytest.approx(1.5)
    report = frameworks.build_report(MACHINE, {"TensorFlow: copied": [1.0] * 3}, [client] * 3)
    assert "| ZeroMQ's thread, µs a batch | **16** | 16 | 16 | 16 |" in report.render()


@pytest.mark.parametrize(("scrape_s", "holds"), [(0.0169, True), (0.0171, False)])
def test_being_watched_is_held_to_a_hundredth_of_what_daemon_and_workers_take(scrape_s: float, holds: bool) -> None:
    look = monitoring.Look(0.002, 0.0035, 17_000)
    cost = monitoring.Cost(8, 90_000.0, 0.25, 1.75, replace(look, cpu_s=scrape_s), 0.001, look)
    assert monitoring.build_report(MACHINE, cost).holds is holds
    assert cost.build_row("a scrape", 0.002, look) == ("a scrape", "17,000", "3.5", "2.00", "0.80%", "**0.10%**")


@pytest.mark.parametrize(("gated_s", "holds"), [(1.04, True), (1.06, False)])
def test_a_gate_is_held_to_a_twentieth_of_the_processor_time(gated_s: float, holds: bool) -> None:
    rounds = [gates.Round(1.0, gated_s), gates.Round(2.0, 2 * gated_s), gates.Round(1.0, 9.0)]
    report = gates.build_report(MACHINE, 100, rounds)
    assert report.holds is holds
    assert "| a trainer of the daemon's own user | 10.00 | 10.00 |" in report.render()


def test_lmdbs_library_at_its_best_is_held_against_offsets_within_a_round() -> None:
    ways = {lmdb_rows.OFFSETS: [1.0, 2.0, 1.0], lmdb_rows.LIBRARY: [2.0, 2.0, 1.5], lmdb_rows.PARSED: [9.0] * 3}
    level = {**ways, lmdb_rows.LIBRARY: ways[lmdb_rows.OFFSETS]}
    assert values(lmdb_rows.build_report(MACHINE, {32: ways, 128: level})) == [1.5]
    assert not lmdb_rows.build_report(MACHINE, {128: level}).holds


@pytest.mark.parametrize(("over_s", "holds"), [(-0.01, True), (0.01, False)])
def test_a_restart_is_held_to_three_seconds_with_a_trainers_longest_pause(over_s: float, holds: bool) -> None:
    quick = restart.Restart(0.5, 0.25, 0.0, 0.0)
    late = replace(quick, opened_s=3.0 - BACKOFF_MAX_S - quick.ready_s + over_s)
    sizes = [restart.Size(10_000, 250_000, (quick,) * 3), restart.Size(20_000, 1, (late, late, quick))]
    report = restart.build_report(MACHINE, sizes)
    assert report.holds is holds
    assert "| 10,000 | 0.2 | 0.50 | 0.25 | 0.00 | 0.00 | **0.75** | 0.75 |" in report.render()


def test_the_parts_of_a_restart_are_all_between_the_command_and_the_batch() -> None:
    found = restart.split_restart(100.0, [100.5, 101.5, 101.625], 103.0)
    assert found == restart.Restart(0.5, 1.0, 0.125, 1.375)
    assert found.all_s == 3.0


def test_the_log_tells_when_each_event_came_first_and_of_a_line_that_is_not_whole_nothing() -> None:
    moments = {"manifest.reused": 1.0, "daemon.ready": 2.5, "session.began": 3.0}
    lines = [f'{{"time": "1970-01-01T00:00:{at:06.3f}+00:00", "event": "{event}"}}' for event, at in moments.items()]
    assert run.parse_event_times("\n".join([*lines, lines[0].replace("01.", "04."), ""])) == moments
    assert run.parse_event_times("\n".join(lines)).keys() == {"manifest.reused", "daemon.ready"}
    assert run.parse_event_times("") == {}


def test_what_a_stopped_trainer_costs_is_taken_within_a_round_and_the_pause_without_the_start() -> None:
    three, slow = independence.Take((100.0, 102.0, 98.0), 5.0), independence.Take((94.0,) * 3, 5.5)
    kill = independence.Kill(startup_s=1.0, pauses_s=(1.25, 3.125, 1.25))
    report = independence.build_report(MACHINE, 7, [independence.Round(three, slow, three)], [kill])
    assert values(report) == [0.94, 1.0, 2.125]
    assert "| stopped before its first batch / nobody stopped | **1.100** | 1.100 | 1.100 |" in report.render()


TAKE = growth.Take((1000.0, 1100.0, 900.0), daemon_us=10.0, workers_us=120.0, trainer_us=6.0)
TURN = growth.Turn(1.0, 1.2, TAKE, daemon=30_000_000, worker=20_000_000, trainer=40_000_000, mapped=500_000)
SMALL = growth.Size(10_000, growth.Listing(0.5, 0.4, 100 << 20, 0, 510_000), (TURN,) * 3)
GROWN = replace(TURN, worker=39_800_000, mapped=49_000_000)  # 20 bytes for each of 990,000
LARGE = growth.Size(1_000_000, growth.Listing(5.0, 5.5, 400 << 20, 2, 49_000_000), (GROWN,) * 3)


def grow(**changed: object) -> growth.Size:
    return replace(LARGE, turns=tuple(replace(turn, **changed) for turn in LARGE.turns))  # type: ignore[arg-type]  # keys are fields


@pytest.mark.parametrize(
    ("worse", "said"),
    [
        (grow(worker=20_000_000 + 101 * 990_000), "The most bytes a sample: 101"),
        (grow(trainer=40_000_000 + 101 * 990_000), "The most bytes a sample: 101"),
        (grow(first_batch_s=3.1), "a first batch of 1,000,000 samples: 3.10"),
        (grow(take=replace(TAKE, rates=(880.0,))), "1,000,000 samples, of the smallest rate: 0.88"),
        (replace(LARGE, listing=replace(LARGE.listing, manifest_bytes=102_000_000)), "The most bytes a sample: 102"),
    ],
    ids=["worker", "trainer", "start", "rate", "manifest"],
)
def test_a_figure_of_growth_that_misses_is_named(worse: growth.Size, said: str) -> None:
    companies = {1: [TAKE] * 3, 2: [TAKE] * 3}
    held = growth.build_report(MACHINE, 20_000, [SMALL, LARGE], companies)
    assert held.holds
    assert "| 1,000,000 | 49.0 | 0.0 | 20.0 | 0.0 | 49.0 |" in held.render()
    assert "| 2 | 1,000 | 1.00 | 3,000 | 10.0 | 120.0 | 6.0 |" in held.render()
    missed = growth.build_report(MACHINE, 20_000, [SMALL, worse], companies)
    assert [line for line in missed.render().splitlines() if said in line and "**missed**" in line]


def test_the_spine_tells_rates_ratios_and_the_processor_time_of_a_batch() -> None:
    first = run.Round(limit=1000.0, one=800.0, four=(400.0, 400.0, 500.0, 600.0), cost=BatchCost(2.0, 0.25))
    upkeep = run.Upkeep(1 << 20, (2 << 20, 3 << 20), 4 << 20, 0.01)
    page = run.build_report(MACHINE, [first, replace(first, cost=BatchCost(4.0, 0.35))], upkeep).render()
    assert "| one trainer / limit | **0.80** | 0.80 | 0.80 |" in page
    assert "| processor time a batch, daemon and workers, ms | **3.000** | 2.000 | 4.000 |" in page
    assert "| the same of worker 2 | 3 MiB |" in page
    rates = "limit 1,000, one 800, four 450 each"
    assert run.describe_round(first) == f"{rates}; a batch 2.000 ms of daemon and workers, 0.250 ms of the trainer"
