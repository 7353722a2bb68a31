"""A real Prometheus that scrapes a real daemon: what it gives back is what the receipts say, and every query works."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest
from support.daemon_process import DaemonProcess, stream_config, wait_until, write_images
from support.monitor_requests import SELECTOR, dashboard, drawn, rules, url_of
from support.prometheus_server import Prometheus

import streamd
from streamd.core.receipt import Receipt

RECEIPTS: Final = 'streamd_receipts_total{stream="train"}'
VARIABLES: Final = {"$__rate_interval": "10s", "$instance": ".*", "$stream": ".*"}  # as Grafana puts them in

pytestmark = pytest.mark.prometheus


@dataclass(frozen=True, slots=True)
class Scene:
    """A daemon whose stream `train` was read, whose stream `endless` is being read, and who scrapes it."""

    prometheus: Prometheus
    receipts: list[Receipt]
    batches: int


@contextlib.contextmanager
def reading(endpoint: str) -> Iterator[None]:
    """Somebody who reads the stream `endless` meanwhile."""
    enough = threading.Event()

    def read() -> None:
        with streamd.connect(endpoint) as client, client.subscribe("endless") as stream:
            for _ in stream:
                if enough.is_set():
                    return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        enough.set()
        reader.join()


def read_by_two(endpoint: str) -> tuple[list[Receipt], int]:
    """The receipts of five epochs, and how many batches came."""
    with streamd.connect(endpoint) as client:
        with client.subscribe("train", epochs=3) as first, client.subscribe("train", epochs=2) as second:
            batches = sum(1 for stream in (second, first) for _ in stream)
            receipts = [*first.receipts, *second.receipts]
        wait_until(lambda: not client.status().sessions, "both have left")
    return receipts, batches


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    place = tmp_path_factory.mktemp("prometheus")
    good = write_images(place / "good", {"cat": 21, "dog": 12}, size=(16, 16))
    folder = write_images(place / "data", {"cat": 21, "dog": 12}, size=(16, 16))
    (folder / "cat" / "page.jpg").write_text("<!DOCTYPE html><title>404</title>")
    streams = {"train": stream_config(folder), "endless": stream_config(good)}
    daemon = DaemonProcess(place, {"monitor": "127.0.0.1:0", "streams": streams})
    try:
        daemon.start()
        with Prometheus(place, url_of(daemon)) as prometheus:
            prometheus.catch_up()  # what grows has to have been less
            receipts, batches = read_by_two(daemon.endpoint)
            with reading(daemon.endpoint):
                for _ in range(3):  # a rate is one between scrapes
                    prometheus.catch_up()
                yield Scene(prometheus, receipts, batches)
    finally:
        daemon.kill()


def test_promql_gives_back_what_the_receipts_say(scene: Scene) -> None:
    sent = {
        "samples_sent": sum(each.samples for each in scene.receipts),
        "batches_sent": sum(each.steps for each in scene.receipts),
    }
    assert sent["batches_sent"] == scene.batches
    for name, figure in sent.items():
        assert scene.prometheus.number(f'streamd_{name}_total{{stream="train"}}') == figure
    counted = {each.labels["result"]: each.value for each in scene.prometheus.ask(RECEIPTS)}
    assert counted == {"ok": sum(each.ok for each in scene.receipts), "bad": 0}
    assert counted["ok"] == 5


@pytest.mark.parametrize("query", drawn())
def test_every_query_of_the_dashboard_has_a_result(scene: Scene, query: str) -> None:
    for variable, value in VARIABLES.items():
        query = query.replace(variable, value)
    assert "$" not in query
    assert scene.prometheus.ask(query)


def test_the_dashboard_finds_the_daemon_and_its_streams_to_choose_from(scene: Scene) -> None:
    asked = [re.match(r"label_values\((\w+), (\w+)\)", each["query"]) for each in dashboard()["templating"]["list"]]
    metrics = {label: metric for metric, label in (found.groups() for found in asked if found)}
    assert set(metrics) == {"instance", "stream"}
    values = {
        label: scene.prometheus.get(f"label/{label}/values", **{"match[]": each}) for label, each in metrics.items()
    }
    assert (len(values["instance"]), values["stream"]) == (1, ["endless", "train"])


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_every_alert_looks_at_figures_that_are_there(scene: Scene, rule: dict[str, str]) -> None:
    for metric, matchers in SELECTOR.findall(rule["expr"]):
        assert scene.prometheus.ask(f"{metric}{matchers}")


def test_every_alert_is_evaluated_and_only_that_of_the_bad_sample_fires(scene: Scene) -> None:
    def evaluated() -> list[dict[str, str]]:
        (group,) = scene.prometheus.get("rules")["groups"]
        found: list[dict[str, str]] = group["rules"]
        return found

    wait_until(lambda: all(each["health"] != "unknown" for each in evaluated()), "all rules have been evaluated")
    assert {each["name"]: each.get("lastError", "") for each in evaluated()} == {each["alert"]: "" for each in rules()}
    assert [each["name"] for each in evaluated() if each["state"] == "firing"] == ["StreamdSamplesGoBad"]
