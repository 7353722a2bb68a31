"""Exports the memory of a batch to any framework that supports DLPack, without a copy.

NumPy exports a read-only array only in a form that TensorFlow 2.21 and older releases of others refuse. So a batch's
memory is exported as writable, though it may be mapped read-only: then a framework that writes to it ends with SIGSEGV
and changes no batch. For a framework whose users write in place, `writable` asks for memory that they may write to. The
tensor holds the lease as any view does. NumPy's own C code ends the lease, in the thread in which
the tensor dies; at interpreter exit it does nothing.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.ipc.mapping import PRIVATE_WANTED, is_write_protected
from streamd.limits import TENSOR_ALIGN_BYTES

Array = npt.NDArray[Any]

_DLPACK_KINDS: Final = "iuf"  # signed, unsigned, floating: what every framework has
_MAX_NUMBER_BYTES: Final = 8  # at most


class _WritableMemory:
    """Presents a read-only array's memory as writable. Arrays made from it keep the read-only array alive."""

    __slots__ = ("__array_interface__", "_lease")

    def __init__(self, lease: Array) -> None:
        self.__array_interface__: dict[str, Any] = lease.__array_interface__  # a new dict at each access
        self.__array_interface__["data"] = (self.__array_interface__["data"][0], False)
        self._lease = lease


def export(array: Array, *, writable: bool = False) -> Array | None:
    """Returns a writable-looking array over the memory of a read-only array, for DLPack; None if a copy is needed.

    writable: the tensor may be written to, which nobody else sees. The batches that have arrived before the first such
        export need a copy; from then on this process maps slots privately.

    A copy is needed for strides, another byte order, an address that is not a multiple of 64, and types other than
    numbers: TensorFlow refuses strides, and aborts the process at an unaligned address. A writable array, as labels
    are, needs a copy too, since later writes by its owner must not show in the tensor. Use it as
    `from_dlpack(export(batch.images))`, and write to the tensor only with `writable`.
    """
    if array.flags.writeable or not (array.flags.c_contiguous and array.size and _is_dlpack_dtype(array.dtype)):
        return None
    if writable:
        if not PRIVATE_WANTED.is_set():
            PRIVATE_WANTED.set()
        if is_write_protected(array):
            return None
    shared = _WritableMemory(array)
    address: int = shared.__array_interface__["data"][0]
    return None if address % TENSOR_ALIGN_BYTES else np.asarray(shared)


def copy_to_aligned_memory(array: Array) -> Array | None:
    """Returns a copy at an aligned address, ready for DLPack; None if the array is empty or does not hold numbers.

    Next to a step that has filled the processor's caches, a framework's own copy takes several times as long.
    """
    if not (array.size and _is_dlpack_dtype(array.dtype)):
        return None
    room = np.empty(array.nbytes + TENSOR_ALIGN_BYTES, np.uint8)
    begin = -int(room.__array_interface__["data"][0]) % TENSOR_ALIGN_BYTES
    copy = room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _is_dlpack_dtype(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in _DLPACK_KINDS and dtype.itemsize <= _MAX_NUMBER_BYTES and dtype.isnative
