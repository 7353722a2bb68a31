"""Where an epoch's time went, with each stage made slow in turn, through a real daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from support.daemon_process import DaemonProcess, stream_config, wait_until, write_images

import streamd
from streamd.client import Client, io_thread
from streamd.core.epoch_timing import EpochTiming
from streamd.ipc.messages import BatchReady, DaemonMessage, FrameHeader, decode_daemon_frame

STEPS = 12
SLOW_DISK = """
import os, time
read = os.read
def slow_read(descriptor, size):
    if "/far/" in os.readlink(f"/proc/self/fd/{descriptor}"):
        time.sleep(0.004)
    return read(descriptor, size)
os.read = slow_read
"""
SLOW_TRANSFORM = """
def toil(image, labels, rng):
    sum(range(150_000))
    return image, labels
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """One worker, and a disk that takes 4 ms for each file below `far`."""
    place = tmp_path_factory.mktemp("d")
    (place / "shim").mkdir()
    (place / "shim" / "sitecustomize.py").write_text(SLOW_DISK)
    (place / "toil.py").write_text(SLOW_TRANSFORM)
    far, near = (write_images(place / name, {"cat": 8 * STEPS}) for name in ("far", "near"))
    streams = {
        "far": stream_config(far),
        "near": stream_config(near),
        "toil": stream_config(near, transform="toil:toil"),
    }
    path = os.pathsep.join([str(place / "shim"), os.environ.get("PYTHONPATH", "")])
    config: dict[str, object] = {"workers": 1, "streams": streams}
    with DaemonProcess(place, config, environment={"PYTHONPATH": path}, apart=False) as daemon:
        yield daemon


def epoch_of(client: Client, name: str, **wish: Any) -> EpochTiming:
    """Where the time went of an epoch that was drained; the daemon says the same of the session."""
    with client.subscribe(name, epochs=1, **wish) as stream:
        assert sum(1 for _ in stream) == STEPS
        (timing,) = stream.timings
        wait_until(lambda: [each.last_epoch for each in client.status().sessions] == [timing], "the daemon knows")
    assert timing.epoch == 0
    assert 0 < timing.waited_s <= timing.seconds
    assert timing.supply.ready + timing.supply.awaited == STEPS
    return timing


@pytest.mark.long
def test_a_slow_disk_is_found_to_be_the_limit(client: Client) -> None:
    assert epoch_of(client, "far").verdict == "disk"


@pytest.mark.long
def test_a_slow_transform_is_found_to_keep_all_workers_busy(client: Client) -> None:
    assert epoch_of(client, "toil").verdict == "decode"


@pytest.mark.long
def test_a_slow_transport_is_found_while_batches_lie_ready(
    client: Client, daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with streamd.connect(daemon.endpoint) as other:

        def late(data: bytes) -> tuple[FrameHeader, DaemonMessage]:
            header, message = decode_daemon_frame(data)
            if isinstance(message, BatchReady):
                ready = min(STEPS, header.number + 2)
                wait_until(lambda: other.stats()["stream.near"]["produced"] >= ready, "the next one lies ready")
            return header, message

        monkeypatch.setattr(io_thread, "decode_daemon_frame", late)
        assert epoch_of(client, "near", prefetch=2).verdict == "transport"
