"""The memory of a batch for any framework that speaks DLPack, without a copy.

NumPy exports a read-only array only in a way that TensorFlow 2.21 and older releases of others refuse. So the memory of
a batch is exported as writable, though it is mapped read-only: a framework that wrote into it would end with SIGSEGV,
and change no batch. The tensor holds the lease as any view does. NumPy's own C code ends it, in whatever thread the
tensor dies; at the interpreter's end, when there is nobody to tell any more, it does nothing.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.limits import TENSOR_ALIGN_BYTES

Array = npt.NDArray[Any]

_DLPACK_KINDS: Final = "iuf"  # signed, unsigned, floating: what every framework has
_MAX_NUMBER_BYTES: Final = 8  # at most


class _WritableMemory:
    """Read-only memory, said to be writable. Keeps the read-only array alive as long as an array made of this."""

    __slots__ = ("__array_interface__", "_lease")

    def __init__(self, lease: Array) -> None:
        self.__array_interface__: dict[str, Any] = lease.__array_interface__  # made anew each time it is asked for
        self.__array_interface__["data"] = (self.__array_interface__["data"][0], False)
        self._lease = lease


def export(array: Array) -> Array | None:
    """The memory of a read-only array as one that DLPack hands to anybody; None where only a copy will do.

    That is what strides, bytes in another order, an address that is no multiple of 64, and anything but numbers need:
    TensorFlow refuses strides and aborts the process at such an address. An array that may be written, as labels are,
    is copied too: what its owner writes later must not show. Use it in `from_dlpack(export(batch.images))`, and never
    write into what comes of it.
    """
    if array.flags.writeable or not (array.flags.c_contiguous and array.size and _is_dlpack_dtype(array.dtype)):
        return None
    shared = _WritableMemory(array)
    address: int = shared.__array_interface__["data"][0]
    return None if address % TENSOR_ALIGN_BYTES else np.asarray(shared)


def copy_to_aligned_memory(array: Array) -> Array | None:
    """A copy that DLPack hands to anybody, at an address as `export` wants it; None for what is empty or no numbers.

    Beside a step that has filled the processor's caches, a framework's own way takes several times as long.
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
