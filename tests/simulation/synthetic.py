"""A stream without files: a real plan, real verdicts, and slots whose content says what was last written into them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import numpy as np
from support.sample_batches import joined
from support.sample_specs import some_spec

from streamd.core.receipt import format_digest, sum_expected_lanes
from streamd.core.sampler import (
    MASKED,
    BadRow,
    Ids,
    RowStatus,
    SampleOrder,
    compute_batch_ids,
    compute_order_id,
    replace_bad_sample_ids,
)
from streamd.core.spec import BadPolicy, Cursor, PixelId, StreamShape, StreamSpec
from streamd.limits import MIB

ROWS: Final = 4
SLOT_BYTES: Final = MIB  # to the window; what is really there is a place and a few sample ids

_PLACE: Final = struct.Struct("<qqq")  # epoch, index, how the pixels were made
_UNWRITTEN: Final = np.full(3 + ROWS, -2, dtype=np.int64).tobytes()


@lru_cache(maxsize=64)
def _spec(batches: int, policy: BadPolicy) -> StreamSpec:
    samples = batches * ROWS - 1
    spec = some_spec(samples=samples, batch_size=ROWS, batches=batches, remainder="pad", bad_policy=policy)
    # By the number of batches, which every seed draws anyway: half of the stories are told in chunks.
    mixed = replace(spec, shuffle="chunk", chunk=ROWS + 1, buffer=2) if batches % 2 else spec
    return replace(mixed, order_id=compute_order_id(mixed.order_facts))


@lru_cache(maxsize=64)
def _plans(order: SampleOrder) -> dict[tuple[int, int], Ids]:
    """Plans that were made, for all runs with as many batches."""
    del order
    return {}


class Slot(bytearray):
    """Memory that a daemon writes and trainers see. `watchers`: how many would see it change."""

    serial = 0
    watchers = 0
    forked = False  # a child has seen it, of whose end nobody hears

    def blank(self) -> None:
        """A new batch is begun: nothing of the old one can be relied on."""
        self[:] = _UNWRITTEN

    def write(self, epoch: int, index: int, pixels: int, ids: Ids) -> None:
        self[:] = _PLACE.pack(epoch, index, pixels) + ids.tobytes()


def lies_in(memory: memoryview) -> tuple[int, int, int]:
    """Epoch and index of the batch that lies there, and how its pixels were made."""
    epoch, index, pixels = _PLACE.unpack_from(memory)
    return epoch, index, pixels


def ids_in(memory: memoryview) -> Ids:
    return np.frombuffer(bytes(memory[_PLACE.size :]), dtype=np.int64)


@dataclass(slots=True)
class Synthetic:
    """The data set and what lies on the daemon's disk: survives every crash."""

    batches: int
    tasks: int
    policy: BadPolicy
    spoiled: set[int] = field(default_factory=set)  # samples that cannot be decoded any more, known or not
    verdicts: dict[int, str] = field(default_factory=dict)
    pixels: int = 0
    spec: StreamSpec = field(init=False)
    shape: StreamShape = field(init=False)
    _order: SampleOrder = field(init=False)
    _plans: dict[tuple[int, int], Ids] = field(init=False)

    def __post_init__(self) -> None:
        self.spec = _spec(self.batches, self.policy)
        self.renew()
        self._order = SampleOrder.from_spec(self.spec)
        self._plans = _plans(self._order)

    def renew(self) -> None:
        """The stream is served again: in the same order, with other pixels."""
        self.pixels += 1
        self.spec = replace(self.spec, pixel_id=PixelId(f"{self.pixels:032d}"))
        self.shape = StreamShape(self.spec.name, self.batches, SLOT_BYTES, self.tasks)

    def planned(self, epoch: int, index: int) -> Ids:
        """As the daemon plans it, a short last batch filled up: all slots are the same size here."""
        known = self._plans.get((epoch, index))
        if known is None:
            known = self._plans[epoch, index] = compute_batch_ids(self._order, epoch, index, ROWS)
            known.setflags(write=False)
        return known

    def resolved(self, epoch: int, index: int) -> tuple[Ids, RowStatus]:
        """The samples that a batch delivers by the verdicts known now."""
        return replace_bad_sample_ids(self.planned(epoch, index), self.verdicts, self.policy)

    def condemn(self, epoch: int, index: int) -> list[int]:
        """Decoding finds what is spoiled in a batch; the samples whose verdicts are new."""
        if not self.spoiled:
            return []
        unknown = self.spoiled - self.verdicts.keys()
        found = [each for each in self.resolved(epoch, index)[0].tolist() if each in unknown]
        self.verdicts |= dict.fromkeys(found, "spoiled")
        return found

    def bad_rows(self, epoch: int, index: int, marks: RowStatus) -> tuple[BadRow, ...]:
        planned = self.planned(epoch, index).tolist()
        return tuple(
            BadRow(row, planned[row], f"{planned[row]}.jpg", "spoiled", "masked" if mark == MASKED else "substituted")
            for row, mark in enumerate(marks.tolist())
            if mark
        )

    def digest(self, cursor: Cursor) -> str:
        """The daemon's word on an epoch."""
        epoch = cursor.epoch
        return format_digest(
            sum_expected_lanes(
                self.spec.order_id,
                epoch,
                cursor.history,
                lambda indices: joined(self.planned(epoch, index) for index in indices),
            )
        )
