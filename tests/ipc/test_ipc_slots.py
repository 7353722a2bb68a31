"""Slots: sealed memory, read-only for all but the workers."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Iterator

import numpy as np
import pytest

from streamd.ipc.mapping import map_readable, map_writable
from streamd.ipc.slots import SlotStore

NBYTES = 3 * mmap.PAGESIZE


@pytest.fixture
def slots() -> Iterator[SlotStore]:
    store = SlotStore()
    yield store
    store.close()


@pytest.fixture
def readable(slots: SlotStore) -> Iterator[int]:
    """A client's descriptor of slot 1."""
    slots.ensure_slot(1, NBYTES)
    descriptor = slots.open_readable(1)
    assert descriptor is not None
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("nbytes", [0, NBYTES - 1, NBYTES + 1, 10 * NBYTES])
def test_a_slot_can_neither_shrink_nor_grow(slots: SlotStore, nbytes: int) -> None:
    descriptor = slots.ensure_slot(1, NBYTES)
    with pytest.raises(PermissionError) as caught:
        os.ftruncate(descriptor, nbytes)
    assert caught.value.errno == errno.EPERM
    assert os.fstat(descriptor).st_size == NBYTES


def test_no_seal_can_be_added_to_a_slot(slots: SlotStore) -> None:
    descriptor = slots.ensure_slot(1, NBYTES)
    assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    with pytest.raises(PermissionError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_only_the_owner_may_open_a_slot_and_only_to_read(slots: SlotStore) -> None:
    assert stat.S_IMODE(os.fstat(slots.ensure_slot(1, NBYTES)).st_mode) == 0o400


def test_a_clients_descriptor_can_neither_be_written_nor_mapped_for_writing(readable: int) -> None:
    with pytest.raises(PermissionError):
        map_writable(readable, NBYTES)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(readable, b"x")
    with pytest.raises(TypeError):
        map_readable(readable, NBYTES)[0] = 1


def test_readers_see_what_a_worker_writes_later(slots: SlotStore, readable: int) -> None:
    written = np.frombuffer(map_writable(slots.ensure_slot(1, NBYTES), NBYTES), dtype=np.uint8)
    read = np.frombuffer(map_readable(readable, NBYTES), dtype=np.uint8)
    served = slots.map_slot(1)
    assert not read.any()
    written[:] = 7
    assert (read == 7).all()
    assert served == bytes([7]) * NBYTES


def test_a_serial_names_one_slot_until_it_is_dropped(slots: SlotStore) -> None:
    assert slots.ensure_slot(1, NBYTES) == slots.ensure_slot(1, NBYTES)
    assert slots.ensure_slot(2, NBYTES) != slots.ensure_slot(1, NBYTES)
    assert (len(slots), slots.allocated_bytes) == (2, 2 * NBYTES)


def test_a_dropped_serial_opens_nothing(slots: SlotStore) -> None:
    assert slots.open_readable(1) is None
    slots.ensure_slot(1, NBYTES)
    slots.drop_slot(1)
    assert slots.open_readable(1) is None
    assert (len(slots), slots.allocated_bytes) == (0, 0)
    slots.drop_slot(1)


def test_existing_mappings_survive_dropping_the_slot(slots: SlotStore) -> None:
    memory = map_writable(slots.ensure_slot(1, NBYTES), NBYTES)
    memory[5] = 9
    view = slots.map_slot(1)
    slots.drop_slot(1)
    assert view[5] == 9


def test_a_slot_is_not_inherited_by_other_programs(slots: SlotStore, readable: int) -> None:
    assert not os.get_inheritable(slots.ensure_slot(1, NBYTES))
    assert not os.get_inheritable(readable)


def test_a_failed_allocation_leaves_no_slot(slots: SlotStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(OSError, match="Cannot allocate"):
        slots.ensure_slot(1, NBYTES)
    assert (len(slots), slots.allocated_bytes) == (0, 0)


def test_an_erased_slot_gives_its_memory_back_while_it_is_mapped(slots: SlotStore) -> None:
    descriptor = os.dup(slots.ensure_slot(1, NBYTES))
    try:
        memory = map_writable(descriptor, NBYTES)
        memory[:] = b"\x09" * NBYTES
        assert os.fstat(descriptor).st_blocks > 0
        slots.drop_slot(1, is_erased=True)
        assert os.fstat(descriptor).st_blocks == 0
        assert memory[5] == 0
    finally:
        os.close(descriptor)
