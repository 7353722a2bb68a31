"""A daemon with one stream, for tests of probes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.daemon_process import DaemonProcess, stream_config, write_images


@pytest.fixture(scope="module")
def probed_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a daemon with one stream `train`, four batches of eight."""
    place = tmp_path_factory.mktemp("d")
    folder = write_images(place / "data", {"cat": 16, "dog": 16})
    daemon = DaemonProcess(place, {"streams": {"train": stream_config(folder)}}).start()
    yield daemon.endpoint
    daemon.kill()
