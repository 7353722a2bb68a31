"""Errors when a library of the daemon is missing."""

from __future__ import annotations

import sys

import pytest

from streamd.daemon.start_libraries import check_worker_libraries, import_monitor
from streamd.errors import MissingExtraError


def test_a_library_of_the_workers_is_missed_before_a_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    check_worker_libraries("streamd serve")
    monkeypatch.setitem(sys.modules, "aiofiles", None)
    with pytest.raises(MissingExtraError, match=r"^streamd serve needs aiofiles, .*'streamd-loader\[serve\]'$"):
        check_worker_libraries("streamd serve")


def test_the_monitor_names_the_extra_that_brings_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "streamd.daemon.monitor.http_server", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(MissingExtraError, match=r"^the monitor needs aiohttp, .*'streamd-loader\[serve\]'$"):
        import_monitor()
