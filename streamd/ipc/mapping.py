"""Maps slots, read-only in a client and writable in a worker, and builds arrays whose lease ends with the last view.

It calls the system's mmap by ctypes. Python's `mmap` keeps a descriptor of its own for as long as the mapping lives (up
to 3.12 it cannot be avoided), and a trainer may map thousands of slots.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.slot_layout import SlotTensor

_FAILED: Final = ctypes.c_void_p(-1).value


def map_readable(descriptor: int, nbytes: int) -> memoryview:
    """Maps a slot for a client and returns its bytes. The descriptor may be closed after that. Raises OSError.

    The mapping is MAP_SHARED, never private: a private page that was written would show the old batch for ever.
    """
    return _map_memory(descriptor, nbytes, mmap.PROT_READ).toreadonly()


def map_writable(descriptor: int, nbytes: int) -> memoryview:
    """Maps a slot for a worker and returns its bytes. Raises OSError."""
    return _map_memory(descriptor, nbytes, mmap.PROT_READ | mmap.PROT_WRITE)


@cache
def _load_libc() -> ctypes.CDLL:
    """Loads the C library at the first mapping, since the client is also imported on systems without one."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc


def _map_memory(descriptor: int, nbytes: int, protection: int) -> memoryview:
    """Maps memory and returns a view of it. The mapping ends with the last view. Raises OSError."""
    libc = _load_libc()
    address = libc.mmap(None, nbytes, protection, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    memory = (ctypes.c_ubyte * nbytes).from_address(address)
    # Not at the interpreter's exit: other threads may still read the memory then, and the kernel unmaps it anyway.
    weakref.finalize(memory, libc.munmap, address, nbytes).atexit = False
    return memoryview(memory).cast("B")


class _ArrayLease(weakref.ref[npt.NDArray[Any]]):
    """A weak reference that calls `on_return` when its array dies.

    It does what `weakref.finalize` does with fewer objects, since there is one for each batch.
    """

    __slots__ = ("on_return",)

    on_return: Callable[[], None]


# A weak reference calls back only while it exists itself. Entries are added by the thread that lends and deleted by the
# one in which the last view dies; each is a single operation on the dict, so no lock is needed.
_leases: Final[dict[int, _ArrayLease]] = {}


def _end_array_lease(lease: _ArrayLease) -> None:
    del _leases[id(lease)]
    lease.on_return()


def build_leased_arrays(
    memory: memoryview, tensors: Iterable[SlotTensor], on_return: Callable[[], None]
) -> dict[str, npt.NDArray[Any]]:
    """Returns read-only arrays over `memory`, by name. `on_return` is called when they and all their views are gone.

    `on_return` may be called in any thread and inside the garbage collector: it must neither lock nor allocate much.
    """
    # A view in NumPy keeps the array at its base alive, not the view that it was made from. So every view of every
    # array keeps `lent` alive, which is never handed out itself and dies with the last of them.
    lent = np.frombuffer(memory.toreadonly(), np.uint8)
    lease = _ArrayLease(lent, _end_array_lease)
    lease.on_return = on_return
    _leases[id(lease)] = lease
    return {
        tensor.name: lent[tensor.offset : tensor.offset + tensor.size_bytes].view(tensor.dtype).reshape(tensor.shape)
        for tensor in tensors
    }


def build_leased_array(memory: memoryview, tensor: SlotTensor, on_return: Callable[[], None]) -> npt.NDArray[Any]:
    """Returns a read-only array over `memory`; see `build_leased_arrays`."""
    return build_leased_arrays(memory, [tensor], on_return)[tensor.name]
