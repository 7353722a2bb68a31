"""A browser that another site sends here is not answered."""

from __future__ import annotations

import pytest

from streamd.daemon.monitor.http_access import is_own_host_header


@pytest.mark.parametrize(
    "host",
    [None, "localhost", "LocalHost:9191", "127.0.0.1", "127.0.0.1:9191", "[::1]:8080", "[fe80::1]", "10.0.0.7:1",
     "node1", "node1:9191", "NODE1.", "gpu.example.org:9191"],
)  # fmt: skip
def test_addresses_and_our_own_names_are_answered_at_any_port(host: str | None) -> None:
    assert is_own_host_header(host, ("node1", "gpu.example.org"))


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:9191", "localhost.evil.example", "127.0.0.1.evil.example", "node1.evil.example", "",
     "[::1", "1:2:3", "localhost:evil", "127.0.0.1:80:80"],
)  # fmt: skip
def test_any_other_name_is_not(host: str) -> None:
    assert not is_own_host_header(host, ("node1",))
