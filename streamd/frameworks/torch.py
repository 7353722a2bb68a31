"""Batches as torch tensors. torch is imported by the first call."""

from __future__ import annotations

from typing import Any

from streamd.frameworks.dlpack import Array, export
from streamd.frameworks.extras import load


def tensor(array: Array) -> Any:
    """A tensor of `array` on the CPU: over the memory of `batch.images`, or a copy where `export` says so.

    Over that memory, it holds the batch's lease as long as it, or any view of it, lives. torch knows no read-only
    tensors, and this one's memory is: writing into it (`mul_`, `out=`, `x[0] = 0`) ends the process with SIGSEGV. Take
    `torch.from_numpy(batch.copy().images)` to write, or `.clone()` it. Raises MissingExtraError.
    """
    torch = load("torch", "torch", "a batch as a torch tensor")
    shared = export(array)
    return torch.from_numpy(array.copy()) if shared is None else torch.from_dlpack(shared)
