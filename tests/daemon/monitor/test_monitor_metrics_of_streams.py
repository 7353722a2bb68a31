"""What is told of a stream."""

from __future__ import annotations

from dataclasses import replace

from support.sample_metrics import SESSION, STREAM, figures, values

from streamd.daemon.monitor.metrics import build_stream_metrics
from streamd.daemon.monitor.snapshot import TimeHistogram

NO_FIGURES = replace(STREAM, name="idle", sessions=0, decodes_per_batch=None, shuffle_score=None)
IDLE = replace(NO_FIGURES, failed="a broken disk", stopped="too many bad")


def test_counters_are_those_of_stats() -> None:
    counted = {"produced": 5.0, "send_count": 10.0, "send_s": 0.5, "sent_samples": 80.0, "client_wait_s": 7.0}
    told = values(build_stream_metrics(figures(numbers={"stream.train": counted})))
    names = ("batches_decoded", "batches_sent", "send_seconds", "samples_sent", "trainer_wait_seconds")
    assert [told[f"{name}_total{{stream=train}}"] for name in names] == [5, 10, 0.5, 80, 7]


def test_what_a_stream_does_not_have_is_not_told() -> None:
    told = values(build_stream_metrics(figures(streams=[IDLE, STREAM])))
    assert (told["decodes_per_batch{stream=train}"], told["shuffle_score{stream=train}"]) == (1.25, 0.75)
    assert {"decodes_per_batch{stream=idle}", "shuffle_score{stream=idle}"} & set(told) == set()
    assert (told["stream_stopped{stream=idle}"], told["stream_stopped{stream=train}"]) == (1, 0)
    assert (told["stream_failed{stream=idle}"], told["stream_failed{stream=train}"]) == (1, 0)
    assert not [name for name in told if name.startswith("cache_")]


def test_a_cache_is_told_of_where_there_is_one() -> None:
    told = values(build_stream_metrics(figures(numbers={"stream.train": {"cache_hits": 6.0, "cache_misses": 0.0}})))
    assert (told["cache_hits_total{stream=train}"], told["cache_misses_total{stream=train}"]) == (6, 0)


def test_receipts_and_bad_samples_are_told_by_result_and_kind() -> None:
    told = values(build_stream_metrics(replace(figures(), bad_counts={"train": {"stale": 2}})))
    assert (told["receipts_total{result=ok,stream=train}"], told["receipts_total{result=bad,stream=train}"]) == (4, 1)
    assert told["bad_samples{fault=stale,stream=train}"] == 2
    assert sum(value for name, value in told.items() if name.startswith("bad_samples")) == 2


def test_trainers_are_counted_by_what_they_do_and_what_limits_them() -> None:
    resting = replace(SESSION, session=8, doing="resting", last_epoch=None)
    told = values(build_stream_metrics(figures(SESSION, resting, streams=[STREAM, IDLE])))
    shown = {name: value for name, value in told.items() if name.startswith("trainers") and value}
    assert shown == {
        "trainers{doing=reading,stream=train}": 1,
        "trainers{doing=resting,stream=train}": 1,
        "trainers_limited{by=disk,stream=train}": 1,
    }
    assert (told["cohorts{stream=train}"], told["cohorts{stream=idle}"]) == (1, 0)


def test_reads_and_decodes_are_not_mistaken_for_each_other() -> None:
    reads, decodes = (TimeHistogram([0] * 13 + [count], seconds) for count, seconds in ((3, 40.0), (5, 60.0)))
    told = values(
        build_stream_metrics(replace(figures(), read_times={"train": reads}, decode_times={"train": decodes}))
    )
    assert (told["read_seconds_count{stream=train}"], told["read_seconds_sum{stream=train}"]) == (3, 40)
    assert (told["decode_seconds_count{stream=train}"], told["decode_seconds_sum{stream=train}"]) == (5, 60)
