"""Files with the same content, within a stream and across streams. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from streamd.dataset.manifest.types import Int64s

Digests = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class FileContents:
    """The contents of a stream's files: `ids` (m,) of the samples that were read, `sizes` (m,) in bytes, and `digests`
    (m, 2), two halves of 16 bytes."""

    ids: Int64s
    sizes: Int64s
    digests: Digests


StreamSample = tuple[str, int]  # stream, sample id


def find_duplicate_groups(streams: Mapping[str, FileContents]) -> list[list[StreamSample]]:
    """Groups the samples whose files have the same size and digest; a group is ordered by stream and sample id."""
    names = list(streams)
    parts = list(streams.values())
    if not parts:
        return []
    ids = np.concatenate([part.ids for part in parts])
    owners = np.repeat(np.arange(len(parts)), [part.ids.size for part in parts])
    sizes = np.concatenate([part.sizes for part in parts])
    digests = np.concatenate([part.digests for part in parts])
    order = np.lexsort((ids, owners, digests[:, 1], digests[:, 0], sizes))
    same = (sizes[order[1:]] == sizes[order[:-1]]) & (digests[order[1:]] == digests[order[:-1]]).all(axis=1)
    return [
        [(names[owners[at]], int(ids[at])) for at in order[start:stop]]
        for start, stop in _find_equal_runs(same)
    ]  # fmt: skip


def _find_equal_runs(same: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yields the start and stop of each run of equal neighbours; `same` (n - 1,) compares each with the next."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
    for start, stop in edges.reshape(-1, 2).tolist():
        yield start, stop + 1


def find_repeated_samples(groups: Sequence[Sequence[StreamSample]], stream: str) -> list[list[int]]:
    """Returns, for each group with several samples of `stream`, the ids of these."""
    inner = ([sample_id for name, sample_id in group if name == stream] for group in groups)
    return [ids for ids in inner if len(ids) > 1]


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """Two streams with files in common: `files` of the second stream are also in the first, for example `example`.

    `others` of the first stream are also in the second; the two numbers differ if a stream has copies.
    """

    first: str
    second: str
    files: int
    example: tuple[int, int]  # sample ids in the first and in the second
    others: int


def find_shared_files(groups: Sequence[Sequence[StreamSample]]) -> list[SharedFiles]:
    """Finds the files that each pair of streams has in common, in the order of the groups."""
    found: dict[tuple[str, str], SharedFiles] = {}
    for group in groups:
        counts = Counter(name for name, _ in group)
        leaders = dict(reversed(group))
        for first, second in combinations(counts, 2):
            earlier = found.get((first, second))
            example = earlier.example if earlier else (leaders[first], leaders[second])
            files = counts[second] + (earlier.files if earlier else 0)
            others = counts[first] + (earlier.others if earlier else 0)
            found[first, second] = SharedFiles(first, second, files, example, others)
    return list(found.values())


def group_identical_streams(pairs: Sequence[SharedFiles], files: Mapping[str, int]) -> list[list[str]]:
    """Groups the streams that have exactly the same files; `files` is the number of files of each stream."""
    same: dict[str, list[str]] = {}  # by the first of a group
    for each in pairs:
        led = any(each.first in group[1:] for group in same.values())
        if not led and (each.others, each.files) == (files[each.first], files[each.second]):
            same.setdefault(each.first, [each.first]).append(each.second)
    return list(same.values())
