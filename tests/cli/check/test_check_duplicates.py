"""Files with the same content are found, and no others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamd.cli.check.labels import (
    FileContents,
    SharedFiles,
    find_duplicate_groups,
    find_repeated_samples,
    find_shared_files,
    group_identical_streams,
)


def contents(*files: tuple[int, int, int, int]) -> FileContents:
    """Files as (sample id, size, first half, second half of the digest)."""
    table = np.array(files, dtype=np.int64).reshape(-1, 4)
    return FileContents(table[:, 0], table[:, 1], table[:, 2:].astype(np.uint64))


def test_copies_have_the_same_size_and_the_same_digest() -> None:
    train = contents((0, 10, 1, 1), (1, 11, 1, 1), (2, 10, 1, 2), (3, 10, 2, 1), (4, 10, 1, 1))
    assert find_duplicate_groups({"train": train}) == [[("train", 0), ("train", 4)]]


def test_copies_are_found_across_streams_and_ordered_by_stream_and_sample() -> None:
    train = contents((7, 10, 1, 1), (3, 10, 1, 1), (4, 10, 9, 9))
    validation = contents((0, 10, 9, 9), (1, 10, 1, 1))
    assert find_duplicate_groups({"train": train, "validation": validation}) == [
        [("train", 3), ("train", 7), ("validation", 1)],
        [("train", 4), ("validation", 0)],
    ]


def test_adjacent_groups_stay_apart() -> None:
    files = contents((0, 1, 1, 1), (1, 1, 1, 1), (2, 1, 1, 2), (3, 1, 1, 2))
    assert find_duplicate_groups({"train": files}) == [[("train", 0), ("train", 1)], [("train", 2), ("train", 3)]]


def test_without_files_or_streams_there_are_no_copies() -> None:
    assert find_duplicate_groups({}) == []
    assert find_duplicate_groups({"train": contents()}) == []
    assert find_duplicate_groups({"train": contents((0, 1, 1, 1))}) == []


GROUPS: Sequence[Sequence[tuple[str, int]]] = [
    [("a", 1), ("a", 2), ("b", 3)],
    [("b", 4), ("b", 5), ("c", 6)],
    [("a", 7), ("b", 8), ("b", 9)],
]


def test_repeated_samples_are_copies_within_one_stream() -> None:
    assert find_repeated_samples(GROUPS, "a") == [[1, 2]]
    assert find_repeated_samples(GROUPS, "b") == [[4, 5], [8, 9]]
    assert find_repeated_samples(GROUPS, "c") == []


def test_shared_files_are_counted_in_the_second_stream() -> None:
    assert find_shared_files(GROUPS) == [SharedFiles("a", "b", 3, (1, 3), 3), SharedFiles("b", "c", 1, (4, 6), 2)]


def test_identical_streams_are_named_together_once() -> None:
    first = contents((0, 1, 1, 1), (1, 1, 2, 2))
    streams = {"a": first, "part": contents((0, 1, 1, 1)), "b": first, "c": first}
    files = {name: each.ids.size for name, each in streams.items()}
    assert group_identical_streams(find_shared_files(find_duplicate_groups(streams)), files) == [["a", "b", "c"]]
    without_b = find_shared_files(find_duplicate_groups({"a": first, "part": streams["part"]}))
    assert group_identical_streams(without_b, files) == []
