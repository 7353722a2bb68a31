"""What a cache keeps of one sample: the pixels of its images, and where boxes and points belong on them.

    pixels of the first image | pixels of the second | ... | a geometry for each image, 64 bytes, if boxes follow one

A sample of one image without such labels is its pixels and nothing else, so that it is gathered with one NumPy call.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.core.spec import StreamSpec
from streamd.dataset.arrays.store import Pixels
from streamd.decode.geometry import Geometry, Size

Record = npt.NDArray[np.uint8]  # (nbytes,)

_GEOMETRY: Final = struct.Struct("<2I4d4I?B6x")  # source, box, place, is_cut, orientation


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """Where the parts of a record lie: `images` has the bytes of each image by name, as the ends of a slice.

    `targets` has the (height, width) of the images whose geometry is kept behind the pixels: all that are one picture,
    or none.
    """

    images: Mapping[str, tuple[int, int]]
    targets: Mapping[str, Size]

    @staticmethod
    def from_stream_spec(spec: StreamSpec) -> RecordLayout:
        places: dict[str, tuple[int, int]] = {}
        start = 0
        for name, image in spec.images.items():
            nbytes = prod(image.shape) * np.dtype(image.dtype).itemsize
            places[name] = start, start + nbytes
            start += nbytes
        has_boxes = any(label.is_ragged for label in spec.labels.values())
        # All are kept, whichever a label follows now: the file of a cache does not depend on that. No label follows
        # views or a clip.
        single = {name: image for name, image in spec.images.items() if not image.pictures}
        targets = {name: (image.height, image.width) for name, image in single.items() if has_boxes}
        return RecordLayout(places, targets)

    @property
    def pixel_bytes(self) -> int:
        """The bytes of all images."""
        return max(stop for _, stop in self.images.values())

    @property
    def nbytes(self) -> int:
        """The bytes of a record."""
        return self.pixel_bytes + len(self.targets) * _GEOMETRY.size

    @property
    def is_one_image(self) -> bool:
        """Whether a record is the pixels of the only image."""
        return len(self.images) == 1 and not self.targets

    def pack_record(self, rows: Mapping[str, Pixels], landed: Mapping[str, Geometry]) -> Record:
        """Returns the record of a sample, of the rows of its images and the geometries of its pictures."""
        record = np.empty(self.nbytes, np.uint8)
        for name, (start, stop) in self.images.items():
            record[start:stop] = _view_bytes(rows[name])
        packed = (_pack_geometry(landed[name]) for name in self.targets)
        record[self.pixel_bytes :] = np.frombuffer(b"".join(packed), np.uint8)
        return record

    def unpack_images(self, record: Record, rows: Mapping[str, Pixels]) -> None:
        """Writes the images of a record into the rows of a slot, each C-contiguous."""
        for name, (start, stop) in self.images.items():
            _view_bytes(rows[name])[...] = record[start:stop]

    def unpack_geometries(self, record: Record) -> dict[str, Geometry]:
        """Returns how the pictures of a record land; none where no label follows them."""
        found = _GEOMETRY.iter_unpack(record[self.pixel_bytes :].data)
        return {
            name: Geometry(
                (numbers[0], numbers[1]),
                (numbers[2], numbers[3], numbers[4], numbers[5]),
                target,
                (numbers[6], numbers[7], numbers[8], numbers[9]),
                numbers[10],
                numbers[11],
            )
            for (name, target), numbers in zip(self.targets.items(), found, strict=True)
        }


def _view_bytes(row: Pixels) -> Record:
    return row.reshape(-1).view(np.uint8)


def _pack_geometry(geometry: Geometry) -> bytes:
    return _GEOMETRY.pack(*geometry.source, *geometry.box, *geometry.place, geometry.is_cut, geometry.orientation)
