"""A stream as a worker has it open: what it reads, what it leaves to a store, and when it reads ahead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from daemons import write_images
from opened_sources import LABELS, holding
from served_folders import file_of, serve

from streamd.errors import ConfigError
from streamd.opened import ReadPace, Source, Unread
from streamd.plan import PAD_ID
from streamd.served import ServedStream


def test_files_that_a_store_holds_are_not_read_ahead(source: Source, stream: ServedStream) -> None:
    stocked, _ = holding(source, 2, 4)
    file_of(stream, 4).unlink()
    ids = np.array([4, 3, PAD_ID], np.int64)
    late, read, pad = stocked.read(ids)
    assert (late, read, pad) == (Unread.LATER, file_of(stream, 3).read_bytes(), None)
    assert stocked.lacking(ids).tolist() == [False, True, False]


def test_a_store_hears_of_what_is_to_be_gathered(source: Source) -> None:
    stocked, store = holding(source, 2)
    stocked.expect(np.array([4, 2], np.int64))
    source.expect(np.array([4, 2], np.int64))  # which has none
    assert store.expected == [4, 2]


def test_a_store_is_closed_with_its_source(stream: ServedStream) -> None:
    stocked, store = holding(Source.open(stream.spec, stream.manifest_path))
    stocked.close()
    assert store.closed


def test_a_source_whose_root_is_gone_is_an_error(stream: ServedStream, tmp_path: Path) -> None:
    (tmp_path / "data").rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError):
        Source.open(stream.spec, stream.manifest_path)


def test_files_are_read_ahead_until_eight_groups_in_a_row_took_no_time() -> None:
    pace = ReadPace()
    for _ in range(7):
        pace.note(32, 0.0003)
        assert pace.ahead
    pace.note(32, 0.0003)
    assert not pace.ahead


def test_one_slow_group_brings_reading_ahead_back_for_good_measure() -> None:
    pace = ReadPace()
    for _ in range(20):
        pace.note(32, 0.0003)
    pace.note(32, 0.01)
    assert pace.ahead
    for _ in range(7):
        pace.note(32, 0.0003)
    assert pace.ahead


def test_a_group_that_the_store_held_says_nothing_of_the_pace() -> None:
    pace = ReadPace()
    for _ in range(20):
        pace.note(0, 0.0)
    assert pace.ahead


def test_the_pace_counts_by_file_not_by_group() -> None:
    pace = ReadPace()
    for _ in range(8):
        pace.note(1, 0.0003)
    assert pace.ahead


def test_a_list_that_another_daemon_made_since_is_not_taken_for_this_one(stream: ServedStream) -> None:
    write_images(stream.manifest.root, {"cat": 5})
    serve(stream.manifest.root, stream.manifest_path.parent, rescan=True, labels=LABELS)
    with pytest.raises(ConfigError, match="listed anew by another streamd"):
        Source.open(stream.spec, stream.manifest_path)
