"""Requests for metrics of a test's daemon, and the queries of monitoring/ to Prometheus."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

from support.daemon_process import DaemonProcess

MONITORING: Final = Path(__file__).resolve().parents[2] / "monitoring"
ALERTS: Final = MONITORING / "alerts.yml"
SELECTOR: Final = re.compile(r"\b((?:streamd|process)_\w+|up)\b(\{[^}]*\})?")  # a metric in a query, and its matchers


def url_of(daemon: DaemonProcess) -> str:
    """Where a daemon with `monitor: 127.0.0.1:0` answers."""
    found = re.search(r"monitor\.ready\W.*?(http://[^\s/;]+)", daemon.log.read_text())
    assert found is not None
    return found[1]


def fetch(url: str, **headers: str) -> str:
    """What is answered; HTTPError where it is no 200."""
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - an address of a test's own server
    with urllib.request.urlopen(request) as answer:  # noqa: S310 - as above
        text: str = answer.read().decode()
    return text


def rules() -> list[dict[str, Any]]:
    """The alert rules, as they are written."""
    (group,) = YAML(typ="safe").load(ALERTS)["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def dashboard() -> dict[str, Any]:
    """The dashboard for Grafana, as it is written."""
    found: dict[str, Any] = json.loads((MONITORING / "streamd-grafana.json").read_text())
    return found


def panels() -> list[dict[str, Any]]:
    """What it draws."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def drawn() -> list[str]:
    """The queries of all panels, each once."""
    return sorted({target["expr"] for panel in panels() for target in panel["targets"]})
