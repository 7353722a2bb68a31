"""The iterable that `streamd.frameworks.torch.loader` returns. torch is passed in: this module does not import it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from streamd.client.arguments import parse_whole_number
from streamd.client.waiting import print_stderr_line
from streamd.errors import ConfigError, NoCopyError, NoDatasetError
from streamd.frameworks.model_inputs import FeedBatch, FeedStream, ModelFeed, get_array

Tensor = Any  # torch is not installed where types are checked
Move = Callable[[Tensor], Tensor]
KeptRows = npt.NDArray[np.bool_] | None  # None: every row


@dataclass(slots=True, eq=False)
class Loader:
    """A stream in place of a DataLoader: each `iter` is one more epoch, or the rest of one that was left early.

    `len` is the steps of a whole epoch; a loop has fewer if all rows of a batch were left out. A batch is taken from
    the stream only when the loop requests it. `weighted`: every row is yielded, with its weight. `anew`: each `iter`
    begins at index 0 of the same epoch instead.
    """

    stream: FeedStream
    feed: ModelFeed
    tensor: Callable[[Any], Tensor]  # over the memory of an array, or a copy of it
    move: Move  # to the device
    channels_first: bool
    weighted: bool = False
    anew: bool = False
    _wanted_epoch: int | None = field(default=None, init=False, repr=False)  # as `set_epoch` said
    _was_told_lower: bool = field(default=False, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.stream)

    def __iter__(self) -> Iterator[Any]:
        """Iterates over the steps of the next epoch. Raises ConfigError when the subscription has none left."""
        self._follow_set_epoch()
        steps = next(self.epochs(), None)
        if steps is None:
            raise ConfigError(
                f"the subscription to {self.stream.spec.name!r} has no epoch left: subscribe with epochs=None, or with "
                "as many epochs as there are loops over the loader"
            )
        return steps

    def epochs(self) -> Iterator[Iterator[Any]]:
        """Returns an iterator that yields one iterator for each epoch, up to the subscription's last."""
        # `filter` keeps no reference to a step that it has returned. A generator's frame would keep the batch, and its
        # lease, until the next step is requested.
        return (filter(None, steps) for steps in self.stream.epochs(anew=self.anew, convert=self._build_step))

    def state_dict(self) -> dict[str, str]:
        """Returns the position after the last batch handed out, at any time between two batches.

        Nothing is fetched ahead, so this is the position of the training, for checkpoints of torch.distributed, of
        torchtitan and the like.
        """
        return {"streamd": self.stream.token}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Moves to the position that `state_dict` returned, in any world. The next pass continues there.

        Raises ConfigError for a state of another loader; TokenError if it belongs to another stream or order, and for a
        position within a batch in another world.
        """
        if "streamd" not in state:
            raise ConfigError(
                f"this state was not saved by streamd's loader: it has {', '.join(map(repr, state)) or 'nothing'}, and "
                "no 'streamd'"
            )
        self.stream.seek(state["streamd"])
        self._wanted_epoch = None

    def set_epoch(self, epoch: int) -> None:
        """Does nothing while the stream is at `epoch`, as it is by itself in a loop over epochs.

        A later epoch begins with the next pass. An earlier one is not gone back to, and a line on stderr says so once.
        A loader that evaluates ignores it.
        """
        self._wanted_epoch = parse_whole_number("epoch", epoch, 0)

    def _follow_set_epoch(self) -> None:
        wanted, self._wanted_epoch = self._wanted_epoch, None
        if wanted is None or self.anew:
            return
        self.stream.advance_to_epoch(wanted)
        if wanted < self.stream.epoch and not self._was_told_lower:
            self._was_told_lower = True
            print_stderr_line(
                f"set_epoch({wanted}) changes nothing: stream {self.stream.spec.name!r} is at epoch "
                f"{self.stream.epoch} and goes on there; stream.seek(TOKEN) goes back"
            )

    def _build_step(self, batch: FeedBatch) -> tuple[Any, ...] | None:
        """Returns (images, labels), or with weights as a third item; None if no row remains."""
        kept = None if self.weighted else _find_kept_rows(batch.weights)
        if kept is not None and not kept.any():
            return None
        feed = self.feed
        inputs = {key: self._build_input(batch, name, kept) for key, name in feed.inputs.items()}
        targets = {name: self._build_target(batch, name, kept) for name in feed.targets}
        step = _unwrap_only_item(inputs), _unwrap_only_item(targets)
        return (*step, self._build_tensor(batch.weights, kept)) if self.weighted else step

    def _build_input(self, batch: FeedBatch, name: str, kept: KeptRows) -> Tensor:
        tensor = self._build_tensor(get_array(batch, name), kept)
        return self._order_channels(tensor) if name in self._pictures else tensor

    def _build_target(self, batch: FeedBatch, name: str, kept: KeptRows) -> Tensor:
        """Returns a label or an image to learn; class numbers of pixels are int64, as cross_entropy needs them."""
        tensor = self._build_input(batch, name, kept)
        return tensor.long() if name in batch.arrays and name not in self._pictures else tensor

    def _order_channels(self, images: Tensor) -> Tensor:
        """Returns images as (B, C, H, W) with channels_last memory, or as (B, H, W, C); axes before H stay in place."""
        if not self.channels_first:
            return images
        *leading, height, width, channels = range(images.ndim)
        return images.permute(*leading, channels, height, width)

    def _build_tensor(self, array: Any, kept: KeptRows) -> Tensor:
        """Returns the rows `kept` of an array as a tensor on the device."""
        if kept is not None:
            array = array[kept]  # not in torch, which cannot select rows of every dtype
            array.flags.writeable = False  # nobody else has it, so it needs no further copy
        return self.move(self.tensor(array))

    @property
    def _pictures(self) -> frozenset[str]:
        """The images that have channels: all but those of class numbers."""
        return frozenset(name for name, image in self.stream.spec.images.items() if image.mode != "index")

    def __getitem__(self, place: object) -> NoReturn:
        """Raises NoDatasetError: a DataLoader calls this on a data set."""
        raise NoDatasetError

    def __reduce__(self) -> NoReturn:
        """Refuses pickle and copies, as for a spawned process, a trial, or the workers of a DataLoader."""
        name = self.stream.spec.name
        raise NoCopyError(
            f"the loader of stream {name!r}",
            f"write  loader(streamd.connect().subscribe({name!r}))  in the other process or trial; in a DataLoader's "
            "place it needs no workers",
        )


def _find_kept_rows(weights: npt.NDArray[np.float32]) -> KeptRows:
    """Returns a mask of the rows whose weight is not 0; None if that is every row."""
    kept: npt.NDArray[np.bool_] = weights != 0
    return None if kept.all() else kept


def _unwrap_only_item(tensors: dict[str, Tensor]) -> Any:
    """Returns the only tensor, or the dict of several or of none."""
    return next(iter(tensors.values())) if len(tensors) == 1 else tensors


@dataclass(frozen=True, slots=True)
class SideStreamCopier:
    """Copies tensors to a CUDA device on a separate CUDA stream, in parallel with the device's computation."""

    torch: Any
    device: Any
    side_stream: Any  # a torch.cuda.Stream of the device

    def __call__(self, tensor: Tensor) -> Tensor:
        """Returns the tensor on the device, ready for work on the current stream.

        `tensor` is not read after this returns: leased memory is copied to pinned memory synchronously, so the lease
        may end before the device has its copy.
        """
        cuda = self.torch.cuda
        pinned = tensor.pin_memory()
        with cuda.stream(self.side_stream):
            there = pinned.to(self.device, non_blocking=True)
        # The current stream waits for the copy on the device; the host does not wait. torch reuses the pinned memory
        # only after the copy's event. The device memory was allocated on the side stream, so without `record_stream`
        # torch might reuse it before the current stream's work with it is done.
        current = cuda.current_stream(self.device)
        current.wait_stream(self.side_stream)
        there.record_stream(current)
        return there


def build_device_mover(torch: Any, device: Any) -> Move:
    """Returns a function that moves tensors to `device`; None is the CPU. Raises ConfigError for a missing device."""
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
        raise ConfigError(
            f"device={device!r} is not a device that torch knows: {str(error).splitlines()[0]}"
        ) from error
    if place.type != "cuda":
        return place
    count = torch.cuda.device_count()
    if (place.index or 0) >= count:
        raise ConfigError(
            f"device={device!r} does not exist: torch {torch.__version__} sees {count} CUDA devices here; check "
            "torch.cuda.is_available() and the driver, or leave device out to stay on the CPU"
        )
    return place if place.index is not None else torch.device("cuda", torch.cuda.current_device())
