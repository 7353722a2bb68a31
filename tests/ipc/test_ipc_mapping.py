"""A leased array keeps its memory while any view of it lives, and returns it once."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.core.slot_layout import SlotTensor
from streamd.ipc.mapping import (
    build_leased_array,
    drop_private_pages,
    is_write_protected,
    map_private,
    map_readable,
    map_writable,
)

TENSOR = SlotTensor("images", "uint8", (4, 6, 8, 3), 4096)
NBYTES = 2 * 4096
Array = npt.NDArray[np.uint8]

WAYS: dict[str, Callable[[Array], Array]] = {
    "slice": lambda array: array[1:3, ::2],
    "row": lambda array: array[2],
    "reshape": lambda array: array.reshape(4, -1),
    "transpose": lambda array: array.transpose(0, 3, 1, 2),
    "bytes": lambda array: array.view(np.int8).view(np.uint8),
    "flat": np.ravel,
    "asarray": np.asarray,
    "memoryview": lambda array: np.asarray(array.data),
    "frombuffer": lambda array: np.frombuffer(array, dtype=np.uint8),
    "strided": lambda array: np.lib.stride_tricks.as_strided(array, array.shape, array.strides),
    "dlpack": lambda array: np.asarray(np.from_dlpack(array), dtype=np.uint8),
    "new axis": lambda array: array[None],
}


def memory() -> memoryview:
    """A mapped file of 8 KiB, counting up."""
    descriptor = os.memfd_create("test")
    try:
        os.write(descriptor, bytes(range(256)) * (NBYTES // 256))
        return map_readable(descriptor, NBYTES)
    finally:
        os.close(descriptor)


def test_a_leased_array_shares_the_mapped_memory() -> None:
    mapped = memory()
    array = build_leased_array(mapped, TENSOR, lambda: None)
    assert (array.shape, str(array.dtype), array.flags.c_contiguous) == (TENSOR.shape, "uint8", True)
    assert np.shares_memory(array, np.frombuffer(mapped, np.uint8))
    assert array.tobytes() == bytes(mapped)[4096 : 4096 + TENSOR.size_bytes]


def test_a_mapping_needs_no_descriptor() -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    mapped = [memory() for _ in range(3)]
    assert descriptors() == before
    assert mapped[2][257] == 1


def test_a_mapping_ends_with_its_last_view() -> None:
    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:test")

    mapped = memory()
    view = np.frombuffer(mapped, np.uint8)[5:9]
    del mapped
    gc.collect()
    assert mappings() == 1
    del view
    gc.collect()
    assert mappings() == 0


def test_a_failed_mapping_raises_the_system_error() -> None:
    with pytest.raises(OSError, match="Bad file descriptor") as raised:
        map_readable(-1, NBYTES)
    assert raised.value.errno == errno.EBADF


@pytest.mark.parametrize("way", WAYS)
def test_a_view_of_any_kind_keeps_the_lease(way: str) -> None:
    returned: list[int] = []
    array = build_leased_array(memory(), TENSOR, lambda: returned.append(1))
    view = WAYS[way](array)
    expected = view.copy()
    del array
    gc.collect()
    assert returned == []
    assert np.array_equal(view, expected)
    del view
    assert returned == [1]


@settings(deadline=None)
@given(st.lists(st.sampled_from(sorted(WAYS)), max_size=8), st.randoms())
def test_the_lease_ends_once_with_the_last_of_many_views(ways: list[str], order: Random) -> None:
    returned: list[int] = []
    array = build_leased_array(memoryview(bytes(NBYTES)), TENSOR, lambda: returned.append(1))
    views = [array, *(WAYS[way](array) for way in ways)]
    del array
    order.shuffle(views)
    while views:
        assert returned == []
        views.pop()
    assert returned == [1]


def test_two_arrays_of_one_memory_have_separate_leases() -> None:
    mapped, returned = memory(), list[str]()
    one = build_leased_array(mapped, TENSOR, lambda: returned.append("one"))
    two = build_leased_array(mapped, TENSOR, lambda: returned.append("two"))
    del one
    assert returned == ["one"]
    del two
    assert returned == ["one", "two"]


class PrivatePages:
    """A slot of three pages as its worker, one trainer that writes to its batches, and another trainer see it."""

    def __init__(self) -> None:
        descriptor = os.memfd_create("test")
        os.ftruncate(descriptor, 3 * 4096)
        self.worker, self.other = map_writable(descriptor, 3 * 4096), map_readable(descriptor, 3 * 4096)
        self.mapped = map_private(descriptor, 3 * 4096)
        os.close(descriptor)
        # As a tensor does, which knows nothing of an array's flags.
        address = np.frombuffer(self.mapped, np.uint8).ctypes.data
        self.tensor = (ctypes.c_ubyte * (3 * 4096)).from_address(address)

    def fill(self, number: int) -> None:
        self.worker[:] = bytes([number]) * (3 * 4096)


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 3 * 4096 - 1), st.integers(128, 255)), max_size=4), max_size=6))
def test_what_a_trainer_writes_is_its_own_and_gone_in_the_next_batch(batches: list[list[tuple[int, int]]]) -> None:
    slot = PrivatePages()
    for number, writes in enumerate(batches):
        slot.fill(number)
        assert drop_private_pages(slot.mapped)
        seen = bytearray([number]) * (3 * 4096)
        assert bytes(slot.mapped) == seen
        for place, value in writes:
            slot.tensor[place] = seen[place] = value
        assert bytes(slot.mapped) == seen
        assert set(bytes(slot.other)) == {number}


@pytest.mark.parametrize("call", ["open", "pread"])
def test_what_was_written_is_gone_where_the_kernel_does_not_say_what_was(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = PrivatePages()
    slot.tensor[5] = 9

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, call, refuse)
    assert drop_private_pages(slot.mapped)
    assert slot.mapped[5] == 0


def test_pages_that_cannot_be_dropped_need_another_mapping() -> None:
    slot = PrivatePages()
    assert not drop_private_pages(slot.other)
    slot.tensor[5] = 9
    libc = ctypes.CDLL(None)
    assert libc.mlock(ctypes.byref(slot.tensor), ctypes.c_size_t(4096)) == 0
    assert not drop_private_pages(slot.mapped)


def test_memory_that_may_not_be_written_is_told_from_memory_that_may() -> None:
    slot = PrivatePages()
    for mapped, is_protected in ((slot.other, True), (slot.mapped, False), (memoryview(bytes(NBYTES)), False)):
        array = build_leased_array(mapped, TENSOR, lambda: None)
        for view in (array, array[1:], array.view(np.int8), np.asarray(array.data)):
            assert is_write_protected(view) == is_protected
    assert not is_write_protected(np.zeros(3))


def test_a_leased_array_cannot_be_written() -> None:
    array = build_leased_array(memory(), TENSOR, lambda: None)
    for view in (array, array[0], array.reshape(-1)):
        assert not view.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        array.setflags(write=True)
    of_writable_memory = build_leased_array(memoryview(bytearray(NBYTES)), TENSOR, lambda: None)
    assert not of_writable_memory.flags.writeable


def test_a_reference_cycle_returns_its_lease_when_collected() -> None:
    returned: list[int] = []
    knot: list[object] = [build_leased_array(memory(), TENSOR, lambda: returned.append(1))]
    knot.append(knot)
    del knot
    gc.collect()
    assert returned == [1]


def test_a_program_that_exits_with_leased_memory_prints_no_error() -> None:
    code = (
        "import sys, numpy; from streamd.core.slot_layout import SlotTensor\n"
        "from streamd.ipc.mapping import build_leased_array\n"
        "tensor = SlotTensor('images', 'uint8', (8, 8), 0)\n"
        "lent = lambda: build_leased_array(memoryview(bytes(64)), tensor, lambda: None)\n"
        "kept, sys.kept, numpy.kept, knot = lent(), lent(), lent(), [lent()]\n"
        "knot.append(knot)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
