"""Which bound the rate over a link has met."""

from __future__ import annotations

import socket

import pytest

from streamd.cli.probe import describe_link, measure_round_trip_s
from streamd.errors import ConnectError

MB = 1_000_000


@pytest.mark.parametrize(
    ("rate", "trip_s", "verdicts", "bound"),
    [
        (50 * MB, 0.001, ["decode", "decode", "transport"], "daemon"),
        (45 * MB, 1.0, ["transport"], "credit"),
        (45 * MB, 0.1, ["transport", "none"], "link"),
        (45 * MB, 0.1, [], "link"),
    ],
)
def test_the_bound_that_was_met_is_named(rate: float, trip_s: float, verdicts: list[str], bound: str) -> None:
    report = describe_link(rate, trip_s, 1, 3 * MB // 2, verdicts)
    assert report.bound == bound
    assert "the limit" in report.text
    assert f"{rate / MB:.1f} MB/s" in report.text


def test_more_trainers_have_more_credit() -> None:
    assert describe_link(45 * MB, 1.0, 2, 3 * MB // 2, ["transport"]).bound == "link"


def test_a_round_trip_is_measured_by_connecting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert 0 < measure_round_trip_s(f"tcp://127.0.0.1:{server.getsockname()[1]}") < 5


def test_a_port_where_nobody_listens_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectError):
        measure_round_trip_s(f"tcp://127.0.0.1:{port}")
