"""The slots that a bridge has mapped, and the copy of a result's rows into one of them."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from streamd.core.slot_layout import compute_layout
from streamd.core.spec import StreamSpec
from streamd.errors import ProtocolError
from streamd.ipc.mapping import map_writable
from streamd.ipc.worker_messages import FillRows


class MappedSlots:
    """Slots by serial. A task that still uses one holds its memory, so a mapping lasts until that task is over."""

    def __init__(self) -> None:
        self._slots: dict[int, memoryview] = {}

    def map_slot_of(self, task: FillRows, descriptors: list[int]) -> memoryview:
        """Returns the memory of a task's slot. A slot that is new comes with the first of `descriptors`."""
        if task.slot not in self._slots:
            descriptor = descriptors.pop(0)
            self._slots[task.slot] = map_writable(descriptor, task.slot_bytes)
            os.close(descriptor)  # the mapping outlives it
        return self._slots[task.slot]

    def unmap_slots(self, slots: tuple[int, ...]) -> None:
        """Forgets slots that the daemon is about to close."""
        for slot in slots:
            self._slots.pop(slot, None)


def write_rows(spec: StreamSpec, task: FillRows, rows: npt.NDArray[np.uint8], memory: memoryview) -> None:
    """Copies the rows of a result, which lie as a batch of their own, to their places in the task's slot.

    Raises ProtocolError if the result has not the size of these rows.
    """
    count = task.rows.size
    source, target = compute_layout(spec, count), compute_layout(spec, task.batch_rows)
    if rows.size != source.size_bytes:
        raise ProtocolError(f"a result of {count} rows has {rows.size} bytes, but they take {source.size_bytes}")
    view = rows.data
    first = int(task.rows[0])
    is_run = bool((task.rows == np.arange(first, first + count, dtype=task.rows.dtype)).all())
    places = slice(first, first + count) if is_run else task.rows
    for ours, theirs in zip(target.all_tensors, source.all_tensors, strict=True):
        ours.build_array_in_memory(memory)[places] = theirs.build_array_in_memory(view)
