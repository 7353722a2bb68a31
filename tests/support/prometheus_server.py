"""A real Prometheus for tests, configured as monitoring/README.md says, on a free port with its own storage."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pytest
from ruamel.yaml import YAML

from support.daemon_process import LIMIT_S, wait_until
from support.monitor_requests import ALERTS, MONITORING, fetch

_ALIGNED_S: Final = 0.01  # Prometheus moves the times of its scrapes by up to 2 ms, for smaller storage


def program(name: str, package: str = "prometheus") -> str:
    """Where a program of Debian's is, beside this Python or elsewhere; the test is skipped where it is not."""
    found = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()]))
    if found is None:
        pytest.skip(f"there is no {name}: scripts/test --all brings it, from Debian's package {package}")
    return found


class Result(NamedTuple):
    """One line of an answer: its labels, and the value now."""

    labels: dict[str, str]
    value: float


class Prometheus:
    """Scrapes one daemon several times a second, and evaluates the alert rules as often."""

    def __init__(self, place: Path, target: str) -> None:
        self._log = place / "prometheus.log"
        config = _documented() | {"global": {"scrape_interval": "200ms", "evaluation_interval": "200ms"}}
        config["rule_files"] = [str(ALERTS)]
        config["scrape_configs"][0]["static_configs"] = [{"targets": [target.removeprefix("http://")]}]
        (place / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        storage = ["--storage.tsdb.path", str(place / "storage"), "--config.file", str(place / "prometheus.yml")]
        self._command = [program("prometheus"), *storage, "--web.listen-address=127.0.0.1:0", "--log.format=json"]
        self._url = ""

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        wait_until(lambda: self._said("Server is ready") or self._process.poll() is not None, "Prometheus is ready")
        assert self._process.poll() is None, self._log.read_text()
        self._url = f"http://{self._said('Listening on')[0]['address']}/api/v1"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(LIMIT_S)

    def _said(self, words: str) -> list[dict[str, str]]:
        """Lines of its log, the last of which may not be whole yet."""
        lines = self._log.read_text().rpartition("\n")[0].splitlines()
        return [said for said in map(json.loads, lines) if words in said.get("msg", "")]

    def get(self, path: str, **query: str) -> Any:
        """What its API answers; HTTPError with a query that it does not understand."""
        answer = json.loads(fetch(f"{self._url}/{path}?{urllib.parse.urlencode(query)}"))
        assert answer["status"] == "success"
        assert "warnings" not in answer
        return answer["data"]

    def ask(self, promql: str) -> list[Result]:
        """What a query comes to now."""
        data = self.get("query", query=promql)
        assert data["resultType"] == "vector"
        return [Result(each["metric"], float(each["value"][1])) for each in data["result"]]

    def number(self, promql: str) -> float:
        """The same of a query with one result."""
        (only,) = self.ask(promql)
        return only.value

    def catch_up(self) -> None:
        """Until a scrape is stored that began after this call."""
        now = time.time() + _ALIGNED_S
        wait_until(
            lambda: any(each.value > now for each in self.ask('timestamp(up{job="streamd"})')), "Prometheus scrapes"
        )


def _documented() -> dict[str, Any]:
    """prometheus.yml, as the page tells people to write it."""
    page = (MONITORING / "README.md").read_text()
    (text,) = re.findall(r"```yaml\n# prometheus.yml\n(.*?)```", page, re.DOTALL)
    config: dict[str, Any] = YAML(typ="safe").load(text)
    return config
