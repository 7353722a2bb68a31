"""The daemon's figures at one moment, for the metrics, and what the dashboard's page shows of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, Protocol

import msgspec

from streamd.core.counters import NumbersByGroup, ProcessStats, StageHistogram, read_number
from streamd.core.display import format_stream_images
from streamd.core.epoch_timing import BOTTLENECK_ADVICE
from streamd.core.status import (
    STATE_WORDS,
    DaemonStatus,
    count_new_bad_samples,
    find_reached_epoch_and_step,
    format_window,
    sort_sessions,
)
from streamd.daemon.batch_sender import BatchPreview
from streamd.daemon.streams.quarantine import FaultKind, classify_fault_reason
from streamd.daemon.streams.served_stream import ServedStream

_SAMPLES_PER_PAGE: Final = 24


def build_bad_sample_page(
    reasons: Mapping[int, str], lookup_file: Callable[[int], str], before: int | None
) -> dict[str, Any]:
    """Returns the newest of the first `before` bad samples, or of all, as plain data; page/shapes.js has its form.

    `reasons` are in the order they were recorded. A page is named by a count from the oldest, so it stays the same
    while new verdicts arrive. If there are older ones, its own `before` requests the next page.
    """
    total = len(reasons)
    stop = total if before is None else max(0, min(before, total))
    start = max(0, stop - _SAMPLES_PER_PAGE)
    some = [
        {"sample_id": each, "file": lookup_file(each), "reason": why, "kind": classify_fault_reason(why)}
        for each, why in islice(reasons.items(), start, stop)
    ]
    return {"bad": total, "samples": some[::-1], "before": start or None}


# --- All figures of the daemon at one moment, for metrics and dashboard: its status, and numbers kept elsewhere.


class MonitoredDaemon(Protocol):
    """What the monitor reads of a daemon."""

    @property
    def streams(self) -> Mapping[str, ServedStream]: ...

    @property
    def batch_preview(self) -> BatchPreview: ...

    @property
    def stats(self) -> ProcessStats: ...

    def build_status(self) -> DaemonStatus: ...

    def collect_stats_values(self) -> NumbersByGroup: ...


class MonitorSnapshot(msgspec.Struct, frozen=True):
    """All figures of one moment: the status, the numbers that a client gets for `stats`, and by stream those below.

    `bad_counts` counts the samples known to be bad, by kind; `read_times` and `decode_times` are in seconds a sample.
    """

    status: DaemonStatus
    numbers: NumbersByGroup
    bad_counts: Mapping[str, Mapping[FaultKind, int]]
    read_times: Mapping[str, StageHistogram]
    decode_times: Mapping[str, StageHistogram]


def take_snapshot(daemon: MonitoredDaemon) -> MonitorSnapshot:
    """Returns the figures as of now. Called on the event loop's thread, so that all are of one moment."""
    streams, stats = daemon.streams, daemon.stats
    return MonitorSnapshot(
        daemon.build_status(),
        daemon.collect_stats_values(),
        {name: stream.quarantine.count_kinds() for name, stream in streams.items()},
        {name: stats.copy_histogram(f"stream.{name}", "read") for name in streams},
        {name: stats.copy_histogram(f"stream.{name}", "decode") for name in streams},
    )


# --- what the page shows


def build_dashboard_view(
    before: DaemonStatus | None, snapshot: MonitorSnapshot, streams: Mapping[str, ServedStream], host: str
) -> dict[str, Any]:
    """Returns what the page of the daemon on `host` shows, as plain data; page/shapes.js has its form.

    It is the status as it is, but for the words that belong to a figure and for what only the page shows. Bad samples
    are new since the status `before`.
    """
    status, new_bad = snapshot.status, count_new_bad_samples(before, snapshot.status)
    advice, daemon = BOTTLENECK_ADVICE[status.bottleneck], msgspec.to_builtins(status)
    del daemon["streams"], daemon["sessions"], daemon["cluster"]
    stream_views = []
    for each in status.streams:
        stream = streams[each.name]
        arrays, shards = stream.manifest.arrays is not None, stream.manifest.shards is not None
        stream_views.append(
            {
                **msgspec.to_builtins(each),
                "source": "arrays" if arrays else "shards" if shards else "files",
                "image": format_stream_images(stream.spec),
                "cached": stream.cache is not None,
                "taken_samples": int(read_number(snapshot.numbers, f"stream.{each.name}", "taken_samples")),
                "new_bad": new_bad[each.name],
                "faults": snapshot.bad_counts[each.name],
            }
        )
    trainer_views = []
    for session in sort_sessions(status.sessions):
        timing = session.last_epoch
        # The place where its user sees it: a trainer that has finished is at the end of its last epoch.
        epoch, own_step = find_reached_epoch_and_step(session)
        trainer_views.append(
            {
                **msgspec.to_builtins(session),
                "epoch": epoch,
                "own_step": own_step,
                "doing_words": STATE_WORDS[session.doing],
                "verdict": timing.verdict if timing else None,
                "verdict_short": BOTTLENECK_ADVICE[timing.verdict].short if timing else None,
                "verdict_words": timing.summary_text if timing else None,
            }
        )
    return {
        "daemon": {
            **daemon,
            "host": host,
            "window": format_window(status.window_s),
            "nodes": () if status.cluster is None else status.cluster.nodes,
        },
        "troubles": status.all_troubles,
        "way": {
            "reading": status.reading_fraction,
            "decoding": status.decoding_fraction,
            "slots": status.slots,
            "waiting": status.waiting_trainers,
            "limit": status.bottleneck,
            "words": advice.sentence,
            "tag": advice.limit,
            "is_bad": advice.is_bad,
        },
        "streams": stream_views,
        "trainers": trainer_views,
    }
