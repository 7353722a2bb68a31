"""A snapshot of the daemon's state, and what a second one adds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support.sample_metrics import NOTHING, STATUS, Books

from streamd.core.counters import ProcessStats
from streamd.core.sampler import BadSample
from streamd.daemon.monitor.snapshot import take_snapshot
from streamd.daemon.streams.quarantine import Quarantine
from streamd.daemon.streams.served_stream import ServedStream


def test_new_bad_samples_are_counted_by_kind(stream: ServedStream) -> None:
    books = Books(streams={"train": stream})
    assert take_snapshot(books).bad_counts == {"train": {}}
    stream.quarantine.append_new_bad_samples([BadSample(1, "stale: x"), BadSample(2, "stale: y")])
    assert take_snapshot(books).bad_counts == {"train": {"stale": 2}}
    stream.quarantine.append_new_bad_samples([BadSample(3, "a damaged PNG: z")])
    assert take_snapshot(books).bad_counts == {"train": {"stale": 2, "damaged": 1}}


def test_a_stream_that_was_changed_has_bad_samples_of_its_own(stream: ServedStream, tmp_path: Path) -> None:
    streams = {"train": stream}
    books = Books(streams=streams)
    stream.quarantine.append_new_bad_samples([BadSample(1, "stale: x")])
    take_snapshot(books)
    streams["train"] = replace(stream, quarantine=Quarantine(tmp_path / "other", str))
    assert take_snapshot(books).bad_counts == {"train": {}}
    del streams["train"]
    assert take_snapshot(books).bad_counts == {}


def test_a_snapshot_copies_the_histograms_of_stats(stream: ServedStream) -> None:
    stats = ProcessStats()
    books = Books(streams={"train": stream}, stats=stats)
    stats.stage_histogram("stream.train", "read").add_runs(0.02, 10)
    stats.stage_histogram("stream.gone", "read").add_runs(1.0)
    seen = take_snapshot(books)
    stats.stage_histogram("stream.train", "read").add_runs(1.0)
    assert (sum(seen.read_times["train"].bucket_counts), seen.read_times["train"].total_s) == (10, 0.02)
    assert (list(seen.read_times), seen.decode_times["train"]) == (["train"], NOTHING)


def test_a_snapshot_has_the_status_and_the_numbers_of_stats() -> None:
    numbers = {"stream.train": {"produced": 3.0}}
    seen = take_snapshot(Books(counted=numbers))
    assert (seen.status, seen.numbers) == (STATUS, numbers)
