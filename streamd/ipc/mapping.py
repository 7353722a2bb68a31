"""Mapping a slot: read-only in a client, writable in a worker; and the lease that ends with the last view.

Python's `mmap` keeps a descriptor of its own for as long as the mapping lives (up to 3.12 there is no way around it),
and a trainer may map thousands of slots: hence the system's mmap, by ctypes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.slot_layout import SlotTensor

_FAILED: Final = ctypes.c_void_p(-1).value


def map_readable(descriptor: int, nbytes: int) -> memoryview:
    """Maps a slot for a client, who may close the descriptor then. Raises OSError.

    MAP_SHARED and never private: a private page that someone wrote would show the old batch for ever.
    """
    return _map_memory(descriptor, nbytes, mmap.PROT_READ).toreadonly()


def map_writable(descriptor: int, nbytes: int) -> memoryview:
    """Maps a slot for a worker. Raises OSError."""
    return _map_memory(descriptor, nbytes, mmap.PROT_READ | mmap.PROT_WRITE)


@cache
def _load_libc() -> ctypes.CDLL:
    """Asked for when something is to be mapped: the client is imported on systems without it, too."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc


def _map_memory(descriptor: int, nbytes: int, protection: int) -> memoryview:
    """The mapping ends with the last view of it."""
    libc = _load_libc()
    address = libc.mmap(None, nbytes, protection, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    memory = (ctypes.c_ubyte * nbytes).from_address(address)
    weakref.finalize(memory, libc.munmap, address, nbytes).atexit = False  # threads may still look at it then
    return memoryview(memory).cast("B")


class _ArrayLease(weakref.ref[npt.NDArray[Any]]):
    """Ends with what was lent: what `weakref.finalize` does, by fewer objects, since there is one a batch."""

    __slots__ = ("on_return",)

    on_return: Callable[[], None]


_leases: Final[dict[int, _ArrayLease]] = {}  # a weak reference must itself be kept until it ends


def _end_array_lease(lease: _ArrayLease) -> None:
    del _leases[id(lease)]
    lease.on_return()


def build_leased_array(memory: memoryview, tensor: SlotTensor, on_return: Callable[[], None]) -> npt.NDArray[Any]:
    """A read-only array over `memory`; `on_return` runs when it and every view of it are gone.

    `on_return` may run in any thread and inside the garbage collector: it must neither lock nor allocate much.
    """
    # A view of a view keeps what that was a view of: all of them keep this array, which nobody else has.
    lent = np.frombuffer(memory.toreadonly(), tensor.dtype, prod(tensor.shape), tensor.offset)
    lease = _ArrayLease(lent, _end_array_lease)
    lease.on_return = on_return
    _leases[id(lease)] = lease
    return lent.reshape(tensor.shape)
