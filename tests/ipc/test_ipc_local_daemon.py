"""The request of `streamd.local` to its daemon: one line, whatever a notebook's mapping contains."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from streamd.errors import ConfigError
from streamd.ipc.local_daemon import LocalDaemonRequest, endpoint_in_folder


def test_a_request_is_one_json_line_with_plain_paths_and_numbers() -> None:
    line = LocalDaemonRequest(
        {"workers": np.uint8(1), "streams": {"train": {"source": Path("/data")}}}, "/a"
    ).encode_line()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "config": {"workers": 1, "streams": {"train": {"source": "/data"}}},
        "folder": "/a",
        "size": None,
    }


def test_a_value_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"it cannot be handed to a daemon: .* is of type object"):
        LocalDaemonRequest({"workers": object()}, "/a").encode_line()


def test_the_endpoint_is_in_the_requested_folder() -> None:
    assert LocalDaemonRequest("config.yaml", "/a").endpoint == endpoint_in_folder("/a") == "ipc:///a/s"
