"""Mapping a slot: read-only in a client, writable in a worker; and the lease that ends with the last view."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from streamd.layout import Tensor


def map_readable(descriptor: int, nbytes: int) -> memoryview:
    """Maps a slot for a client.

    MAP_SHARED and never private: a private page that someone wrote would show the old batch for ever.
    """
    return memoryview(mmap.mmap(descriptor, nbytes, mmap.MAP_SHARED, mmap.PROT_READ))


def map_writable(descriptor: int, nbytes: int) -> memoryview:
    """Maps a slot for a worker."""
    return memoryview(mmap.mmap(descriptor, nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))


class _Lent:
    """Memory lent to NumPy: arrays made of it, and every view of them, keep this object alive."""

    __slots__ = ("__array_interface__", "__weakref__", "_owner")

    def __init__(self, source: npt.NDArray[np.generic]) -> None:
        interface: dict[str, Any] = dict(source.__array_interface__)
        interface["data"] = (interface["data"][0], True)
        self.__array_interface__ = interface
        self._owner = source


def lend(memory: memoryview, tensor: Tensor, on_return: Callable[[], None]) -> npt.NDArray[Any]:
    """A read-only array over `memory`; `on_return` runs when it and every view of it are gone.

    `on_return` may run in any thread and inside the garbage collector: it must neither lock nor allocate much.
    """
    lent = _Lent(tensor.view(memory))
    weakref.finalize(lent, on_return).atexit = False
    return np.asarray(lent)
