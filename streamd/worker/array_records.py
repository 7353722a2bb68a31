"""Samples whose images are rows of arrays, one array for each image, resized and cropped as files are."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import PAD_ID, Ids
from streamd.core.spec import ImageSpec, PixelId, compute_identity
from streamd.dataset.arrays.store import (
    NO_DRAWS,
    Mask,
    Pixels,
    ReportRow,
    RowStore,
    SampleDraws,
    SampleGeometries,
    SampleRows,
    Store,
    ignore_row_report,
)
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.manifest.types import ArrayFiles
from streamd.dataset.open_store import open_row_store
from streamd.dataset.paths.open_beneath import open_root_folder, reopen_root_folder
from streamd.decode.class_numbers import place_class_numbers
from streamd.decode.decoders import list_picture_draws
from streamd.decode.geometry import Draw, Geometry, Size, compute_fixed_geometry, draw_geometry
from streamd.decode.pixel_id import build_probe_numbers
from streamd.decode.raw import resize_numbers
from streamd.decode.resize import BadFrameError, BadImageError, build_pil_image, resize_picture
from streamd.ipc.slots import WorkerPhase
from streamd.limits import GATHERED_BYTES

# --- Images that need no decoding, since arrays hold their numbers: how they land in a row, and what makes them bad.
#
# An image of an array is resized as a PNG of the same numbers would be.

Numbers = npt.NDArray[Any]  # (height, width, channels), as a store gives them


def place_stored_image(numbers: Numbers, row: Numbers, image: ImageSpec, draw: Draw | None = None) -> Geometry:
    """Writes an image of an array into `row`, of the shape and dtype of `image`, and returns how it lands there.

    `draw` is that of `decode_image`. Raises BadImageError for class numbers that the row does not hold.
    """
    geometry = draw_geometry(image, (numbers.shape[0], numbers.shape[1]), draw)
    if image.mode == "raw":
        resize_numbers(row, numbers, geometry, image.fill)
    elif image.mode == "index":
        place_class_numbers(numbers[:, :, 0], row, geometry, image.fill)
    else:
        resize_picture(row, build_pil_image(numbers), geometry, image.fill)
    return geometry


def place_stored_pictures(
    name: str, numbers: Numbers, rows: Sequence[Numbers], image: ImageSpec, draws: Sequence[Draw | None]
) -> list[Geometry]:
    """Writes all views or frames of the image `name` into the row of the same number; see `place_stored_image`.

    `numbers` has a picture for each frame, or one that all views show; its first axis has length 1 then. Raises
    BadFrameError if a frame is at fault.
    """
    pictures = [*numbers] * (1 if image.frames else len(rows))
    landed: list[Geometry] = []
    for picture, row, draw in zip(pictures, rows, draws, strict=True):
        # All frames show the part that the first one does, which a random crop has drawn.
        shown = landed[0] if image.frames and landed and not isinstance(draw, Geometry) else draw
        try:
            landed.append(place_stored_image(picture, row, image, shown))
        except BadImageError as error:
            if not image.frames:
                raise
            raise BadFrameError(name, len(landed), str(error)) from error
    return landed


def find_fixed_geometries(images: Mapping[str, ImageSpec], stored: Mapping[str, Size]) -> dict[str, Geometry | None]:
    """Returns how images of arrays of these sizes land, by name; None for those that are cropped at random."""
    fixed: dict[str, Geometry | None] = {}
    for name, image in images.items():
        leader = name if image.like is None else image.like
        geometry = None if image.resize == "random_crop" else compute_fixed_geometry(images[leader], stored[leader])
        fixed[name] = geometry if geometry is None or leader == name else draw_geometry(image, stored[name], geometry)
    return fixed


def is_shown_whole(geometry: Geometry | None) -> bool:
    """Whether an image is served pixel by pixel, as it is stored."""
    return geometry is not None and geometry.is_unresized and geometry.is_whole_row


def compute_array_pixel_id(images: Mapping[str, ImageSpec], stored: Mapping[str, Size]) -> PixelId:
    """Returns the identity of the pixels of samples whose images are arrays, of these (height, width).

    Images that are served as they are stored depend on no library. The others have a digest of resized numbers.
    """
    fixed = find_fixed_geometries(images, stored)
    parts = [
        part
        for name, image in images.items()
        for part in (
            name,
            image.describe_pixels(),
            *stored[name],
            "" if is_shown_whole(fixed[name]) else _compute_probe_digest(image),
        )
    ]
    return PixelId(compute_identity("streamd array images 1", *parts))


@lru_cache(maxsize=64)
def _compute_probe_digest(image: ImageSpec) -> str:
    row = np.empty(image.picture_shape, image.dtype)  # all views show the same picture
    digest = hashlib.blake2b(digest_size=16)
    for numbers in build_probe_numbers(image):
        place_stored_image(numbers, row, image)
        digest.update(row.data)
    return digest.hexdigest()


# --- Samples whose images are rows of arrays, one array for each image, resized and cropped as files are.

Images = Mapping[str, ImageSpec]

_NO_FAULT: Final = ""


def find_image_arrays(manifest: Manifest, images: Images) -> dict[str, ArrayFiles]:
    """Returns the arrays of each image of the samples of a manifest that lists arrays."""
    assert manifest.arrays is not None  # noqa: S101 - the caller has asked
    more = manifest.image_arrays
    return {name: more[name].arrays if name in more else manifest.arrays for name in images}


def compute_manifest_pixel_id(manifest: Manifest, images: Images) -> PixelId:
    """Returns the identity of the pixels of samples whose images are arrays, which needs no array."""
    return compute_array_pixel_id(images, find_stored_sizes(manifest, images))


def find_stored_sizes(manifest: Manifest, images: Images) -> dict[str, Size]:
    """Returns the (height, width) of each stored image."""
    return {name: arrays.shape[:2] for name, arrays in find_image_arrays(manifest, images).items()}


def needs_records(manifest: Manifest, images: Images) -> bool:
    """Whether a store that copies one array into the slot is not enough: for several images, or a resized one."""
    if manifest.arrays is None:
        return False
    if len(images) > 1:
        return True
    (name, image), *_ = images.items()
    fixed = find_fixed_geometries(images, find_stored_sizes(manifest, images))
    return image.mode == "index" or bool(image.pictures) or not is_shown_whole(fixed[name])


class ArrayRecords(Store):
    """The samples of a manifest that lists arrays.

    An image that is served as it is stored is gathered into its rows; the others go through a buffer, some rows at a
    time. One bad image makes its sample bad. `stores` has the store of each image.
    """

    def __init__(self, manifest: Manifest, images: Images, root: int) -> None:
        """Opens all arrays. Raises as `open_store` does, and DataAwayError if the root of an image is gone."""
        self._images = images
        self._manifest = manifest
        self._listed = {name: image for name, image in manifest.image_arrays.items() if name in images}
        self._roots: dict[str, int] = {}  # of images that lie elsewhere; the numbers stay when roots are opened again
        self.stores: dict[str, RowStore] = {}
        self._faults: dict[int, str] = {}
        arrays = find_image_arrays(manifest, images)
        self._shapes = {name: each.shape for name, each in arrays.items()}
        self._dtypes = {name: each.served_dtype for name, each in arrays.items()}
        self._fixed = find_fixed_geometries(images, {name: shape[:2] for name, shape in self._shapes.items()})
        self._order = sorted(images, key=lambda name: images[name].like is not None)  # leaders first
        self._frames = {name: rows for name, rows in manifest.row_frames.items() if name in images}
        most_bytes = max(each.row_bytes * max(1, images[name].frames) for name, each in arrays.items())
        self._rows_at_once = max(1, GATHERED_BYTES // most_bytes)
        try:
            for name, each in arrays.items():
                listed = self._listed.get(name)
                if listed is not None and listed.has_own_root:
                    self._roots[name] = open_root_folder(listed.root)
                self.stores[name] = open_row_store(
                    listed or manifest, each, self._roots.get(name, root), by_row=name in self._frames
                )
        except BaseException:
            self.close()
            raise

    def find_gatherable(self, ids: Ids) -> Mask:
        """See `Store`. No sample can be gathered once a file of any image has changed."""
        held: Mask = np.logical_and.reduce([store.find_gatherable(ids) for store in self.stores.values()])
        return held

    def prefetch_rows(self, ids: Ids) -> None:
        """See `Store`."""
        for name, store in self.stores.items():
            store.prefetch_rows(self._list_rows(name, ids).reshape(-1))

    def gather(
        self, ids: Ids, rows: SampleRows, draws: SampleDraws = NO_DRAWS, report_row: ReportRow = ignore_row_report
    ) -> tuple[Mask, Sequence[SampleGeometries]]:
        """See `Store`."""
        held = np.ones(ids.size, np.bool_)
        landed: list[SampleGeometries] = [{}] * ids.size
        for start in range(0, ids.size, self._rows_at_once):
            part = slice(start, min(start + self._rows_at_once, ids.size))
            report_row(start, WorkerPhase.READING)
            # Each image as it is stored, of a clip all frames, (n, frames, ...); None where it already lies in its rows
            # as it is served.
            stored: dict[str, Pixels | None] = {}
            for name in self._order:
                frames, images = self._list_rows(name, ids[part]), rows[name][part]
                shape = (frames.size, *self._shapes[name])
                is_whole = is_shown_whole(self._fixed[name]) and not self._images[name].views
                is_final = is_whole and self._dtypes[name] == images.dtype
                gathered = images.reshape(shape) if is_final else np.empty(shape, self._dtypes[name])
                found, _ = self.stores[name].gather(frames.reshape(-1), {name: gathered})
                held[part] &= found.reshape(frames.shape).all(axis=1)
                stored[name] = None if is_final else gathered.reshape(*frames.shape, *self._shapes[name])
            for place in np.flatnonzero(held[part]).tolist():
                report_row(start + place, WorkerPhase.DECODING)
                geometries = self._place_images(int(ids[start + place]), start + place, place, stored, rows, draws)
                if geometries is None:
                    held[start + place] = False
                else:
                    landed[start + place] = geometries
        return held, landed

    def _list_rows(self, name: str, ids: Ids) -> Ids:
        """Returns what an image's store is asked for, (n, frames): the rows of clips, else samples, (n, 1)."""
        if name not in self._frames:
            return ids[:, None]
        rows = self._frames[name][ids].astype(np.int64)
        rows[ids == PAD_ID] = PAD_ID
        return rows

    def _place_images(
        self,
        sample_id: int,
        row: int,
        place: int,
        stored: Mapping[str, Pixels | None],
        rows: Mapping[str, Pixels],
        draws: SampleDraws,
    ) -> SampleGeometries | None:
        """Writes the images of a sample into its row. Returns how they land, or None after a fault of the sample."""
        landed: dict[str, list[Geometry]] = {}
        for name in self._order:
            image, numbers, fixed = self._images[name], stored[name], self._fixed[name]
            if numbers is None and fixed is not None:
                landed[name] = [fixed]
                continue
            assert numbers is not None  # noqa: S101 - only images that are shown whole lie in their rows
            followed = None if fixed is not None or image.like is None else landed[image.like]
            shown: Sequence[Draw | None] = followed or list_picture_draws(image, fixed or draws[name][row])
            pictures = [*rows[name][row]] if image.pictures else [rows[name][row]]
            try:
                landed[name] = place_stored_pictures(name, numbers[place], pictures, image, shown)
            except BadFrameError as error:
                self._faults[sample_id] = self._name_row(name, self._frames[name][sample_id][error.frame], error.reason)
                return None
            except BadImageError as error:
                self._faults[sample_id] = self._name_image(name, sample_id, str(error))
                return None
        return {name: several[0] for name, several in landed.items() if not self._images[name].pictures}

    def find_permanent_fault(self, sample_id: int) -> str:
        """See `Store`. The reason names the image, where a sample has several."""
        if sample_id in self._faults:
            return self._faults[sample_id]
        for name, store in self.stores.items():
            if name in self._frames:
                for row in self._frames[name][sample_id].tolist():
                    if fault := store.find_permanent_fault(row):
                        return self._name_row(name, row, fault)
            elif fault := store.find_permanent_fault(sample_id):
                return self._name_image(name, sample_id, fault)
        return _NO_FAULT

    def _name_row(self, name: str, row: int, fault: str) -> str:
        """Names the row of a frame: many clips may show it, and all of them are bad for its one fault."""
        return f"{name} {self._manifest.format_row(name, int(row))}: {fault}"

    def _name_image(self, name: str, sample_id: int, fault: str) -> str:
        if len(self._images) == 1:
            return fault
        if name not in self._roots:
            return f"{name}: {fault}"
        return f"{name} {self._listed[name].file_name(sample_id).decode(errors='backslashreplace')}: {fault}"

    def reopen_roots(self) -> None:
        """Opens the paths of other roots again, as a mount may have changed them. Raises DataAwayError."""
        for name, descriptor in self._roots.items():
            reopen_root_folder(self._listed[name].root, descriptor)

    def close(self) -> None:
        """Closes all arrays and roots."""
        with ExitStack() as closing:
            for root in self._roots.values():
                closing.callback(os.close, root)
            for store in self.stores.values():
                closing.callback(store.close)
        self._roots.clear()
        self.stores.clear()
