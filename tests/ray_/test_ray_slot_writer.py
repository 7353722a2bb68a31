"""The rows of a result lie in the slot where they belong, with their labels."""

from __future__ import annotations

import os

import numpy as np
import pytest

from streamd.core.slot_layout import compute_layout, compute_slot_bytes
from streamd.core.spec import StreamSpec
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import ProtocolError
from streamd.ipc.slots import MappedSlots, SlotStore
from streamd.ipc.worker_messages import FillRows
from streamd.ray.bridge import write_rows


def task_of(spec: StreamSpec, rows: list[int]) -> FillRows:
    ids = np.array(rows, np.int64) + 100
    return FillRows(1, 0, 7, compute_slot_bytes(spec), spec.batch_size, np.array(rows, np.uint16), ids)


def result_of(spec: StreamSpec, rows: list[int]) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    layout = compute_layout(spec, len(rows))
    result = np.zeros(layout.size_bytes, np.uint8)
    layout.images.build_array_in_memory(result.data)[:] = np.array(rows)[:, None, None, None]
    layout.sample_ids.build_array_in_memory(result.data)[:] = np.array(rows) + 100
    return result


@pytest.mark.parametrize("rows", [[2, 3, 4], [0, 2, 5], [1]])
def test_rows_of_a_task_are_copied_to_their_places_and_no_others(stream: ServedStream, rows: list[int]) -> None:
    spec = stream.spec
    slots, mapped = SlotStore(), MappedSlots()
    task = task_of(spec, rows)
    memory = mapped.map_slot(7, task.slot_bytes, [os.dup(slots.ensure_slot(7, task.slot_bytes))])
    assert mapped.map_slot(7, task.slot_bytes, []) is memory
    write_rows(spec, task, result_of(spec, rows), memory)
    layout = compute_layout(spec, spec.batch_size)
    seen = layout.images.build_array_in_memory(slots.map_slot(7))[:, 0, 0, 0].tolist()
    assert seen == [row if row in rows else 0 for row in range(spec.batch_size)]
    ids = layout.sample_ids.build_array_in_memory(slots.map_slot(7)).tolist()
    assert [ids[row] for row in rows] == [row + 100 for row in rows]
    mapped.unmap_slots((7, 8))
    slots.close()


def test_a_result_of_another_size_is_refused(stream: ServedStream) -> None:
    spec = stream.spec
    task = task_of(spec, [0, 1])
    with pytest.raises(ProtocolError, match="a result of 2 rows has"):
        write_rows(spec, task, result_of(spec, [0]), memoryview(bytearray(task.slot_bytes)))
