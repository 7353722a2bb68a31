"""The results of sample groups are added up in any order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.faulty_data import animals
from support.served_folder import serve

from streamd.cli.check.run import StreamTotals, choose_counted_ids, choose_sample_ids, split_into_sample_groups
from streamd.config.schema_sections import ExpectConfig
from streamd.ipc.worker_messages import ClassPixels, GroupResult, SampleFault, SizeExample
from streamd.limits import TASK_ROWS
from streamd.worker.inspect_rows import compare_sizes


@pytest.mark.parametrize("most", [None, 4, 9])
def test_without_a_bound_or_with_a_large_one_all_samples_are_chosen(most: int | None) -> None:
    assert choose_sample_ids(4, most).tolist() == [0, 1, 2, 3]


def test_a_choice_is_spread_evenly_over_all_samples() -> None:
    ids = choose_sample_ids(1000, 30)
    assert ids.size == 30
    assert ids[0] == 0
    assert set(np.diff(ids).tolist()) == {33, 34}


def test_groups_hold_every_id_once_and_are_as_large_as_a_task() -> None:
    ids = choose_sample_ids(10 * TASK_ROWS, 2 * TASK_ROWS + 1)
    parts = list(split_into_sample_groups(3, ids, ids[[0, TASK_ROWS]]))
    assert [len(part.ids) for part in parts] == [TASK_ROWS, TASK_ROWS, 1]
    assert {part.stream for part in parts} == {3}
    assert [sample_id for part in parts for sample_id in part.ids] == ids.tolist()
    assert [part.counted for part in parts] == [[ids[0]], [ids[TASK_ROWS]], []]


def test_the_masks_of_few_samples_are_all_counted_and_of_many_always_the_same() -> None:
    assert choose_counted_ids(np.array([3, 5, 8]), 3).tolist() == [3, 5, 8]
    chosen = choose_counted_ids(np.arange(10_000), 100)
    assert (chosen.size, len(set(chosen.tolist()))) == (100, 100)
    assert chosen.tolist() == sorted(choose_counted_ids(np.arange(10_000), 100).tolist())
    assert 3000 < chosen.mean() < 7000


def test_odd_sizes_and_class_numbers_of_masks_are_added_up(tmp_path: Path) -> None:
    animals(tmp_path)
    tally = StreamTotals(serve(tmp_path / "data", tmp_path / "state"), np.arange(4))
    for number, pixels in enumerate(({0: 3, 1: 1}, {1: 4})):
        odd = compare_sizes(number, (9, 4), (4, 9))
        counted = {"mask": ClassPixels(1, pixels)}
        tally.add_group_result(GroupResult(0, [], odd_sizes={"mask": odd}, class_pixels=counted))
    assert tally.class_pixels == {"mask": ClassPixels(2, {0: 3, 1: 5})}
    assert (tally.odd_sizes["mask"].skewed, tally.odd_sizes["mask"].skewed_example) == (
        2,
        SizeExample(0, (9, 4), (4, 9)),
    )


def test_sums_and_contents_do_not_depend_on_the_order_of_answers(tmp_path: Path) -> None:
    animals(tmp_path)
    stream = serve(tmp_path / "data", tmp_path / "state")
    seen = [
        GroupResult(0, [0, 2], 1.0, 2.0, {"JPEG": 1}, {"1x2": 1}, 1, ["01" * 16], [SampleFault(0, "bad", "verdict")]),
        GroupResult(0, [4, 6], 0.5, 0.25, {"JPEG": 1, "PNG": 1}, {"1x2": 2}, 0, ["02" * 16, "03" * 16]),
    ]
    for answers in (seen, seen[::-1]):
        tally = StreamTotals(stream, np.array([0, 2, 4, 6]))
        for answer in answers:
            tally.add_group_result(answer)
        assert (tally.samples_read, tally.read_s, tally.decode_s, tally.enlarged) == (4, 1.5, 2.25, 1)
        assert (tally.formats, tally.sizes) == ({"JPEG": 2, "PNG": 1}, {"1x2": 3})
        assert [fault.sample_id for fault in tally.faults] == [0]
        contents = tally.comparable_contents
        assert contents.ids.tolist() == [2, 4, 6]
        assert contents.sizes.tolist() == stream.manifest.sizes[[2, 4, 6]].tolist()
        assert contents.digests.tobytes() == b"\1" * 16 + b"\2" * 16 + b"\3" * 16


def test_with_expect_a_fault_of_this_hosts_copy_stops_the_stream(tmp_path: Path) -> None:
    animals(tmp_path)
    stream = serve(tmp_path / "data", tmp_path / "state")
    faults = [SampleFault(0, "No such file", "verdict", of_this_host=True), SampleFault(1, "damaged", "verdict")]
    effects = []
    for served in (stream, replace(stream, expected=ExpectConfig(order="0" * 32))):
        totals = StreamTotals(served, np.array([0, 1]))
        totals.add_group_result(GroupResult(0, [0, 1], faults=faults))
        effects.append([fault.effect for fault in totals.faults])
    assert effects == [["verdict", "verdict"], ["retry", "verdict"]]
