"""Streams for torch: batches as tensors, and what `normalize` says as a module. torch is imported by the first call."""

from __future__ import annotations

from typing import Any

from streamd.frameworks.dlpack import Array, export
from streamd.frameworks.extras import load
from streamd.frameworks.normalizing import normalizing
from streamd.spec import StreamSpec


def normalization(spec: StreamSpec) -> Any:
    """A module that does what `normalize` of the stream says: uint8 (B, C, H, W) in, float32 out.

    Its numbers are buffers: being part of the model, they are saved in its state_dict and cannot be forgotten later.
    Raises ConfigError for what this version does not know, MissingExtraError.
    """
    load("torch", "torch", "normalization for torch")
    from streamd.frameworks.torch_layer import Normalization  # noqa: PLC0415 - imports torch

    return Normalization(normalizing(spec))


def tensor(array: Array) -> Any:
    """A tensor of `array` on the CPU: over the memory of `batch.images`, or a copy where `export` says so.

    Over that memory, it holds the batch's lease as long as it, or any view of it, lives. torch knows no read-only
    tensors, and this one's memory is: writing into it (`mul_`, `out=`, `x[0] = 0`) ends the process with SIGSEGV. Take
    `torch.from_numpy(batch.copy().images)` to write, or `.clone()` it. Raises MissingExtraError.
    """
    torch = load("torch", "torch", "a batch as a torch tensor")
    shared = export(array)
    return torch.from_numpy(array.copy()) if shared is None else torch.from_dlpack(shared)
