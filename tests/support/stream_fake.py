"""A fake stream and client that keep the contract with trainers, without a daemon; memory is mapped and leased."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Any, Literal, Self, SupportsIndex

import numpy as np
import numpy.typing as npt

from streamd.client import Batch, Client, Stream
from streamd.client.arguments import Start
from streamd.core.epoch_timing import EpochTiming
from streamd.core.receipt import Receipt
from streamd.core.sampler import Ids
from streamd.core.slot_layout import compute_layout
from streamd.core.spec import ImageSpec, LabelSpec, StreamSpec
from streamd.errors import ReceiptError, RefusedError, StreamdError, suggest_name
from streamd.ipc.mapping import build_leased_arrays
from support.sample_specs import some_spec

ANGLE = LabelSpec("angle", "float", mean=0.1, std=0.5)
KIND = LabelSpec("kind", "category", classes=("car", "cat", "dog"), counts=(6, 2, 2))


def make_spec(*labels: LabelSpec, **changes: Any) -> StreamSpec:
    """Ten samples of 8x8 pixels in batches of four, unless changed."""
    small = {"samples": 10, "batch_size": 4, "batches": 3, "images": {"image": ImageSpec(8, 8, 3)}, "normalize": "unit"}
    return some_spec(**{**small, "labels": {label.name: label for label in labels}, **changes})


@dataclass
class FakeStream(Stream):
    """Begins after `index` batches of the first epoch, as after a resume. `missed` goes into every receipt."""

    spec: StreamSpec
    total_epochs: int | None = None
    index: int = 0
    weightless: frozenset[int] = frozenset()
    spoiled: frozenset[int] = frozenset()  # whose labels that are floats are NaN
    spoiled_pixels: frozenset[int] = frozenset()  # whose images that are floats are NaN
    missed: int = 0
    accounts: list[Receipt] = field(default_factory=list)
    times: list[EpochTiming] = field(default_factory=list)
    wait_s: float = 0.0
    taken: list[tuple[int, int]] = field(default_factory=list)
    leases: int = 0
    most_leases: int = 0  # that were held at a time
    epoch: int = 0
    rank: int = 0
    world: int = 1
    rewinds: int = 0
    present_pass: object = None  # of `epochs(anew=True)`
    placed: bool = True  # nothing was read since it began or was moved by `seek`
    pass_epoch: int = 0
    whole_passes: int = 0

    @property
    def receipts(self) -> list[Receipt]:
        return self.accounts

    @property
    def timings(self) -> list[EpochTiming]:
        return self.times

    @property
    def steps_left(self) -> int:
        return self.spec.batches - self.index

    def __len__(self) -> int:
        return self.spec.batches

    @property
    def epochs_left(self) -> int | None:
        return None if self.total_epochs is None else self.total_epochs - self.epoch

    def names(self, sample_ids: Iterable[int]) -> list[str]:
        return [f"{number}.png" if number >= 0 else "" for number in sample_ids]

    def ids(self, epoch: int, index: int) -> Ids:
        order = np.random.default_rng(epoch).permutation(self.spec.samples)
        return order[index * self.spec.batch_size :][: self.spec.batch_rows(index)].astype(np.int64)

    def epochs(self, *, anew: bool = False, convert: Callable[[Batch], Any] | None = None) -> Iterator[Iterator[Any]]:
        """One iterator an epoch; one that was left early is gone on with, or begun `anew`."""
        while True:
            self.end_epoch()
            passes = self.pass_epoch + self.whole_passes if anew else self.epoch
            if self.total_epochs is not None and passes >= self.total_epochs:
                return
            if anew and not self.placed:
                self._rewind_to(self.pass_epoch)
            if not anew and self.present_pass is not None:
                raise StreamdError("a pass that begins anew has moved this stream")
            self.present_pass = object() if anew else None
            batches = self._batches(self.epoch, self.present_pass)
            yield batches if convert is None else map(convert, batches)

    def end_epoch(self, limit_s: float | None = None) -> bool:
        """Adds the receipt of an epoch whose last batch was handed out."""
        del limit_s
        if self.index == self.spec.batches:
            self._receive(complete=True)
            self.epoch, self.index = self.epoch + 1, 0
            self.whole_passes += self.present_pass is not None
            if self.missed:
                raise ReceiptError(f"epoch {self.epoch - 1} does not add up")
        return True

    def look_ahead(self, batches: int, *, anew: bool = False, token: str | None = None) -> list[Batch]:
        """The next batches, without a lease."""
        there = FakeStream(self.spec, epoch=self.epoch, index=self.index)
        if token is not None:
            there.seek(token)
        if anew and not self.placed:
            there.epoch, there.index = self.pass_epoch, 0
        return list(islice(chain.from_iterable(there.epochs()), batches))

    def seek(self, token: str | bytes, *, after: Literal["step", "epoch"] = "step") -> None:
        """Continues after the batch `epoch:index`, or its epoch."""
        self._move_to(str(token), after)
        self.placed, self.pass_epoch, self.whole_passes, self.present_pass = True, self.epoch, 0, None

    def _move_to(self, token: str, after: Literal["step", "epoch"] = "step") -> None:
        epoch, index = map(int, token.split(":"))
        ends = after == "epoch" or index + 1 == self.spec.batches
        self.epoch, self.index = (epoch + 1, 0) if ends else (epoch, index + 1)

    @property
    def token(self) -> str:
        """The place after the last batch, as `seek` takes it."""
        return f"{self.epoch}:{self.index - 1}" if self.index else f"{self.epoch - 1}:{self.spec.batches - 1}"

    def advance_to_epoch(self, epoch: int) -> None:
        """Goes to the beginning of a later epoch."""
        self.end_epoch()
        if epoch > self.epoch:
            self._rewind_to(epoch)

    def rewind(self) -> None:
        """Goes to the beginning of the first epoch."""
        self._rewind_to(0)
        self.present_pass = None

    def _rewind_to(self, epoch: int) -> None:
        if (self.epoch, self.index) != (epoch, 0):
            self.close()
            self.rewinds += 1
            self.epoch, self.index = epoch, 0

    def return_to(self, token: str) -> None:
        """Continues after the batch `epoch:index`, an epoch left early having its receipt."""
        if 0 < self.steps_left < len(self) or token != self.token:
            self.close()
            self._move_to(token)
        self.present_pass = None

    def close(self) -> None:
        """What leaving the `with` does: an epoch that was left early gets its receipt."""
        self.end_epoch()
        if self.index:
            self._receive(complete=False)

    def _batches(self, epoch: int, own: object) -> Iterator[Batch]:
        while self.epoch == epoch and self.index < self.spec.batches:
            self.taken.append((epoch, self.index))
            self.index += 1
            self.placed = False
            yield self._batch(*self.taken[-1])
            if own is not None and own is not self.present_pass:
                raise StreamdError("this pass is over: another one has begun")
        if self.epoch == epoch:
            self.end_epoch()

    def _batch(self, epoch: int, index: int) -> Batch:
        ids = self.ids(epoch, index)
        weights = np.ones(ids.size, dtype=np.float32)
        weights[[sample in self.weightless for sample in ids.tolist()]] = 0
        labels = {name: self._labels(label, ids) for name, label in self.spec.labels.items()}
        # Every image shows the sample's number in all its pixels.
        token = partial("{}:{}".format, epoch, index)
        return Batch(self._arrays(ids), labels, weights, ids, (), epoch, index, token, self.spec)

    def _arrays(self, ids: Ids) -> dict[str, npt.NDArray[Any]]:
        """All images of the samples, in one piece of memory with one lease."""
        layout = compute_layout(self.spec, ids.size)
        memory = mmap.mmap(-1, layout.sample_ids.offset)
        for place in layout.arrays.values():
            values = place.build_array_in_memory(memoryview(memory))
            values[:] = ids.reshape(-1, *(1 for _ in place.shape[1:]))
            if values.dtype.kind == "f":
                values[np.isin(ids, list(self.spoiled_pixels))] = np.nan
        self.leases += 1
        self.most_leases = max(self.most_leases, self.leases)
        return build_leased_arrays(memoryview(memory), layout.arrays.values(), self._returned)

    def _returned(self) -> None:
        self.leases -= 1

    def _labels(self, label: LabelSpec, ids: Ids) -> npt.NDArray[Any]:
        values = (ids % len(label.classes)) if label.classes else ids / self.spec.samples
        values = values.astype(label.dtype)
        if label.type == "float":
            values[np.isin(ids, list(self.spoiled))] = np.nan
        shape = (len(ids), *label.shape)
        return np.broadcast_to(values.reshape(-1, *(1 for _ in label.shape)), shape).copy()

    def _receive(self, *, complete: bool) -> None:
        samples = sum(self.spec.batch_rows(index) for index in range(self.index))
        self.accounts.append(
            Receipt(
                stream=self.spec.name,
                epoch=self.epoch,
                steps=self.index,
                samples=samples,
                missed=self.missed,
                repeated=0,
                bad=0,
                dropped=0,
                changed=False,
                complete=complete,
                ok=self.missed == 0,
                digest="",
            )
        )


class FakeClient(Client):
    """A client of a daemon that serves `specs`; `subscribed` are the streams it gave out."""

    def __init__(
        self,
        specs: Sequence[StreamSpec],
        missed: int = 0,
        spoiled: Iterable[int] = (),
        spoiled_pixels: Iterable[int] = (),
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._missed = missed
        self._spoiled: dict[str, Any] = {"spoiled": frozenset(spoiled), "spoiled_pixels": frozenset(spoiled_pixels)}
        self.subscribed: dict[str, FakeStream] = {}
        self.starts: dict[str, object] = {}
        self.trainer_names: dict[str, str | None] = {}

    def __repr__(self) -> str:
        return f"<FakeClient, serves {', '.join(self._specs)}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        pass

    def spec(self, name: str) -> StreamSpec:
        if name not in self._specs:
            raise RefusedError(f"no stream {name!r}{suggest_name(name, self._specs)}")
        return self._specs[name]

    def subscribe(
        self,
        stream: str,
        *,
        epochs: SupportsIndex | None = None,
        start: Start = "begin",
        batch_size: SupportsIndex | None = None,
        name: str | None = None,
        **others: Any,
    ) -> FakeStream:
        assert (batch_size, others) == (None, {}), "tests of other sizes use a daemon"
        self.starts[stream], self.trainer_names[stream] = start, name
        total = None if epochs is None else int(epochs)
        self.subscribed[stream] = FakeStream(self.spec(stream), total, missed=self._missed, **self._spoiled)
        return self.subscribed[stream]

    def names(self, stream: str, sample_ids: Iterable[SupportsIndex]) -> list[str]:
        return [f"{stream}/{sample_id}.png" for sample_id in sample_ids]

    def batch(self, stream: str, epoch: SupportsIndex, index: SupportsIndex) -> Batch:
        spec = self.spec(stream)
        epoch, index = int(epoch), int(index)
        made = FakeStream(spec, **self._spoiled)._batch(epoch, index)
        labels, arrays = dict(made.labels), {name: values.copy() for name, values in made.arrays.items()}
        return Batch(arrays, labels, made.weights, made.sample_ids, (), epoch, index, made.make_token, spec)
