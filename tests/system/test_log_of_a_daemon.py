"""The JSON log of a daemon, from its start to its end."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import LIMIT_S, DaemonProcess, stream_config, wait_until, write_images
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


NOISY = """
import os, sys
def f(image, labels, rng):
    print("printed " * 1000)
    print("said " * 1000, file=sys.stderr)
    for descriptor in (1, 2):
        os.write(descriptor, b"as a C library writes\\n" * 3000)
    return image, labels
"""


class SilencedDaemon(DaemonProcess):
    """`streamd serve` whose output goes into a pipe that nothing reads."""

    def _run(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        self.source, target = os.pipe()
        fcntl.fcntl(self.source, fcntl.F_SETPIPE_SZ, 4096)
        command = [sys.executable, "-m", "streamd.cli.main", *arguments]
        try:
            return subprocess.Popen(command, stderr=target, stdout=target, env=self._environment)
        finally:
            os.close(target)

    def _said(self, offset: int) -> bytes:
        del offset
        return b"daemon.ready"  # which nobody hears: clients wait for it


@pytest.mark.long
def test_a_daemon_whose_log_nothing_reads_serves_reloads_and_ends_whatever_its_workers_write(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 20, "dog": 21})
    (tmp_path / "noisy.py").write_text(NOISY)
    stream = stream_config(folder) | {"transform": "noisy:f"}
    daemon = SilencedDaemon(tmp_path, {"streams": {"train": stream}}, apart=True)
    daemon.start()
    try:
        with streamd.connect(daemon.endpoint, timeout=LIMIT_S) as client:
            # Each of these logs, and some of them write megabytes.
            for _ in range(2):
                with client.subscribe("train", epochs=1) as batches:
                    assert sum(len(batch) for batch in batches) == 41
            for worker in daemon.workers():
                os.kill(worker, signal.SIGKILL)
            daemon.config.write_text(daemon.config.read_text().replace('"train"', '"other"'))
            daemon.process.send_signal(signal.SIGHUP)
            wait_until(lambda: list(client.streams()) == ["other"], "it has read the configuration again")
            with client.subscribe("other", epochs=1) as batches:
                assert sum(len(batch) for batch in batches) == 41
            said = os.read(daemon.source, 1 << 16)
        assert daemon.terminate() == 0
    finally:
        daemon.kill()
        os.close(daemon.source)
    assert b" manifest." in said
    assert b"Traceback" not in said
