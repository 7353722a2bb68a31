"""What a look at the books sees, and that a second one sees what came between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemons import write_images
from made_figures import NOTHING, STATUS, Books
from served_folders import serve

from streamd.core.counters import ProcessStats
from streamd.daemon.monitor.snapshot import Sight
from streamd.daemon.streams.quarantine import Quarantine
from streamd.daemon.streams.served_stream import ServedStream


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[ServedStream]:
    stream = serve(write_images(tmp_path / "data", {"cat": 8}, size=(8, 8)), tmp_path / "state")
    yield stream
    stream.manifest.close()


def test_bad_samples_are_counted_by_kind_as_they_come(stream: ServedStream) -> None:
    sight = Sight(Books(streams={"train": stream}), ProcessStats())
    assert sight.look().bad == {"train": {}}
    stream.quarantine.reasons.update({1: "stale: x", 2: "stale: y"})
    assert sight.look().bad == {"train": {"stale": 2}}
    stream.quarantine.reasons[3] = "a damaged PNG: z"
    assert sight.look().bad == {"train": {"stale": 2, "damaged": 1}}


def test_a_stream_that_was_changed_has_bad_samples_of_its_own(stream: ServedStream, tmp_path: Path) -> None:
    streams = {"train": stream}
    sight = Sight(Books(streams=streams), ProcessStats())
    stream.quarantine.reasons[1] = "stale: x"
    sight.look()
    streams["train"] = replace(stream, quarantine=Quarantine(tmp_path / "other", str))
    assert sight.look().bad == {"train": {}}
    del streams["train"]
    assert sight.look().bad == {}


def test_reads_and_decodes_are_those_of_stats_and_do_not_move_afterwards(stream: ServedStream) -> None:
    stats = ProcessStats()
    sight = Sight(Books(streams={"train": stream}), stats)
    stats.stage_histogram("stream.train", "read").add_runs(0.02, 10)
    stats.stage_histogram("stream.gone", "read").add_runs(1.0)
    seen = sight.look()
    stats.stage_histogram("stream.train", "read").add_runs(1.0)
    assert (sum(seen.reads["train"].cells), seen.reads["train"].total_s) == (10, 0.02)
    assert (list(seen.reads), seen.decodes["train"].cells) == (["train"], tuple(NOTHING.cells))


def test_status_and_numbers_are_the_services_and_what_was_not_counted_is_none() -> None:
    seen = Sight(Books(counted={"stream.train": {"produced": 3}}), ProcessStats()).look()
    assert seen.status is STATUS
    assert (seen.of_stream("train", "produced"), seen.of_stream("other", "produced"), seen.counter_value("a", "b")) == (
        3,
        0,
        0,
    )
