"""Stored samples of which a slot does not hold one image just as it is stored: several images, or resized ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from streamd.core.sampler import Ids
from streamd.dataset.arrays.store import Mask, Pixels
from streamd.decode.geometry import Draw, Geometry
from streamd.ipc.progress_page import WorkerPhase

SampleGeometries = Mapping[str, Geometry]  # how each image of a sample lands in its row
# This receives the place of the sample at work, and what is done: READING its rows, or DECODING, which resizes them.
ReportRow = Callable[[int, WorkerPhase], None]
SampleDraws = Mapping[str, Sequence[Draw | None]]  # by image, one draw a sample


def ignore_row_report(place: int, phase: WorkerPhase) -> None:
    """Ignores the report, where no progress page is shared with a daemon."""


class RecordStore(ABC):
    """Whole samples by id, as one worker sees them: see `SampleStore`, from which only the gathering differs."""

    @abstractmethod
    def find_gatherable(self, ids: Ids) -> Mask:
        """Returns which of `ids` can be gathered, (n,). Called from any thread."""

    @abstractmethod
    def prefetch_rows(self, ids: Ids) -> None:
        """Requests samples that will be gathered soon, where they are not in memory. Waits for no disk."""

    @abstractmethod
    def gather_records(
        self, ids: Ids, rows: Mapping[str, Pixels], draws: SampleDraws, report_row: ReportRow = ignore_row_report
    ) -> tuple[Mask, Mapping[int, SampleGeometries]]:
        """Writes the images of samples into `rows` by image, each (n, ...), with the draws of each sample.

        Returns which samples were written, (n,), and how their pictures land, by place in `ids`. The rows of the others
        may hold anything afterwards.
        """

    @abstractmethod
    def find_permanent_fault(self, sample_id: int) -> str:
        """Returns why a sample that was not gathered is bad for good; an empty text if a later attempt may succeed."""

    @abstractmethod
    def close(self) -> None:
        """Closes the files. The store is not used afterwards."""
