"""What Prometheus's own checker says of the figures and the alert rules, and whether its tests hold each rule."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.daemon_process import DaemonProcess, stream_config, write_images
from support.monitor_requests import ALERTS, fetch, rules, url_of
from support.prometheus_server import program

import streamd

RULE_TESTS: Final = Path(__file__).parent / "alerts_test.yml"
SCRAPED: Final = (("instance", "a"), ("job", "streamd"))
UP: Final = ("up", 'instance="a",job="streamd"', 1.0)

pytestmark = pytest.mark.prometheus


def promtool(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [program("promtool"), *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def _series(told: str) -> list[tuple[str, str, float]]:
    """Every line as a name, labels and a value; `instance` and `job` are what a scrape adds."""
    return [
        (sample.name, ",".join(f'{key}="{each}"' for key, each in [*sample.labels.items(), *SCRAPED]), sample.value)
        for family in text_string_to_metric_families(told)
        for sample in family.samples
    ]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a daemon tells while a trainer reads from it, and all is well."""
    place = tmp_path_factory.mktemp("promtool")
    folder = write_images(place / "data", {"cat": 21, "dog": 21}, size=(16, 16))
    with (
        DaemonProcess(place, {"monitor": "127.0.0.1:0", "streams": {"train": stream_config(folder)}}) as daemon,
        streamd.connect(daemon.endpoint) as client,
        client.subscribe("train", epochs=2) as stream,
    ):
        assert sum(1 for batch in stream if batch.epoch == 0) == len(stream)
        return fetch(f"{url_of(daemon)}/metrics")


def test_the_figures_of_a_daemon_with_a_trainer_are_as_prometheus_wants_them(told: str) -> None:
    checked = promtool("check", "metrics", text=told)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_a_figure_that_is_not_as_it_should_be_is_found() -> None:
    assert promtool("check", "metrics", text="# TYPE streamd_sent counter\nstreamd_sent 1\n").returncode != 0


def test_the_alert_rules_are_rules() -> None:
    checked = promtool("check", "rules", str(ALERTS))
    assert (checked.returncode, f"{len(rules())} rules found" in checked.stdout) == (0, True)


def test_each_alert_fires_when_it_should_and_no_sooner() -> None:
    tested = promtool("test", "rules", str(RULE_TESTS))
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"expr": "vector(0) > 1"}, {rule["alert"] for rule in rules()}),
        ({"for": "0s"}, {rule["alert"] for rule in rules() if "for" in rule}),
    ],
    ids=["never fires", "fires at once"],
)
def test_every_alert_is_missed_when_it_never_fires_and_noticed_when_it_fires_at_once(
    change: dict[str, str], found: set[str], tmp_path: Path
) -> None:
    changed = [rule | change for rule in rules()]
    (tmp_path / "alerts.yml").write_text(json.dumps({"groups": [{"name": "streamd", "rules": changed}]}))
    (tmp_path / "test.yml").write_text(RULE_TESTS.read_text().replace("../../monitoring/", ""))
    tested = promtool("test", "rules", str(tmp_path / "test.yml"))
    assert tested.returncode != 0
    assert set(re.findall(r'alertname="(\w+)"', tested.stdout + tested.stderr)) == found


def test_no_alert_fires_while_all_is_well(told: str, tmp_path: Path) -> None:
    series = [
        {"series": f"{name}{{{labels}}}", "values": f"{value}x60"} for name, labels, value in [*_series(told), UP]
    ]
    quiet = {"expr": 'ALERTS{alertstate=~"pending|firing"}', "exp_samples": []}
    times = [{**quiet, "eval_time": f"{minute}m"} for minute in range(61)]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": times}
    (tmp_path / "test.yml").write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": [test]}))
    tested = promtool("test", "rules", str(tmp_path / "test.yml"))
    assert tested.returncode == 0, tested.stdout + tested.stderr
