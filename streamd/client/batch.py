"""The batches that a stream yields: images are views of shared memory, labels are the caller's own copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamd.core.bad_samples import BadRow, RowStatus, build_all_good_row_status, replace_bad_sample_ids
from streamd.core.sampler import Ids
from streamd.core.slot_layout import SlotLayout
from streamd.core.spec import BadPolicy, StreamSpec
from streamd.core.text import format_count
from streamd.errors import ProtocolError
from streamd.ipc.mapping import build_leased_arrays
from streamd.ipc.messages import BatchReady

FindNames = Callable[[Sequence[int]], Mapping[int, str]]  # file names by sample id; leaves out those not known soon


def _find_no_names(_: Sequence[int]) -> Mapping[int, str]:
    return {}


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One batch.

    arrays: the images of the samples by name, (B, H, W, C) of uint8, uint16 or float32, class numbers (B, H, W):
        read-only views of leased memory. The lease lasts while any view of any image lives.
    images: the first of the arrays, uint8 (B, H, W, C) unless the stream says otherwise.
    labels: arrays by name, (B,) or (B, k): int64 for category and int, float32 for float, float32 for tags (1 where a
        sample has the class, else 0), str for string. Rows without a sample have 0 or "".
    weights: float32 (B,). The sample's weight as the stream configures it, 1 by default; 0 in rows without a sample.
    sample_ids: int64 (B,), the samples that were delivered; -1 in rows without one.
    bad: the rows that were substituted or masked.
    spec: the stream's specification, with the classes behind the labels.
    find_names: returns the file names of `sample_ids` by id; an empty mapping while the daemon is away.

    A notebook shows a batch as pictures with labels and file names.
    """

    arrays: dict[str, npt.NDArray[Any]]
    labels: dict[str, npt.NDArray[Any]]
    weights: npt.NDArray[np.float32]
    sample_ids: npt.NDArray[np.int64]
    bad: tuple[BadRow, ...]
    epoch: int
    index: int
    make_token: Callable[[], str]
    spec: StreamSpec
    find_names: FindNames = _find_no_names

    @property
    def images(self) -> npt.NDArray[Any]:
        """The first image of each sample, as in `arrays`."""
        return next(iter(self.arrays.values()))

    @property
    def token(self) -> str:
        """The position after this batch, as JSON: `subscribe(resume=token)` continues there."""
        return self.make_token()

    def copy(self) -> Batch:
        """Returns the same batch with its own copy of the images, so that the lease may end."""
        return replace(self, arrays={name: values.copy() for name, values in self.arrays.items()})

    def __len__(self) -> int:
        return int(self.sample_ids.size)

    def __repr__(self) -> str:
        bad = f", {len(self.bad)} bad" if self.bad else ""
        return f"<Batch {self.epoch}:{self.index} of {self.spec.name!r}, {describe_rows(self.spec, len(self))}{bad}>"

    def _repr_html_(self) -> str:
        """Returns HTML for a notebook: pictures with labels, and file names if the daemon answers at once."""
        from streamd.client import notebook  # noqa: PLC0415 - a trainer's loop has no use for it

        return notebook.render_batch(self, self.find_names)


def describe_rows(spec: StreamSpec, rows: int) -> str:
    """Describes a number of rows of a stream for a repr: `8 images 32x32x3, labels angle, kind`.

    Several images of a sample have their names: `8 samples, photo 32x32x3, mask 32x32, labels kind`.
    """
    shapes = {name: "x".join(map(str, image.shape)) for name, image in spec.images.items()}
    if len(shapes) == 1:
        what = f"{format_count(rows, 'image')} {next(iter(shapes.values()))}"
    else:
        what = ", ".join([format_count(rows, "sample"), *(f"{name} {shape}" for name, shape in shapes.items())])
    return what + (f", labels {', '.join(spec.labels)}" if spec.labels else "")


def build_leased_batch(
    memory: memoryview,
    layout: SlotLayout,
    header: BatchReady,
    spec: StreamSpec,
    *,
    token: Callable[[], str],
    on_return: Callable[[], None],
    find_names: FindNames = _find_no_names,
) -> Batch:
    """Builds a batch over `memory`; `on_return` runs when the last view of its images is gone.

    Only the images stay in `memory`; ids, weights and labels are copied. `on_return` may run in any thread, also within
    the garbage collector.
    """
    start = layout.sample_ids.offset
    # Everything after the images is small, so one copy of it lets the caller keep labels after the lease has ended.
    own = memoryview(bytearray(memory[start : layout.size_bytes]))
    return Batch(
        build_leased_arrays(memory, layout.arrays.values(), on_return),
        {name: _decode_label(tensor.build_array_in_memory(own, start)) for name, tensor in layout.labels.items()},
        layout.weights.build_array_in_memory(own, start),
        layout.sample_ids.build_array_in_memory(own, start),
        header.bad,
        header.epoch,
        header.index,
        token,
        spec,
        find_names,
    )


def _decode_label(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns a label's values as the trainer sees them: UTF-8 bytes become text, all else stays as in the slot."""
    return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values


def restore_planned_ids(delivered: Ids, bad: tuple[BadRow, ...], policy: BadPolicy) -> tuple[Ids, RowStatus]:
    """Returns the ids that the plan has for a batch, and the status of each row.

    Raises ProtocolError when the delivered ids do not follow from the planned ids and the verdicts in `bad`.
    """
    if not bad:
        return delivered, build_all_good_row_status(delivered.size)
    # Put the planned ids back, then apply the daemon's own rule again: equal results prove that the delivery follows
    # from the plan. The epoch's digest cannot show this, since it covers planned ids alone.
    planned = delivered.copy()
    planned[[row.row for row in bad]] = [row.sample_id for row in bad]
    resolved, marks = replace_bad_sample_ids(planned, {row.sample_id for row in bad}, policy)
    if not np.array_equal(resolved, delivered):
        raise ProtocolError(
            f"samples {delivered.tolist()} do not follow from the bad rows {bad} and the planned samples "
            f"{planned.tolist()}"
        )
    return planned, marks
