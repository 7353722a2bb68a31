"""The JSON log of a daemon, from its start to its end."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import DaemonProcess, stream_config, wait_until, write_images
from support.fork_server import ForkedDaemon

import streamd
from streamd.core.log.events import EVENTS


class JsonDaemon(DaemonProcess):
    """`streamd serve --log-json`, which lists its samples itself."""

    def _run(self, arguments: list[str]) -> subprocess.Popen[bytes] | ForkedDaemon:
        return super()._run([*arguments, "--log-json"])

    def said(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def daemon(tmp_path: Path) -> JsonDaemon:
    folder = write_images(tmp_path / "data", {"cat": 20, "dog": 21})
    return JsonDaemon(tmp_path, {"streams": {"train": stream_config(folder)}}, apart=True)


@pytest.mark.long
def test_every_log_line_is_an_event_and_each_epoch_is_reported_once(daemon: JsonDaemon) -> None:
    daemon.start()
    try:
        with streamd.connect(daemon.endpoint) as client:
            streams = [client.subscribe("train", epochs=2, start={"together": 2}) for _ in range(2)]
            for _ in zip(*streams, strict=True):
                pass
            for stream in streams:
                stream.close()
        wait_until(lambda: [each["event"] for each in daemon.said()].count("session.ended") == 2, "both have left")
        assert daemon.terminate() == 0
    finally:
        daemon.kill()
    said = daemon.said()
    assert {each["event"] for each in said} <= set(EVENTS)
    assert {"manifest.made", "daemon.ready", "session.began", "receipt.ok", "daemon.stopped"} <= {
        each["event"] for each in said
    }, "also what the process that lists has said"
    assert all(datetime.fromisoformat(each["time"]).tzinfo for each in said)
    finished = [each["fields"] for each in said if each["event"] == "epoch.finished"]
    assert [(each["epoch"], each["trainers"], each["samples"], each["bad"]) for each in finished] == [
        (0, 2, 41, 0),
        (1, 2, 41, 0),
    ]
    assert all(each["decodes_per_batch"] == 1.0 for each in finished)
    assert all(each["seconds"] > 0 and each["samples_per_s"] > 0 and each["verdict"] for each in finished)
