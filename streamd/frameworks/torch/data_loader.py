"""What `streamd.frameworks.torch.loader` gives. torch is handed in, so that nothing here imports it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from streamd.errors import ConfigError, NoDatasetError
from streamd.frameworks.model_inputs import IMAGES, FeedBatch, FeedStream, ModelFeed

Tensor = Any  # torch is not installed where types are checked
Move = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Loader:
    """A stream in the place of a DataLoader: each `iter` is one more epoch, or the rest of one that was left early.

    `len` is the steps of a whole epoch. Each batch is taken from the stream when the loop asks for it, and none before.
    """

    stream: FeedStream
    feed: ModelFeed
    tensor: Callable[[Any], Tensor]  # over the memory of an array, or a copy of it
    move: Move  # to the device
    channels_first: bool

    def __len__(self) -> int:
        return len(self.stream)

    def __iter__(self) -> Iterator[Any]:
        """The steps of the next epoch. Raises ConfigError when the subscription has none."""
        steps = next(self.epochs(), None)
        if steps is None:
            raise ConfigError(
                f"the subscription to {self.stream.spec.name!r} has no epoch left: subscribe with epochs=None, or with "
                "as many epochs as there are loops over the loader"
            )
        return steps

    def epochs(self) -> Iterator[Iterator[Any]]:
        """One iterator an epoch, to the last one of the subscription."""
        # `map` keeps nothing of a step that it has given; a generator would hold its batch until the next is wanted.
        return (map(self._build_step_inputs, batches) for batches in self.stream.epochs())

    def _build_step_inputs(self, batch: FeedBatch) -> Any:
        """(images, labels, ...) as the feed has them; images alone where there is nothing else."""
        x, *others = self.feed.build_arrays(batch)
        if isinstance(x, Mapping):
            inputs = {
                name: self._build_image_tensor(x[name]) if name == IMAGES else self._move_arrays_to_device(x[name])
                for name in x
            }
        else:
            inputs = self._build_image_tensor(x)
        return (inputs, *map(self._move_arrays_to_device, others)) if others else inputs

    def _build_image_tensor(self, array: Any) -> Tensor:
        """(B, C, H, W), its channels lying together in memory, or (B, H, W, C)."""
        images = self._move_arrays_to_device(array)
        return images.permute(0, 3, 1, 2) if self.channels_first else images

    def _move_arrays_to_device(self, part: Any) -> Any:
        if isinstance(part, Mapping):
            return {name: self._move_arrays_to_device(array) for name, array in part.items()}
        return None if part is None else self.move(self.tensor(part))

    def __getitem__(self, place: object) -> NoReturn:
        """What DataLoader asks a data set for."""
        raise NoDatasetError

    def __reduce__(self) -> NoReturn:
        """What DataLoader's workers would be sent."""
        raise NoDatasetError


@dataclass(frozen=True, slots=True)
class SideStreamCopier:
    """Copies to a CUDA device on a stream of its own, beside what the device computes."""

    torch: Any
    device: Any
    side_stream: Any  # a torch.cuda.Stream of the device

    def __call__(self, tensor: Tensor) -> Tensor:
        """The tensor on the device, for the current stream's work. `tensor` is not read any more when this returns.

        Lent memory is copied to pinned memory here and now, so its lease may end before the device has its copy. torch
        reuses the pinned memory after the copy's event, and the device's after the work that the current stream has
        for it.
        """
        cuda = self.torch.cuda
        pinned = tensor.pin_memory()
        with cuda.stream(self.side_stream):
            there = pinned.to(self.device, non_blocking=True)
        current = cuda.current_stream(self.device)
        current.wait_stream(self.side_stream)
        there.record_stream(current)
        return there


def build_device_mover(torch: Any, device: Any) -> Move:
    """How a tensor gets to `device`: None is the CPU. Raises ConfigError for one that is not there."""
    place = _find_device(torch, "cpu" if device is None else device)
    if place.type == "cpu":
        return lambda tensor: tensor
    if place.type == "cuda":
        return SideStreamCopier(torch, place, torch.cuda.Stream(place))
    return lambda tensor: tensor.to(place)


def _find_device(torch: Any, device: Any) -> Any:
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device={device!r} is none that torch knows: {str(error).splitlines()[0]}") from error
    if place.type != "cuda":
        return place
    count = torch.cuda.device_count()
    if (place.index or 0) >= count:
        raise ConfigError(
            f"device={device!r}, and torch {torch.__version__} sees {count} CUDA devices here: "
            "torch.cuda.is_available() and the driver say why, or leave device out to stay on the CPU"
        )
    return place if place.index is not None else torch.device("cuda", torch.cuda.current_device())
