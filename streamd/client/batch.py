"""What a stream yields: images that are a view of shared memory, and labels that are the caller's own."""

from __future__ import annotations

from collections.abc import Callable
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
from streamd.ipc.mapping import build_leased_array
from streamd.ipc.messages import BatchReady


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One batch.

    `images` uint8 (B, H, W, C), a read-only view of memory that is lent as long as it, or any view of it, lives;
    `labels` by name, (B,) or (B, k): int64 for category and int, float32 for float, float32 for tags (1 where a sample
    has the class, else 0), str for string; 0 or "" in rows without a sample; `weights` float32 (B,), 0 for those rows,
    else what the stream says that a sample weighs, which is 1 unless it is configured; `sample_ids` int64 (B,), the
    samples really delivered, -1 for none; `bad` the rows that were substituted or masked; `spec` what the stream says
    of itself, such as the classes behind the labels.
    """

    images: npt.NDArray[np.uint8]
    labels: dict[str, npt.NDArray[Any]]
    weights: npt.NDArray[np.float32]
    sample_ids: npt.NDArray[np.int64]
    bad: tuple[BadRow, ...]
    epoch: int
    index: int
    make_token: Callable[[], str]
    spec: StreamSpec

    @property
    def token(self) -> str:
        """The place behind this batch, as JSON: `subscribe(resume=token)` continues there."""
        return self.make_token()

    def copy(self) -> Batch:
        """The same batch in memory of its own; the lent memory may go back."""
        return replace(self, images=self.images.copy())

    def __len__(self) -> int:
        return int(self.sample_ids.size)

    def __repr__(self) -> str:
        return (
            f"<Batch {self.epoch}:{self.index}, {format_count(len(self), 'image')} {self.images.shape[1:]}, "
            f"{len(self.bad)} bad>"
        )

    def _repr_html_(self) -> str:
        """How a notebook shows it: pictures with labels."""
        from streamd.client import notebook  # noqa: PLC0415 - a trainer's loop has no use for it

        return notebook.render_batch(self)


def build_leased_batch(
    memory: memoryview,
    layout: SlotLayout,
    header: BatchReady,
    spec: StreamSpec,
    *,
    token: Callable[[], str],
    on_return: Callable[[], None],
) -> Batch:
    """The batch that lies in `memory`; `on_return` runs when the last view of its images is gone."""
    start = layout.sample_ids.offset
    # What lies behind the images is small: copied in one piece, for the caller to keep.
    own = memoryview(bytearray(memory[start : layout.size_bytes]))
    return Batch(
        build_leased_array(memory, layout.images, on_return),
        {name: _decode_label(tensor.build_array_in_memory(own, start)) for name, tensor in layout.labels.items()},
        layout.weights.build_array_in_memory(own, start),
        layout.sample_ids.build_array_in_memory(own, start),
        header.bad,
        header.epoch,
        header.index,
        token,
        spec,
    )


def _decode_label(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A label's values as a trainer has them: what lies in the slot, but bytes as the text that they mean."""
    return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values


def restore_planned_ids(delivered: Ids, bad: tuple[BadRow, ...], policy: BadPolicy) -> tuple[Ids, RowStatus]:
    """The ids that the plan has for a batch, and the marks of its rows.

    Raises ProtocolError when what was delivered is not what the verdicts in `bad` make of them.
    """
    if not bad:
        return delivered, build_all_good_row_status(delivered.size)
    planned = delivered.copy()
    planned[[row.row for row in bad]] = [row.sample_id for row in bad]
    resolved, marks = replace_bad_sample_ids(planned, {row.sample_id for row in bad}, policy)
    if not np.array_equal(resolved, delivered):
        raise ProtocolError(f"samples {delivered.tolist()} are not what {bad} make of samples {planned.tolist()}")
    return planned, marks
