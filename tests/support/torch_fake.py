"""A fake torch: NumPy's memory, torch's names, and a log of what a CUDA device would do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np

DIARY: list[str] = []


class Tensor(np.ndarray[Any, Any]):
    """As far as a loader uses tensors."""

    def permute(self, *axes: int) -> Self:
        return self.transpose(axes)

    def long(self) -> Self:
        return self.astype(np.int64).view(type(self))

    def pin_memory(self) -> Self:
        DIARY.append("pin")
        return self.copy()

    def to(self, device: Device, non_blocking: bool = False) -> Self:
        DIARY.append(f"to {device.type}:{device.index} on {Cuda.current}{', not waited for' if non_blocking else ''}")
        return self.copy()

    def record_stream(self, stream: CudaStream) -> None:
        DIARY.append(f"kept for {stream.name}")


@dataclass(frozen=True)
class Device:
    """torch.device, by type and index or by a text such as "cuda:1"."""

    named: Any
    index: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.named, Device):
            object.__setattr__(self, "index", self.named.index)
        elif not isinstance(self.named, str):
            raise TypeError(f"no device: {self.named!r}\nand more of that")
        elif ":" in self.named:
            object.__setattr__(self, "index", int(self.named.split(":")[1]))
        if self.type not in {"cpu", "cuda", "mps"}:
            raise RuntimeError(f"Expected one of cpu, cuda, mps device type at start of device string: {self.named}")

    @property
    def type(self) -> str:
        return self.named.type if isinstance(self.named, Device) else str(self.named).split(":")[0]


@dataclass(frozen=True)
class CudaStream:
    """One that others may wait for."""

    name: str

    def wait_stream(self, other: CudaStream) -> None:
        DIARY.append(f"{self.name} waits for {other.name}")


@dataclass
class Cuda:
    """torch.cuda on a host with so many devices."""

    devices: int = 0
    current: ClassVar[str] = "main"

    def device_count(self) -> int:
        return self.devices

    def current_device(self) -> int:
        return 0

    def current_stream(self, device: Device) -> CudaStream:
        return CudaStream(f"main of {device.index}")

    def Stream(self, device: Device) -> CudaStream:  # noqa: N802 - torch's own name
        return CudaStream(f"side of {device.index}")

    @contextmanager
    def stream(self, stream: CudaStream) -> Iterator[None]:
        Cuda.current = stream.name
        yield
        Cuda.current = "main"


def make(devices: int = 0) -> SimpleNamespace:
    """The module `torch` where there are so many CUDA devices."""
    DIARY.clear()
    return SimpleNamespace(
        from_dlpack=lambda array: np.from_dlpack(array).view(Tensor),
        from_numpy=lambda array: array.view(Tensor),
        device=Device,
        cuda=Cuda(devices),
        __version__="2.0",
    )
