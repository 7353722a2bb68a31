"""Metric families, their values, and the text that Prometheus reads."""

from __future__ import annotations

import asyncio
from collections import Counter

from msgspec.structs import replace
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from support.sample_metrics import NOTHING, SESSION, STREAM, figures, metrics, values

from streamd.core.counters import StageHistogram
from streamd.daemon.monitor.metrics import (
    CollectedFamilies,
    MetricKind,
    MetricRows,
    MetricsExposition,
    MetricSpec,
    build_families,
)
from streamd.daemon.monitor.snapshot import MonitorSnapshot


def lines(kind: MetricKind, labels: list[str], rows: MetricRows | None) -> dict[str, float]:
    """The lines of a metric `x` with these values."""
    family = MetricSpec(kind, "x", labels, lambda _: rows, "text").build_family(figures())
    return {} if family is None else values([family])


def test_a_metric_without_a_value_has_no_line() -> None:
    assert lines("gauge", ["s"], [(["a"], None), (["b"], 0)]) == {"x{s=b}": 0}
    assert lines("gauge", ["s"], None) == {}


def test_a_counter_ends_in_total_and_facts_in_info() -> None:
    assert lines("counter", [], [([], 2)]) == {"x_total{}": 2}
    assert lines("info", ["s"], [(["a"], 1)]) == {"x_info{s=a}": 1}


def test_buckets_count_everything_up_to_their_bound() -> None:
    spread = StageHistogram()
    for seconds, count in ((0.001, 1), (0.0011, 2), (99.0, 4)):
        spread.add_runs(seconds * count, count)
    told = lines("histogram", [], [([], spread)])
    bounds = ("0.0003", "0.001", "0.003", "10.0", "+Inf")
    assert [told[f"x_bucket{{le={bound}}}"] for bound in bounds] == [0, 1, 3, 3, 7]
    assert (told["x_count{}"], told["x_sum{}"]) == (7, spread.total_s)


def test_nothing_counted_is_zero_in_every_bucket() -> None:
    assert set(lines("histogram", [], [([], NOTHING)]).values()) == {0}


# --- of the daemon as a whole


def test_memory_metrics_include_the_budget() -> None:
    told = metrics(figures(numbers={"daemon": {"slots": 9, "slot_wait_s": 1.5, "producing": 2}}))
    assert (told["memory_limit_bytes{}"], told["memory_used_bytes{}"], told["slots{}"]) == (1 << 30, 1 << 20, 9)
    assert (told["slot_wait_seconds_total{}"], told["productions{}"]) == (1.5, 2)


def test_worker_metrics_cover_activity_and_deaths() -> None:
    engine = {"worker_deaths": 3.0, "idle_s": 2.5, "queue_count": 40.0, "queue_s": 0.5}
    told = metrics(figures(numbers={"engine": engine}))
    assert (told["workers{}"], told["workers_busy_ratio{}"], told["worker_deaths_total{}"]) == (4, 0.5, 3)
    assert (told["worker_idle_seconds_total{}"], told["tasks_total{}"], told["task_wait_seconds_total{}"]) == (
        2.5,
        40,
        0.5,
    )


def test_a_failed_reload_is_shown_until_one_succeeds() -> None:
    told = figures()
    failed = replace(told, status=replace(told.status, reload_failed=True))
    assert [metrics(each)["reload_failed{}"] for each in (told, failed)] == [0, 1]


def test_draining_frames_and_rules_have_metrics() -> None:
    numbers = {"wire": {"malformed": 2.0}, "rules": {"numbers_dense": 16.0}}
    told = metrics(figures(numbers=numbers, draining=True))
    assert (told["draining{}"], told["troubles{}"], told["build_info{version=1.2}"]) == (1, 2, 1)
    assert (told["frames_dropped_total{reason=malformed}"], told["frames_dropped_total{reason=stale}"]) == (2, 0)
    assert told["rule_checks_total{rule=numbers_dense}"] == 16


# --- of a stream


NO_FIGURES = replace(STREAM, name="idle", sessions=0, decodes_per_batch=None, shuffle_score=None)
IDLE = replace(NO_FIGURES, failed="a broken disk", stopped="too many bad")


def test_stream_counters_come_from_stats() -> None:
    counted = {"produced": 5.0, "send_count": 10.0, "send_s": 0.5, "sent_samples": 80.0, "client_wait_s": 7.0}
    told = metrics(figures(numbers={"stream.train": counted}))
    names = ("batches_decoded", "batches_sent", "send_seconds", "samples_sent", "trainer_wait_seconds")
    assert [told[f"{name}_total{{stream=train}}"] for name in names] == [5, 10, 0.5, 80, 7]


def test_unknown_values_of_a_stream_have_no_metric() -> None:
    told = metrics(figures(streams=[IDLE, STREAM]))
    assert (told["decodes_per_batch{stream=train}"], told["shuffle_score{stream=train}"]) == (1.25, 0.75)
    assert {"decodes_per_batch{stream=idle}", "shuffle_score{stream=idle}"} & set(told) == set()
    assert (told["stream_stopped{stream=idle}"], told["stream_stopped{stream=train}"]) == (1, 0)
    assert (told["stream_failed{stream=idle}"], told["stream_failed{stream=train}"]) == (1, 0)
    assert not [name for name in told if name.startswith("cache_")]


def test_a_stream_with_a_cache_has_cache_metrics() -> None:
    told = metrics(figures(numbers={"stream.train": {"cache_hits": 6.0, "cache_misses": 0.0}}))
    assert (told["cache_hits_total{stream=train}"], told["cache_misses_total{stream=train}"]) == (6, 0)


def test_receipts_are_labelled_by_result_and_bad_samples_by_kind() -> None:
    told = metrics(replace(figures(), bad_counts={"train": {"stale": 2}}))
    assert (told["receipts_total{result=ok,stream=train}"], told["receipts_total{result=bad,stream=train}"]) == (4, 1)
    assert told["bad_samples{fault=stale,stream=train}"] == 2
    assert sum(value for name, value in told.items() if name.startswith("bad_samples")) == 2


def test_trainers_are_counted_by_what_they_do_and_what_limits_them() -> None:
    resting = replace(SESSION, session=8, doing="resting", last_epoch=None)
    told = metrics(figures(SESSION, resting, streams=[replace(STREAM, cohorts=1), IDLE]))
    shown = {name: value for name, value in told.items() if name.startswith("trainers") and value}
    assert shown == {
        "trainers{doing=reading,stream=train}": 1,
        "trainers{doing=resting,stream=train}": 1,
        "trainers_limited{by=disk,stream=train}": 1,
    }
    assert (told["cohorts{stream=train}"], told["cohorts{stream=idle}"]) == (1, 0)


def test_reads_and_decodes_have_separate_histograms() -> None:
    reads, decodes = (
        StageHistogram(bucket_counts=[0] * 13 + [count], total_s=seconds) for count, seconds in ((3, 40.0), (5, 60.0))
    )
    told = metrics(replace(figures(), read_times={"train": reads}, decode_times={"train": decodes}))
    assert (told["read_seconds_count{stream=train}"], told["read_seconds_sum{stream=train}"]) == (3, 40)
    assert (told["decode_seconds_count{stream=train}"], told["decode_seconds_sum{stream=train}"]) == (5, 60)


# --- of each trainer


NEW = replace(SESSION, session=8, epoch=0, step=0, last_epoch=None)


def test_a_trainer_is_known_by_its_stream_and_number() -> None:
    told = {name: value for name, value in metrics(figures(SESSION)).items() if name.startswith("trainer_")}
    del told["trainer_wait_seconds_total{stream=train}"]
    assert told.pop("trainer_info{rank=1,stream=train,trainer=7,world=2}") == 1
    expected = {
        "epoch": 3, "step": 40, "steps": 62, "samples_per_second": 80, "credit": 16, "leases": 5,
        "epoch_seconds": 43, "epoch_wait_seconds": 2, "lag_steps": 0,
    }  # fmt: skip
    assert told == {f"trainer_{name}{{stream=train,trainer=7}}": value for name, value in expected.items()}


def test_a_trainer_in_its_first_epoch_has_no_epoch_time_and_a_lag() -> None:
    told = metrics(figures(SESSION, NEW))
    assert "trainer_epoch_seconds{stream=train,trainer=8}" not in told
    assert told["trainer_lag_steps{stream=train,trainer=8}"] == 3 * 62 + 40


def test_without_trainers_there_are_no_trainer_metrics() -> None:
    assert [name for name in metrics(figures()) if "trainer=" in name] == []


# --- the text


MANY = 250  # trainers, with ten lines each: more than are written in one turn


def families(told: MonitorSnapshot) -> list[Metric]:
    return list(text_string_to_metric_families(asyncio.run(MetricsExposition(lambda: told).encode_metrics()).decode()))


def test_every_metric_family_is_prefixed_unique_and_documented() -> None:
    told = families(figures(SESSION))
    assert all(each.name.startswith(("streamd_", "process_")) for each in told)
    assert [name for name, count in Counter(each.name for each in told).items() if count > 1] == []
    assert [each.name for each in told if each.type == "unknown" or not each.documentation.endswith(".")] == []


def test_a_metric_family_written_in_several_turns_is_complete() -> None:
    trainers = [replace(SESSION, session=number, step=number) for number in range(MANY)]
    steps = next(each for each in families(figures(*trainers)) if each.name == "streamd_trainer_step")
    assert {(sample.labels["trainer"], sample.value) for sample in steps.samples} == {
        (str(number), number) for number in range(MANY)
    }


def test_one_snapshot_is_taken_for_each_request() -> None:
    looks: list[None] = []

    def look() -> MonitorSnapshot:
        looks.append(None)
        return figures()

    exposition = MetricsExposition(look)
    assert len(looks) == 0
    asyncio.run(exposition.encode_metrics())
    assert len(looks) == 1


def test_the_text_matches_the_librarys_own_writer_for_names_with_special_characters() -> None:
    strange = replace(STREAM, name='a"b\\c\nd\\n{}', shuffle_score=1e-7)
    told = figures(replace(SESSION, stream=strange.name), streams=[strange])
    theirs = list(text_string_to_metric_families(generate_latest(CollectedFamilies(build_families(told))).decode()))
    ours = [each for each in families(told) if each.name.startswith("streamd_")]
    assert ours == theirs
    assert {sample.labels.get("stream", strange.name) for each in ours for sample in each.samples} == {strange.name}


def test_writing_many_metrics_yields_to_other_tasks() -> None:
    trainers = [replace(SESSION, session=number) for number in range(MANY)]

    async def turns() -> int:
        writing = asyncio.ensure_future(MetricsExposition(lambda: figures(*trainers)).encode_metrics())
        count = 0
        while not writing.done():
            await asyncio.sleep(0)
            count += 1
        return count

    assert asyncio.run(turns()) > 10 * MANY // 100
