"""A column of any number of rows a sample: in memory, and in the file of a manifest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamd.core.spec import LabelSpec
from streamd.dataset.manifest.columns import RaggedColumn
from streamd.dataset.manifest.manifest import Manifest, compute_content_id, write_manifest
from streamd.dataset.manifest.types import ScannedSamples

SPEC = LabelSpec("boxes", "boxes", width=5, classes=("cat", "dog"), counts=(3, 0), rows=4)


def ragged(*counts: int, width: int = 5) -> RaggedColumn:
    total = sum(counts)
    return RaggedColumn(np.cumsum(counts), np.arange(total * width, dtype=np.float32).reshape(total, width))


def samples(column: RaggedColumn, spec: LabelSpec = SPEC) -> ScannedSamples:
    names = [b"%d.png" % number for number in range(len(column))]
    zeros = np.zeros(len(names), np.int64)
    return ScannedSamples(Path("/data"), names, zeros, zeros, {"boxes": column}, {"boxes": spec})


def test_each_sample_has_its_own_rows() -> None:
    column = ragged(2, 0, 1)
    assert column.counts.tolist() == [2, 0, 1]
    assert column.read_sample(0).tolist() == column.numbers[:2].tolist()
    assert column.read_sample(1).shape == (0, 5)
    assert column.read_sample(2).tolist() == column.numbers[2:].tolist()
    assert column.tolist() == [each.tolist() for each in map(column.read_sample, range(3))]


@pytest.mark.parametrize("chosen", [[0, 2, 3], [3], [1], []])
def test_a_selection_keeps_the_rows_of_its_samples(chosen: list[int]) -> None:
    column = ragged(2, 0, 1, 3)
    taken = column[np.array(chosen, np.int64)]
    assert taken.shape == (len(chosen),)
    assert taken.tolist() == [column.read_sample(sample).tolist() for sample in chosen]


def test_a_manifest_gives_the_boxes_back_in_a_fraction_of_the_padded_bytes(tmp_path: Path) -> None:
    column, path = ragged(*[3] * 400), tmp_path / "manifest"
    write_manifest(path, samples(column, replace(SPEC, rows=100)), config_id="")
    manifest = Manifest.open(path)
    found = manifest.ragged_column("boxes")
    assert found.read_sample(7).tolist() == column.read_sample(7).tolist()
    assert manifest.labels["boxes"].shape == (100, 5)
    manifest.close()
    assert path.stat().st_size < 400 * 100 * 5 * 4 / 10


@pytest.mark.parametrize("change", ["a number", "which sample has it", "the unit"])
def test_the_content_id_depends_on_every_box_and_on_its_unit(change: str) -> None:
    column, spec = ragged(2, 1), SPEC
    before = compute_content_id(samples(column, spec))
    assert compute_content_id(samples(ragged(2, 1), replace(spec, rows=9, min_visible=0.5))) == before
    if change == "a number":
        column.numbers[0, 0] += 1
    elif change == "which sample has it":
        column = RaggedColumn(np.array([1, 3]), column.numbers)
    else:
        spec = replace(spec, unit="fraction")
    assert compute_content_id(samples(column, spec)) != before
