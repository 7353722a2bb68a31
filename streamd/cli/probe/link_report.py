"""What a link to another host gives, and which bound was met: the daemon's decoding, the credit, or the link itself."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

from streamd.errors import ConnectError
from streamd.ipc.endpoint import split_host_port
from streamd.limits import CONNECT_TIMEOUT_S, MAX_CREDIT, REMOTE_CREDIT

LinkBound = Literal["daemon", "credit", "link"]
_LOOKS: Final = 5  # connections made to measure a round trip
_CREDIT_TRIPS: Final = 2  # credit lasts for so many round trips: one batch is reported while another is on its way
_NEAR_BOUND: Final = 0.8  # of what credit allows: a rate above it is bounded by it


@dataclass(frozen=True, slots=True)
class LinkReport:
    """The rate in bytes a second, a round trip in seconds, what met its bound, and all of it in words."""

    bytes_per_s: float
    round_trip_s: float
    bound: LinkBound
    text: str


def describe_link(
    bytes_per_s: float, round_trip_s: float, trainers: int, batch_bytes: int, verdicts: Sequence[str]
) -> LinkReport:
    """Says what bounds the rate of `trainers` trainers with the usual credit, and what helps.

    `verdicts` are the bottlenecks of their epochs, as the daemon and the trainers account for them.
    """
    allowed = trainers * REMOTE_CREDIT * batch_bytes / (_CREDIT_TRIPS * round_trip_s)
    daemon = [each for each in verdicts if each in {"disk", "decode"}]
    figures = f"{bytes_per_s / 1e6:,.1f} MB/s, {round_trip_s * 1e3:,.1f} ms for a round trip"
    if verdicts and len(daemon) > len(verdicts) / 2:
        words = f"the daemon is the limit ({max(daemon, key=daemon.count)}), and the link is not"
        return LinkReport(bytes_per_s, round_trip_s, "daemon", f"{figures}; {words}")
    if bytes_per_s >= _NEAR_BOUND * allowed and REMOTE_CREDIT < MAX_CREDIT:
        words = (
            f"the credit is the limit: {REMOTE_CREDIT} batches allow {allowed / 1e6:,.1f} MB/s at this distance; "
            f"subscribe with prefetch={min(MAX_CREDIT, 2 * REMOTE_CREDIT)} or larger batches"
        )
        return LinkReport(bytes_per_s, round_trip_s, "credit", f"{figures}; {words}")
    words = (
        f"the link is the limit: {REMOTE_CREDIT} batches would allow {allowed / 1e6:,.1f} MB/s; if the link should "
        "give more, look at BBR, net.ipv4.tcp_wmem and net.ipv4.tcp_rmem (docs/operations.md)"
    )
    return LinkReport(bytes_per_s, round_trip_s, "link", f"{figures}; {words}")


def measure_round_trip_s(endpoint: str) -> float:
    """Returns the median time in which a connection to a tcp:// endpoint opens, one round trip. Raises ConnectError."""
    times = []
    for _ in range(_LOOKS):
        began_s = time.monotonic()
        try:
            socket.create_connection(split_host_port(endpoint), CONNECT_TIMEOUT_S).close()
        except OSError as error:
            raise ConnectError(endpoint, str(error.strerror or error)) from error
        times.append(time.monotonic() - began_s)
    return median(times)
