"""Maps slots, writable in a worker and not in a client, and builds arrays whose lease ends with the last view.

A client whose program writes to its batches in place maps slots privately: the kernel gives it a copy of each page that
it writes to, and nobody else sees that. The copies are dropped before the slot shows its next batch.

It calls the system's mmap by ctypes. Python's `mmap` keeps a descriptor of its own for as long as the mapping lives (up
to 3.12 it cannot be avoided), and a trainer may map thousands of slots.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.slot_layout import SlotTensor

Bytes = ctypes.Array[ctypes.c_ubyte]

_FAILED: Final = ctypes.c_void_p(-1).value
_PAGE_ENTRY_BYTES: Final = 8  # of /proc/self/pagemap, where the highest byte has the flags
# The flags of pages that are not the process's own copies: not there at all, or a page of a file or of shared memory.
_FOREIGN_FLAGS: Final = bytes(flags for flags in range(256) if not flags & 0xC0 or flags & 0x20)

# Set once a program asks for memory that it may write to: its client maps slots privately from then on.
PRIVATE_WANTED: Final = threading.Event()
# The mappings that end the process at a write, by address.
_write_protected: Final[weakref.WeakValueDictionary[int, Bytes]] = weakref.WeakValueDictionary()


def map_readable(descriptor: int, nbytes: int) -> memoryview:
    """Maps a slot for a client and returns its bytes. The descriptor may be closed after that. Raises OSError."""
    memory = _map_memory(descriptor, nbytes, mmap.PROT_READ, mmap.MAP_SHARED)
    _write_protected[ctypes.addressof(memory)] = memory
    return memoryview(memory).cast("B").toreadonly()


def map_private(descriptor: int, nbytes: int) -> memoryview:
    """Maps a slot for a client that may write to it unseen. Raises OSError.

    A page that was written shows the old batch for ever: call `drop_private_pages` before each later batch.
    """
    memory = _map_memory(descriptor, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE)
    return memoryview(memory).cast("B").toreadonly()


def map_writable(descriptor: int, nbytes: int) -> memoryview:
    """Maps a slot for a worker and returns its bytes. Raises OSError."""
    return memoryview(_map_memory(descriptor, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED)).cast("B")


def drop_private_pages(memory: memoryview) -> bool:
    """Makes a private mapping show its slot again, whatever was written to it.

    Returns False if that is impossible: for a mapping of `map_readable`, and where the program has locked its memory.
    Asks for such pages first: after a drop, a loop that only reads faults in every page again.
    """
    owner = _find_owner(memory)
    if owner is None or _write_protected.get(ctypes.addressof(owner)) is owner:
        return False
    if not _has_private_pages(owner):
        return True
    return not _load_libc().madvise(ctypes.addressof(owner), ctypes.sizeof(owner), mmap.MADV_DONTNEED)


def _has_private_pages(memory: Bytes) -> bool:
    """Whether a mapping has pages of this process's own; True if the kernel does not say."""
    pages = -(-ctypes.sizeof(memory) // mmap.PAGESIZE)
    first = ctypes.addressof(memory) // mmap.PAGESIZE
    try:
        # Opened each time: after a fork, a descriptor would go on describing the parent.
        descriptor = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        entries = os.pread(descriptor, pages * _PAGE_ENTRY_BYTES, first * _PAGE_ENTRY_BYTES)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    flags = entries[_PAGE_ENTRY_BYTES - 1 :: _PAGE_ENTRY_BYTES]
    return len(flags) < pages or bool(flags.translate(None, _FOREIGN_FLAGS))


def is_write_protected(array: npt.NDArray[Any]) -> bool:
    """Whether an array lies in a mapping that ends the process at a write, whatever the array's own flags say."""
    owner = _find_owner(array)
    return owner is not None and _write_protected.get(ctypes.addressof(owner)) is owner


def _find_owner(view: Any) -> Bytes | None:
    """Returns the mapping that a view shows; None for other memory."""
    while isinstance(view, np.ndarray | memoryview):
        view = view.base if isinstance(view, np.ndarray) else view.obj
    return view if isinstance(view, ctypes.Array) else None


@cache
def _load_libc() -> ctypes.CDLL:
    """Loads the C library at the first mapping, since the client is also imported on systems without one."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc


def _map_memory(descriptor: int, nbytes: int, protection: int, flags: int) -> Bytes:
    """Maps memory. The mapping ends with the last view of what is returned. Raises OSError."""
    libc = _load_libc()
    address = libc.mmap(None, nbytes, protection, flags, descriptor, 0)
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    memory = (ctypes.c_ubyte * nbytes).from_address(address)
    # Not at the interpreter's exit: other threads may still read the memory then, and the kernel unmaps it anyway.
    weakref.finalize(memory, libc.munmap, address, nbytes).atexit = False
    return memory


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
