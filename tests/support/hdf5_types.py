"""Number types that HDF5 has and NumPy does not."""

from __future__ import annotations

import h5py


def bits(base: h5py.h5t.TypeIntegerID, precision: int, offset: int) -> h5py.h5t.TypeIntegerID:
    """A type of whole numbers that uses only some bits of its bytes."""
    stored = base.copy()
    stored.set_precision(precision)
    stored.set_offset(offset)
    return stored


def bfloat16() -> h5py.h5t.TypeFloatID:
    """Half of a float32, as it is used in training: HDF5 can describe it, and NumPy has no such type."""
    stored = h5py.h5t.IEEE_F32LE.copy()
    stored.set_fields(15, 7, 8, 0, 7)
    stored.set_precision(16)
    stored.set_size(2)
    stored.set_ebias(127)
    return stored


def biased(bias: int) -> h5py.h5t.TypeFloatID:
    """A float32 whose exponents begin elsewhere."""
    stored = h5py.h5t.IEEE_F32LE.copy()
    stored.set_ebias(bias)
    return stored
