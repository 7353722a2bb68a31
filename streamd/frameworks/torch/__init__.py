"""Streams for torch.

    with streamd.connect() as client, client.subscribe("train", epochs=10) as stream:
        data = loader(stream, device="cuda")
        for epoch in range(10):
            for images, labels in data:
                ...

torch is imported by the first call, not with this module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from typing import Any, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt

from streamd.client import Batch
from streamd.client.arguments import parse_whole_number
from streamd.client.ranks import find_library_ranks
from streamd.client.waiting import print_stderr_line
from streamd.core.spec import StreamSpec
from streamd.errors import ConfigError, NoCopyError, NoDatasetError, NoSkippingError
from streamd.frameworks import import_library
from streamd.frameworks.dlpack import Array, export
from streamd.frameworks.model_inputs import (
    ArrayNames,
    FeedStream,
    ModelFeed,
    begins_anew,
    build_model_feed,
    check_is_stream,
    compute_pixel_scaling,
    get_array,
    unwrap_only_item,
)

Tensor = Any  # torch is not installed where types are checked
Move = Callable[[Tensor], Tensor]
KeptRows = npt.NDArray[np.bool_] | None  # None: every row


def loader(
    stream: FeedStream,
    device: Any = None,
    channels_first: bool = True,
    *,
    inputs: ArrayNames = None,
    targets: ArrayNames = "auto",
    weights: bool = False,
    evaluate: bool | None = None,
    keys: Sequence[str] | None = None,
) -> Loader:
    """Wraps a stream for use in place of a DataLoader: `for images, labels in loader(stream)` is one epoch.

    Every stream yields the same structure, `(images, labels)`. Each loop is a pass: the next epoch, or the rest of one
    that was left early. A loop that takes exactly `len` batches has ended its epoch. Nothing is fetched ahead of the
    loop, so `stream.token` is the position after the present step.

    device: where tensors go, the CPU by default. To CUDA they are copied through pinned memory, on a separate CUDA
        stream and in parallel with earlier steps; the batch's lease ends at once. On the CPU images use the batch's
        memory and hold its lease: keep `images.clone()` of images that outlive the step. They may be written to in
        place, which no other trainer sees (see `tensor`).
    channels_first: images are (B, C, H, W), channels_last in memory, as fast convolutions need them; else (B, H, W, C).
        Axes before the height stay where they are. Images of mode index have no channels and are (B, H, W). The dtype
        is the stream's, uint8 by default; `normalization(stream.spec)` converts to floats, on the device.
    inputs, targets: as in `keras.fit_data`: a tensor for one name, a dict for several, {} for no target. By default the
        images are all but those of mode index, and the labels are all numeric labels and the images of mode index.
        Categories, and images of mode index among the targets, are int64 classes, as cross_entropy needs them. Text is
        never among them: read batch.labels.
    weights: True yields `(images, labels, weights)`, every row with its weight, float32 (B,). Otherwise rows of weight
        0 (masked images, the padding of a last batch) are left out, which makes their batch shorter.
    evaluate: True begins every pass anew at index 0 of the same epoch, as in `keras.fit_data`. Default: True for a
        stream whose shuffle is none, else False.
    keys: yields dicts with these two or, with weights, three keys, as models of transformers take their arguments:
        `keys=("pixel_values", "labels")`.

    A batch without any remaining row is skipped, so a loop may have fewer steps than `len`, which is the steps of a
    whole epoch. Rows that are left out count as delivered: receipts include them, and tokens are positions after them.

    Data-parallel ranks each subscribe to their own part, instead of using a DistributedSampler: under torchrun with
    `client.subscribe("train", rank="auto")`, else with numbers as rank= and world=. All ranks have the same number of
    batches. With `uneven="pad"`, or if every image of a batch is bad, a rank can have fewer steps than the others. If
    each step waits for all ranks, as with DistributedDataParallel, use `weights=True` in these cases.

    Raises ConfigError for labels or a device that do not exist, and without `weights=True` for a stream whose samples
    have their own weights; MissingExtraError.
    """
    check_is_stream(stream, "loader")
    torch = import_library("torch", "torch", "using a stream with torch")
    feed = build_model_feed(stream.spec, inputs=inputs, targets=targets)
    if stream.spec.weighted and not weights:
        raise ConfigError(
            f"samples of stream {stream.spec.name!r} have weights of their own, and (images, labels) would ignore "
            "them: take  for images, labels, weights in loader(stream, weights=True)  and multiply each sample's loss "
            "by its weight, or remove `weights` from the stream's configuration"
        )
    anew = begins_anew(stream.spec, evaluate)
    if keys is not None:
        keys = tuple(keys)
        if len(set(keys)) != 2 + weights or not all(isinstance(key, str) for key in keys):
            raise ConfigError(
                f'keys={keys} must name each item of a step once: write  keys=("pixel_values", "labels")'
                + (', and "weights" as the third' if weights else "")
            )
    move = build_device_mover(torch, device)
    # What is moved to another device is copied, so nobody writes to the batch's memory.
    build_tensor = partial(_build_tensor, writable=move is keep_on_cpu)
    return Loader(stream, feed, build_tensor, move, channels_first, weights, anew, keys)


def normalization(spec: StreamSpec, image: str | None = None) -> Any:
    """Returns a module that applies the stream's `normalize`: (B, C, H, W) of uint8, uint16 or float32 in, float32 out.

    image: which of several images of a sample; default: the first.

    Mean and std are buffers of the model and are saved in its state_dict, so inference uses the same numbers. Raises
    ConfigError for a `normalize` that this version does not know and for an image that the stream does not have,
    MissingExtraError.
    """
    import_library("torch", "torch", "normalization with torch")
    from streamd.frameworks.torch.layer import Normalization  # noqa: PLC0415 - imports torch

    return Normalization(compute_pixel_scaling(spec, image))


def tensor(array: Array) -> Any:
    """Returns a tensor of `array` on the CPU: over the memory of `batch.images`, or a copy if `export` requires one.

    A tensor over that memory holds the batch's lease while it, or any view of it, lives. It may be written to (`mul_`,
    `out=`, `x[0] = 0`): no other trainer and no later batch sees that, while `array` does. The batches that have
    arrived before a process's first tensor are copied. Raises MissingExtraError.
    """
    return _build_tensor(array, writable=True)


def _build_tensor(array: Array, *, writable: bool) -> Any:
    torch = import_library("torch", "torch", "a batch as a torch tensor")
    shared = export(array, writable=writable)
    return torch.from_numpy(array.copy()) if shared is None else torch.from_dlpack(shared)


# --- The loader, and where its tensors go.


@dataclass(slots=True, weakref_slot=True, eq=False)
class Loader:
    """A stream in place of a DataLoader: each `iter` is one more epoch, or the rest of one that was left early.

    `len` is the steps of a whole epoch; a loop has fewer if all rows of a batch were left out. A batch is taken from
    the stream only when the loop requests it. `weighted`: every row is yielded, with its weight. `anew`: each `iter`
    begins at index 0 of the same epoch instead. `keys`: each step is a dict with these keys instead of a tuple.
    """

    # As accelerate's `skip_first_batches` needs them for a DataLoader whose steps are whole batches, without workers.
    batch_size: ClassVar[None] = None
    drop_last: ClassVar[bool] = False
    prefetch_factor: ClassVar[None] = None

    stream: FeedStream
    feed: ModelFeed
    tensor: Callable[[Any], Tensor]  # over the memory of an array, or a copy of it
    move: Move  # to the device
    channels_first: bool
    weighted: bool = False
    anew: bool = False
    keys: tuple[str, ...] | None = None
    # For Accelerate: whether the last step of a pass was handed out, and how many rows of it are no padding; 0: all.
    end_of_dataloader: bool = field(default=False, init=False, repr=False)
    remainder: int = field(default=0, init=False, repr=False)
    _is_restored: bool = field(default=False, init=False, repr=False)  # and no pass has begun since
    _wanted_epoch: int | None = field(default=None, init=False, repr=False)  # as `set_epoch` said
    _begun_token: str | None = field(default=None, init=False, repr=False)  # where the last pass began
    _was_told_lower: bool = field(default=False, init=False, repr=False)
    _was_told_ranks: bool = field(default=False, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.stream)

    def __iter__(self) -> Iterator[Any]:
        """Iterates over the steps of the next epoch. Raises ConfigError when the subscription has none left."""
        self._follow_set_epoch()
        self._is_restored = False
        # If every process of torch.distributed trains on the whole stream, a line says so once.
        is_told = self.anew or self.stream.world > 1 or self._was_told_ranks
        distributed = None if is_told else sys.modules.get("torch.distributed")
        for found in find_library_ranks({"torch.distributed": distributed}) if distributed is not None else ():
            if found.world > 1:
                self._was_told_ranks = True
                print_stderr_line(
                    f"every process of {found.variables} trains on the whole of stream {self.stream.spec.name!r}: "
                    'subscribe after init_process_group with rank="auto", so that each gets its part'
                )
        steps = next(self.epochs(), None)
        if steps is None:
            raise ConfigError(
                f"the subscription to {self.stream.spec.name!r} has no epoch left: subscribe with epochs=None, or with "
                "as many epochs as there are loops over the loader"
            )
        self._begun_token = self.stream.token
        return steps

    def epochs(self) -> Iterator[Iterator[Any]]:
        """Returns an iterator that yields one iterator for each epoch, up to the subscription's last."""
        # `chain` and `filter` keep no reference to a step that they have returned. A generator's frame would keep the
        # batch, and its lease, until the next step is requested.
        return (
            chain(filter(None, steps), self._end_pass())
            for steps in self.stream.epochs(anew=self.anew, convert=self._build_step)
        )

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
        self._is_restored = True

    @property
    def steps_done(self) -> int:
        """The number of steps of the present epoch that were handed out."""
        left = self.stream.steps_left
        return len(self.stream) - left if left else 0

    @property
    def dataset(self) -> Any:
        """The epoch as accelerate's `skip_first_batches` reads it after `load_state_dict`: nothing is read twice.

        Raises NoSkippingError for a loader that is not within an epoch since then: it would read what it skips, or skip
        what nobody has seen.
        """
        if not self._is_restored or not self.steps_done:
            raise NoSkippingError(self.stream.spec.name)
        datasets = sys.modules["torch.utils.data"]  # whoever skips in loaders of torch has imported it
        read = {"__iter__": lambda _: chain(repeat(_DoneStep(), self.steps_done), self)}
        return type("RestoredEpoch", (datasets.IterableDataset,), read)()

    def set_epoch(self, epoch: int) -> None:
        """Does nothing while the stream is at `epoch`, as it is by itself in a loop over epochs.

        A later epoch begins with the next pass, or with one that was begun and not asked for a batch yet. An earlier
        one is not gone back to, and a line on stderr says so once. A loader that evaluates ignores it.
        """
        self._wanted_epoch = parse_whole_number("epoch", epoch, 0)
        if self._begun_token is not None and self._begun_token == self.stream.token:
            self._follow_set_epoch()

    @property
    def sampler(self) -> Loader:
        """Lightning and others call `loader.sampler.set_epoch`. A loader that evaluates has no sampler."""
        if self.anew:
            raise AttributeError("sampler")
        return self

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

    def _build_step(self, batch: Batch) -> tuple[Any, ...] | dict[str, Any] | None:
        """Returns (images, labels), or with weights as a third item, or these by `keys`; None if no row remains."""
        kept: KeptRows = None
        if not self.weighted and not (has_weight := batch.weights != 0).all():
            kept = has_weight
            if not kept.any():
                return None
        self._tell_accelerate(batch.weights if kept is None else batch.weights[kept])
        feed = self.feed
        inputs = {key: self._build_input(batch, name, kept) for key, name in feed.inputs.items()}
        targets = {name: self._build_input(batch, name, kept) for name in feed.targets}
        # Class numbers of pixels are int64, as cross_entropy needs them.
        for name in self._masks.intersection(targets):
            targets[name] = targets[name].long()
        step: tuple[Any, ...] = unwrap_only_item(inputs), unwrap_only_item(targets)
        if self.weighted:
            step = *step, self._build_tensor(batch.weights, kept)
        return step if self.keys is None else dict(zip(self.keys, step, strict=True))

    def _tell_accelerate(self, weights: npt.NDArray[np.float32]) -> None:
        """Tells Accelerate, where it is in use, which loader is being read, and whether these rows end its pass.

        It does so with its own loaders: an accumulation of gradients ends there, and what it believes to be padding is
        cut from gathered results.
        """
        accelerate = sys.modules.get("accelerate.state")
        if accelerate is None or not accelerate.is_initialized():
            return
        self.end_of_dataloader = not self.stream.steps_left
        rows = len(weights)
        # Every rank has that many rows: ranks that do not cannot be gathered.
        is_short = rows < self.stream.spec.batch_size
        self.remainder = rows * accelerate.PartialState().num_processes if is_short else 0
        state = accelerate.GradientState()
        if state.active_dataloader is not self:
            state.dataloader_references = [each for each in state.dataloader_references if each is not self] + [self]

    def _end_pass(self) -> Iterator[NoReturn]:
        """Yields nothing: at the end of a pass, Accelerate is told that this loader is no longer read."""
        accelerate = sys.modules.get("accelerate.state")
        if accelerate is not None and accelerate.is_initialized():
            state = accelerate.GradientState()
            state.dataloader_references = [each for each in state.dataloader_references if each is not self]
        yield from ()

    def _build_input(self, batch: Batch, name: str, kept: KeptRows) -> Tensor:
        tensor = self._build_tensor(get_array(batch, name), kept)
        if not self.channels_first or name not in batch.arrays or name in self._masks:
            return tensor
        # Images are (B, C, H, W) with channels_last memory; axes before H stay in place.
        *leading, height, width, channels = range(tensor.ndim)
        return tensor.permute(*leading, channels, height, width)

    def _build_tensor(self, array: Any, kept: KeptRows) -> Tensor:
        """Returns the rows `kept` of an array as a tensor on the device."""
        if kept is not None:
            array = array[kept]  # not in torch, which cannot select rows of every dtype
            array.flags.writeable = False  # nobody else has it, so it needs no further copy
        return self.move(self.tensor(array))

    @property
    def _masks(self) -> frozenset[str]:
        """The images of class numbers, which have no channels."""
        return frozenset(name for name, image in self.stream.spec.images.items() if image.mode == "index")

    def __getitem__(self, place: object) -> NoReturn:
        """Raises NoDatasetError: a DataLoader calls this on a data set."""
        raise NoDatasetError

    def __reduce__(self) -> NoReturn:
        """Refuses pickle and copies, as for a spawned process, a trial, or the workers of a DataLoader."""
        name = self.stream.spec.name
        raise NoCopyError(
            f"the loader of stream {name!r}",
            f'write  loader(streamd.connect().subscribe({name!r}))  in the other process or trial, with rank="auto" '
            "for its part, in Lightning in train_dataloader(); in a DataLoader's place it needs no workers",
        )


class _DoneStep:
    """Stands for a step before the restored position. It is there to be skipped, and says so to a loop that uses it."""

    def __iter__(self) -> NoReturn:
        raise ConfigError(
            "fewer steps were skipped than the restored loader has handed out in this epoch: go on with a loop over "
            "the loader itself, which is at the right place"
        )

    keys = __iter__


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


def keep_on_cpu(tensor: Tensor) -> Tensor:
    return tensor


def build_device_mover(torch: Any, device: Any) -> Move:
    """Returns a function that moves tensors to `device`; None is the CPU. Raises ConfigError for a missing device."""
    wanted = "cpu" if device is None else device
    try:
        place = torch.device(wanted)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"device={wanted!r} is not a device that torch knows: {str(error).splitlines()[0]}"
        ) from error
    if place.type == "cpu":
        return keep_on_cpu
    if place.type != "cuda":
        return lambda tensor: tensor.to(place)
    count = torch.cuda.device_count()
    if (place.index or 0) >= count:
        raise ConfigError(
            f"device={wanted!r} does not exist: torch {torch.__version__} sees {count} CUDA devices here; check "
            "torch.cuda.is_available() and the driver, or leave device out to stay on the CPU"
        )
    if place.index is None:
        place = torch.device("cuda", torch.cuda.current_device())
    return SideStreamCopier(torch, place, torch.cuda.Stream(place))
