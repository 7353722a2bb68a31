"""libjpeg-turbo by simplejpeg, and OpenCV to resize: the fastest that a loader in Python can call."""

from __future__ import annotations

from importlib.metadata import version

import contest
import cv2
import simplejpeg

cv2.setNumThreads(1)  # OpenCV's advice to whoever has processes of his own

SIZE = (contest.SIDE, contest.SIDE)
LIBRARIES = f"simplejpeg {version('simplejpeg')}, OpenCV {cv2.__version__}"


def fill(data: bytes, row: contest.Images) -> None:
    """Decodes a JPEG into `row` (128, 128, 3), at the smallest DCT scale that covers it."""
    height, width, _, _ = simplejpeg.decode_jpeg_header(data, min_height=contest.SIDE, min_width=contest.SIDE)
    if (height, width) == SIZE:
        simplejpeg.decode_jpeg(data, "RGB", buffer=row)
    else:
        image = simplejpeg.decode_jpeg(data, "RGB", min_height=contest.SIDE, min_width=contest.SIDE)
        cv2.resize(image, SIZE, dst=row, interpolation=cv2.INTER_LINEAR)


def fill_from(path: str, row: contest.Images) -> None:
    with open(path, "rb") as file:  # noqa: PTH123 - a Path an image would be a cost of ours, not of the loader's
        fill(file.read(), row)
