"""Families as Prometheus has them."""

from __future__ import annotations

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from support.sample_metrics import NOTHING, values

from streamd.core.counters import StageHistogram
from streamd.daemon.monitor.metrics import (
    build_counter_metric,
    build_gauge_metric,
    build_histogram_metric,
    build_info_metric,
)
from streamd.daemon.monitor.snapshot import TimeHistogram


def test_what_has_no_value_has_no_line() -> None:
    assert values([build_gauge_metric("x", "text", ["s"], [(["a"], None), (["b"], 0)])]) == {"x{s=b}": 0}


def test_a_counter_ends_in_total_and_facts_in_info() -> None:
    assert values([build_counter_metric("x", "text", [], [([], 2)])]) == {"x_total{}": 2}
    assert values([build_info_metric("x", "text", ["s"], [["a"]])]) == {"x_info{s=a}": 1}


def test_buckets_count_everything_up_to_their_bound() -> None:
    spread = StageHistogram()
    for seconds, count in ((0.001, 1), (0.0011, 2), (99.0, 4)):
        spread.add_runs(seconds * count, count)
    told = values(
        [build_histogram_metric("x", "text", [], [([], TimeHistogram(spread.bucket_counts, spread.total_s))])]
    )
    assert [told[f"x_bucket{{le={bound}}}"] for bound in ("0.0003", "0.001", "0.003", "10.0", "+Inf")] == [
        0,
        1,
        3,
        3,
        7,
    ]
    assert (told["x_count{}"], told["x_sum{}"]) == (7, spread.total_s)


def test_nothing_counted_is_zero_in_every_bucket() -> None:
    assert set(values([build_histogram_metric("x", "text", [], [([], NOTHING)])]).values()) == {0}


def test_a_name_that_would_break_the_text_is_escaped() -> None:
    class One(Collector):
        def collect(self) -> list[Metric]:
            return [build_gauge_metric("x", "text", ["s"], [(['a"\n\\'], 1)])]

    assert generate_latest(One()).splitlines()[-1] == b'streamd_x{s="a\\"\\n\\\\"} 1.0'
