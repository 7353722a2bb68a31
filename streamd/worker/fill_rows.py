"""Fills the rows of one task: gathers them from a store or decodes files into them, and writes labels beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import PAD_ID, BadSample, Ids, build_generators
from streamd.core.slot_layout import build_blank_label
from streamd.core.spec import LabelSpec
from streamd.dataset.arrays.store import SampleGeometries, Store
from streamd.dataset.cache import DecodedCache
from streamd.decode.boxes import LabelFit, Rows, align_label_rows, find_label_fit, place_label_rows
from streamd.decode.decoders import BadImageError, DecodedFrames, decode_image, decode_sample
from streamd.decode.geometry import Geometry, compute_sample_draws
from streamd.ipc.slots import ProgressPage, WorkerPhase
from streamd.ipc.worker_messages import FillRows, format_error_reason
from streamd.worker.stream_reader import Blob, StreamReader, UnreadFile
from streamd.worker.transforms import (
    RNG_PURPOSE,
    FailedTransformError,
    UnfitTransformError,
)

_FILES: Final = (bytes, tuple)  # what is decoded: the file of a sample, or the files of its images


class TaskRunner:
    """Fills the rows of one task in steps, so that the caller can check its socket between two steps.

    The progress page names the row at work, and is idle between two calls. If the process dies, the daemon judges the
    death by this page.
    """

    def __init__(
        self,
        reader: StreamReader,
        task: FillRows,
        memory: memoryview,
        page: ProgressPage,
        *,
        keep_geometries: bool = False,
    ) -> None:
        self._reader = reader
        self._task = task
        self._layout = reader.batch_layout(task.batch_rows)
        self._memory = memory
        self._page = page
        self._arrays = {name: each.build_array_in_memory(memory) for name, each in self._layout.arrays.items()}
        self._draws = compute_sample_draws(reader.spec.images, reader.spec.seed, task.epoch, task.ids)
        self._images = next(iter(self._arrays.values()))
        self._first_draws = next(iter(self._draws.values()))
        self._rows: list[int] = task.rows.tolist()
        # The slice of rows that follow each other, as in nearly all tasks; None for scattered rows.
        run = slice(self._rows[0], self._rows[0] + len(self._rows))
        self._row_slice = run if self._rows == list(range(run.start, run.stop)) else None
        self._is_gathered = [False] * len(self._rows)
        self._decoded: list[int] = []
        # By place in the task, of rows with a sample: kept where labels are boxes or points, or where asked for.
        self.geometries: dict[int, SampleGeometries] = {}
        self._keeps_geometries = keep_geometries or any(label.is_ragged for label in reader.spec.labels.values())
        # A transform changes rows in place, so none of them can be copied for another clip.
        self._frames: DecodedFrames | None = {} if reader.transform is None else None
        self.unfilled_rows: list[BadSample] = []
        self.label_fits: set[tuple[str, LabelFit]] = set()  # label, and how it came onto a picture

    def gather_stored_rows(self) -> bool:
        """Copies the rows that the stream's store holds. Returns whether nothing is left to read and decode.

        Raises MemoryError, with the page still at the row that needed the memory.
        """
        store = self._reader.store
        if store is None:
            return False
        if self._row_slice is not None:
            self._is_gathered = self._gather_part(store, slice(0, len(self._rows)), self._row_slice)
        else:
            # Indexing with a list of rows would copy them, so scattered rows are gathered one by one.
            parts = ((slice(place, place + 1), slice(row, row + 1)) for place, row in enumerate(self._rows))
            self._is_gathered = [each for part in parts for each in self._gather_part(store, *part)]
        whole = all(self._is_gathered)
        # No row's pixels are at work while files are read, which may take any time.
        self._page.write_row_progress(self._task.number, 0, WorkerPhase.IDLE if whole else WorkerPhase.READING)
        return whole

    def _gather_part(self, store: Store, places: slice, rows: slice) -> list[bool]:
        """Gathers samples of the task, at `places` of it, into `rows` of the slot. Returns which were gathered."""
        held, landed = store.gather(
            self._task.ids[places],
            {name: each[rows] for name, each in self._arrays.items()},
            {name: several[places] for name, several in self._draws.items()},
            lambda place, phase: self._page.write_row_progress(self._task.number, places.start + place, phase),
        )
        found: list[bool] = held.tolist()
        if self._keeps_geometries:
            for place in np.flatnonzero(held).tolist():
                try:
                    self._keep_geometries(places.start + place, landed[place])
                except BadImageError as error:  # a cache may hold the picture, whatever its labels were drawn on
                    self._add_bad_image(places.start + place, error)
        return found

    def _keep_geometries(self, place: int, landed: SampleGeometries) -> None:
        """Keeps how the pictures of a sample land. Raises BadImageError for labels that were drawn on other ones."""
        if self._keeps_geometries:
            self.label_fits.update(find_label_fits(self._reader, int(self._task.ids[place]), landed).items())
            self.geometries[place] = landed

    def _add_bad_image(self, place: int, error: BadImageError) -> None:
        sample_id = int(self._task.ids[place])
        reason = self._reader.format_bad_image(sample_id, error)
        self.unfilled_rows.append(BadSample(sample_id, reason, lasting=True))

    def decode_rows(self, blobs: Sequence[Blob], start: int, stop: int) -> None:
        """Decodes the rows from `start` to `stop` that were not gathered.

        Raises MemoryError, with the page still at the row that needed the memory.
        """
        spec, page, number = self._reader.spec, self._page, self._task.number
        for place in range(start, min(stop, len(blobs))):
            if self._is_gathered[place]:
                continue
            blob, frames, row = blobs[place], self._frames, self._rows[place]
            # A large file is read only now, so that no task holds more than READ_AHEAD_BYTES.
            if blob is UnreadFile.LATER:
                page.write_row_progress(number, place, WorkerPhase.READING)
                blob, frames = self._reader.read_sample(int(self._task.ids[place])), None
            # The file could not be read: the daemon decides whose fault that is.
            if isinstance(blob, BadSample):
                self.unfilled_rows.append(blob)
                continue
            # Padding: the row shows the fill.
            if not isinstance(blob, _FILES):
                for name, values in self._arrays.items():
                    values[row] = spec.images[name].fill
                continue
            # Standard case: the bytes of one or several images become pixels in the slot.
            page.write_row_progress(number, place, WorkerPhase.DECODING)
            landed: SampleGeometries
            try:
                if isinstance(blob, bytes) and not spec.image.views:
                    name = next(iter(spec.images))
                    landed = {name: decode_image(blob, self._images[row], spec.image, self._first_draws[place])}
                else:
                    landed = decode_sample(
                        (blob,) if isinstance(blob, bytes) else blob,
                        {name: values[row] for name, values in self._arrays.items()},
                        spec.images,
                        {name: draws[place] for name, draws in self._draws.items()},
                        frames,
                    )
                self._keep_geometries(place, landed)
            except BadImageError as error:
                self._add_bad_image(place, error)
            else:
                self._decoded.append(place)
        page.write_row_progress(number, stop, WorkerPhase.IDLE)

    @property
    def count_of_gathered_rows(self) -> int:
        """The number of rows that needed no decoding."""
        return sum(self._is_gathered)

    def write_to_cache(self, cache: DecodedCache) -> None:
        """Writes the decoded rows to the cache."""
        for place in self._decoded:
            rows = {name: values[self._rows[place]] for name, values in self._arrays.items()}
            cache.write_sample(int(self._task.ids[place]), rows, self.geometries.get(place, {}))

    def transform_rows(self, start: int, stop: int) -> None:
        """Applies the stream's transform to the rows from `start` to `stop` that hold a sample.

        Labels must be written before, since the transform reads and replaces them. If the transform raises, the sample
        is at fault, and its row is reported as unfilled. Raises UnfitTransformError, and MemoryError with the page
        still at the row.
        """
        transform, spec, ids = self._reader.transform, self._reader.spec, self._task.ids[start:stop]
        if transform is None:
            return
        columns = {name: tensor.build_array_in_memory(self._memory) for name, tensor in self._layout.labels.items()}
        # Each sample has a generator of its own, so a batch that is made again draws the same numbers, however it is
        # cut into tasks.
        for place, rng in enumerate(build_generators(spec.seed, self._task.epoch, ids, RNG_PURPOSE), start):
            # Padding and rows that could not be filled hold no sample.
            if not (self._is_gathered[place] or place in self._decoded):
                continue
            self._page.write_row_progress(self._task.number, place, WorkerPhase.TRANSFORMING)
            row, sample_id = self._rows[place], int(self._task.ids[place])
            rows = {name: values[row] for name, values in self._arrays.items()}
            try:
                transform.call.transform_row(rows, columns, row, rng)
            except FailedTransformError as error:
                self.unfilled_rows.append(BadSample(sample_id, format_error_reason(error), lasting=True))
            except UnfitTransformError as error:
                file = self._reader.manifest.display_name(sample_id).decode(errors="backslashreplace")
                unfit = f"{error}; the sample was {file}; fix the transform and send SIGHUP"
                raise UnfitTransformError(unfit) from error
        self._page.write_row_progress(self._task.number, stop, WorkerPhase.IDLE)

    def write_labels(self) -> None:
        """Writes ids, weights and labels of the task's rows.

        A row without a sample has weight 0 and labels of zero, or -1 for boxes and points.
        """
        ids, manifest = self._task.ids, self._reader.manifest
        rows = self._task.rows if self._row_slice is None else self._row_slice
        absent = ids == PAD_ID
        whole = not absent.any()
        # Padding has no row in the manifest: it looks up sample 0, whose values are then overwritten.
        known = ids if whole else np.where(absent, 0, ids)
        self._layout.sample_ids.build_array_in_memory(self._memory)[rows] = ids
        self._layout.weights.build_array_in_memory(self._memory)[rows] = manifest.gather_weights(known) * ~absent
        for name, tensor in self._layout.labels.items():
            label = self._reader.spec.labels[name]
            if label.is_ragged:
                boxes = build_box_label(self._reader, label, ids, self.geometries)
                tensor.build_array_in_memory(self._memory)[rows] = boxes
                continue
            values = manifest.gather_label(name, known)
            if not whole:
                values[absent] = np.zeros((), values.dtype)  # for texts, an empty one
            tensor.build_array_in_memory(self._memory)[rows] = values


# --- Writes the boxes and points of samples beside their images, where the geometry of each image puts them.


def build_box_label(
    reader: StreamReader, label: LabelSpec, ids: Ids, landed: Mapping[int, SampleGeometries]
) -> npt.NDArray[np.float32]:
    """Returns the boxes or points of the samples `ids`, (len(ids), max, 5) or (len(ids), max, 2).

    `landed` has the geometries of the samples with pixels, by their place in `ids`. The other rows are -1.
    """
    rows = build_blank_label(label, len(ids))
    for place, geometries in landed.items():
        geometry = find_label_geometry(reader, label, geometries)
        place_label_rows(read_label_rows(reader, label, int(ids[place]), geometry), label, geometry, rows[place])
    return rows


def read_label_rows(reader: StreamReader, label: LabelSpec, sample_id: int, geometry: Geometry) -> Rows:
    """Returns the boxes or points of a sample, in the label's unit, for the upright picture of `geometry`.

    Raises BadImageError where they were drawn on another picture.
    """
    found = reader.manifest.ragged_column(label.name).read_sample(sample_id)
    return align_label_rows(found, label, reader.manifest.lookup_drawn_size(sample_id), geometry)


def find_label_fits(reader: StreamReader, sample_id: int, landed: SampleGeometries) -> dict[str, LabelFit]:
    """Returns how the boxes and points of a sample come onto its pictures, by label; none where no size is known.

    Raises BadImageError, which names the label, where they were drawn on another picture.
    """
    drawn = reader.manifest.lookup_drawn_size(sample_id)
    fits: dict[str, LabelFit] = {}
    for name, label in reader.spec.labels.items() if drawn is not None else ():
        if label.is_ragged and drawn is not None:
            geometry = find_label_geometry(reader, label, landed)
            try:
                read_label_rows(reader, label, sample_id, geometry)
                fits[name] = find_label_fit(drawn, geometry)
            except BadImageError as error:
                raise BadImageError(f"{name}: {error}") from error
    return fits


def format_label_fit(label: str, fit: LabelFit) -> str:
    """Formats what became of a label whose pictures have other sizes than those that it was drawn on."""
    if fit == "turned":
        return (
            f"labels.{label} was drawn on pictures as their files store them, before EXIF data turn them, so it is "
            "turned with them; streamd check counts them"
        )
    return (
        f"labels.{label} was drawn on pictures of another size, so it is scaled to the size that they have; streamd "
        "check counts them"
    )


def find_label_geometry(reader: StreamReader, label: LabelSpec, landed: SampleGeometries) -> Geometry:
    """Returns the geometry of the image that boxes or points follow."""
    return landed[label.image or next(iter(reader.spec.images))]
