"""Export of lent memory through DLPack. NumPy stands in for the frameworks: it takes capsules as they do."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.leased_arrays import IMAGES, Lender, address

from streamd.frameworks import dlpack
from streamd.frameworks.dlpack import copy_to_aligned_memory, export
from streamd.ipc.mapping import build_leased_array, map_private, map_readable

Images = np.ndarray[Any, Any]


class Frugal:
    """Takes the array's export the old way, unversioned and writable, as TensorFlow does."""

    def __init__(self, array: Images) -> None:
        self._array = array

    def __dlpack__(self, *, stream: None = None, **_: object) -> Any:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def exported(array: Images) -> Images:
    shared = export(array)
    assert shared is not None
    return shared


def test_numpy_itself_refuses_to_export_lent_memory_unversioned() -> None:
    with pytest.raises(BufferError, match="readonly"):
        Lender().lend().__dlpack__()


def test_the_export_is_the_lent_memory() -> None:
    images = Lender().lend()
    taken = np.from_dlpack(Frugal(exported(images)))
    assert address(taken) == address(images)
    np.testing.assert_array_equal(taken, images)
    assert (taken.shape, taken.dtype) == (images.shape, images.dtype)


def test_the_lease_ends_with_the_last_view_of_the_export() -> None:
    lender = Lender()
    taken = np.from_dlpack(Frugal(exported(lender.lend())))
    row = taken[1]
    del taken
    gc.collect()
    assert lender.held == 1
    del row
    assert lender.held == 0


def test_a_capsule_that_nobody_takes_ends_its_lease() -> None:
    lender = Lender()
    capsule = exported(lender.lend()).__dlpack__()
    assert lender.held == 1
    del capsule
    assert lender.held == 0


def test_the_lease_ends_when_another_thread_drops_the_tensor() -> None:
    lender = Lender()
    kept = [np.from_dlpack(Frugal(exported(lender.lend())))]
    dropping = threading.Thread(target=kept.clear)
    dropping.start()
    dropping.join()
    assert lender.held == 0


def test_each_export_of_one_memory_holds_the_lease() -> None:
    lender = Lender()
    images = lender.lend()
    one, two = exported(images), exported(images)
    del images, one
    assert lender.held == 1
    del two
    assert lender.held == 0


def test_memory_for_writers_is_a_copy_until_their_client_maps_it_privately(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = threading.Event()
    monkeypatch.setattr(dlpack, "PRIVATE_WANTED", wanted)
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, IMAGES.size_bytes)
    arrays = [
        build_leased_array(map_slot(descriptor, IMAGES.size_bytes), IMAGES, lambda: None)
        for map_slot in (map_readable, map_private)
    ]
    os.close(descriptor)
    assert export(arrays[0]) is not None
    assert not wanted.is_set()
    assert export(arrays[0], writable=True) is None
    assert wanted.is_set()
    exported = export(arrays[1], writable=True)
    assert exported is not None
    exported[:] = 7
    assert ((arrays[1] == 7).all(), (arrays[0] == 0).all()) == (True, True)


def test_the_exported_array_stays_read_only() -> None:
    images = Lender().lend()
    exported(images)
    assert not images.flags.writeable


@pytest.mark.parametrize(
    "cut",
    [
        lambda images: images[:, ::2],
        lambda images: images.T,
        lambda images: images.reshape(-1)[1:],
        lambda images: images[:0],
        lambda images: images.reshape(-1).view(">i4"),
        lambda images: images.reshape(-1).view("S4"),
        lambda images: images.reshape(-1).view(bool),
        lambda images: images.reshape(-1).view(np.complex64),
        lambda images: images.reshape(-1).view(np.longdouble),
    ],
    ids=["strided", "transposed", "unaligned", "empty", "byte order", "text", "bool", "complex", "16 bytes"],
)
def test_memory_that_dlpack_cannot_share_is_not_exported(cut: Callable[[Images], Images]) -> None:
    assert export(cut(Lender().lend())) is None


def test_writable_memory_is_not_exported() -> None:
    images = Lender().lend()
    aligned = np.frombuffer(bytearray(4096), np.uint8)
    aligned = aligned[-address(aligned) % 64 :]
    assert export(aligned) is None
    aligned.setflags(write=False)
    assert export(aligned) is not None
    assert export(images) is not None


@pytest.mark.parametrize("cut", [lambda images: images.reshape(-1)[1:], lambda images: images[:, ::2]])
def test_a_copy_is_exported_from_an_aligned_address_and_shows_nothing_written_later(
    cut: Callable[[Images], Images],
) -> None:
    images = cut(Lender().lend().copy())
    before = images.copy()
    taken = copy_to_aligned_memory(images)
    assert taken is not None
    images[...] = 0
    assert address(taken) % 64 == 0
    np.testing.assert_array_equal(np.from_dlpack(Frugal(taken)), before)


@pytest.mark.parametrize(
    "array", [np.zeros((0, 3), np.uint8), np.zeros(2, "S4"), np.zeros(2, ">i4"), np.zeros(2, bool)]
)
def test_empty_arrays_and_foreign_types_are_not_copied_for_export(array: Images) -> None:
    assert copy_to_aligned_memory(array) is None
