"""Every metric that monitoring/ queries exists, and its alerts and panels are documented."""

from __future__ import annotations

import asyncio
import re
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.monitor_requests import SELECTOR, drawn, panels, rules
from support.sample_metrics import SESSION, figures

from streamd.daemon.monitor.metrics import MetricsExposition

OF_PROMETHEUS: Final = {"up": {"instance": set[str](), "job": {"streamd"}}}
MATCHER: Final = re.compile(r'(\w+)(=~?)"([^"]*)"')


@pytest.fixture(scope="module")
def told() -> dict[str, dict[str, set[str]]]:
    """The labels of every metric, and their values."""
    known: dict[str, dict[str, set[str]]] = {name: dict(labels) for name, labels in OF_PROMETHEUS.items()}
    text = asyncio.run(MetricsExposition(lambda: figures(SESSION)).encode_metrics()).decode()
    for sample in (sample for family in text_string_to_metric_families(text) for sample in family.samples):
        labels = known.setdefault(sample.name, {"instance": set(), "job": {"streamd"}})
        for label, value in sample.labels.items():
            labels.setdefault(label, set()).add(value)
    return known


@pytest.mark.parametrize("expression", sorted({*drawn(), *(rule["expr"] for rule in rules())}))
def test_every_queried_metric_label_and_value_exists(expression: str, told: dict[str, dict[str, set[str]]]) -> None:
    selectors = SELECTOR.findall(expression)
    assert selectors
    for name, matchers in selectors:
        for label, operator, pattern in MATCHER.findall(matchers):
            values = pattern.split("|") if operator == "=~" else [pattern]
            assert {each for each in values if not each.startswith("$")} <= told[name][label]
        assert name in told


def test_every_alert_has_severity_summary_and_description() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert {"summary", "description"} == set(rule["annotations"])
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) > 0


def test_every_panel_is_explained_and_none_covers_another() -> None:
    covered: set[tuple[int, int]] = set()
    for each in panels():
        at = each["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert each["description"].endswith(".")
        assert not cells & covered, each["title"]
        assert at["x"] + at["w"] <= 24
        covered |= cells
