"""Metrics as Prometheus has them: a name, a text that teaches, and values by label. No value, no line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)

from streamd.monitor.figures import Histogram
from streamd.stats import SPREAD_S

Rows = Iterable[tuple[Sequence[str], float | None]]

_BOUNDS: Final = (*map(str, SPREAD_S), "+Inf")


def gauge(name: str, text: str, labels: Sequence[str], rows: Rows) -> GaugeMetricFamily:
    """What goes up and down."""
    family = GaugeMetricFamily(f"streamd_{name}", text, labels=labels)
    _fill(family, rows)
    return family


def counter(name: str, text: str, labels: Sequence[str], rows: Rows) -> CounterMetricFamily:
    """What only grows while the daemon runs; `_total` is appended to the name."""
    family = CounterMetricFamily(f"streamd_{name}", text, labels=labels)
    _fill(family, rows)
    return family


def histogram(
    name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], Histogram]]
) -> HistogramMetricFamily:
    """How many took up to so many seconds."""
    family = HistogramMetricFamily(f"streamd_{name}", text, labels=labels)
    for values, each in rows:
        buckets = [(bound, float(count)) for bound, count in zip(_BOUNDS, accumulate(each.cells), strict=True)]
        family.add_metric(values, buckets, each.total_s)
    return family


def info(name: str, text: str, labels: Sequence[str], rows: Iterable[Sequence[str]]) -> InfoMetricFamily:
    """Facts without a number, to be joined with what has one; `_info` is appended to the name."""
    family = InfoMetricFamily(f"streamd_{name}", text, labels=labels)
    for values in rows:
        family.add_metric(values, {})
    return family


def _fill(family: GaugeMetricFamily | CounterMetricFamily, rows: Rows) -> None:
    for values, value in rows:
        if value is not None:
            family.add_metric(values, value)
