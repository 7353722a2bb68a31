"""Identifies the pixels that this installation makes of built-in images: equal ids mean equal pixels everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from itertools import chain, repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.spec import ImageSpec, PixelId, compute_identity
from streamd.decode.decoders import BadImageError, decode_into_rows, list_picture_draws
from streamd.decode.geometry import compute_random_crop_draws, draw_geometry
from streamd.decode.raw import resize_numbers
from streamd.decode.resize import Row

_PROBE_SIZES: Final = ((48, 64), (37, 29), (150, 200), (7, 90))  # of arrays of numbers
# Probes that mode index refused when identities were first computed: what else is read must not change them.
_WITHOUT_NUMBERS: Final = frozenset({"19-white-is-1000.pgm", "21-two-bits-one-transparent.png"})
_MIXER: Final = 2654435761  # a product with it has bits that look random in its upper half


@lru_cache(maxsize=64)
def compute_pixel_id(image: ImageSpec) -> PixelId:
    """Returns the digest of the probe images decoded under `image`, each with one draw where it crops at random."""
    # The settings that determine pixels. The bounds of a random crop appear only where there is one: otherwise the ids
    # of all other streams would change.
    settings = image.describe_pixels(leave_out={"scale", "ratio"} if image.resize != "random_crop" else ())
    digest = hashlib.blake2b(settings.encode(), digest_size=16)
    for row in decode_probe_images(image):
        digest.update(row.data)
    return PixelId(digest.hexdigest())


def compute_sample_pixel_id(images: Mapping[str, ImageSpec]) -> PixelId:
    """Returns the identity of the pixels of all images of a sample: for one image, that of its own."""
    if len(images) == 1:
        return compute_pixel_id(*images.values())
    parts = [part for name, image in images.items() for part in (name, compute_pixel_id(image))]
    return PixelId(compute_identity("streamd images 1", *parts))


def compute_stored_pixel_id(image: ImageSpec) -> PixelId:
    """Returns the identity of pixels that are stored in arrays and sent as they are; it depends on no decoder."""
    deep = () if image.dtype == "uint8" else (image.dtype,)
    return PixelId(compute_identity("streamd stored pixels 1", *image.shape, *deep))


def decode_probe_images(image: ImageSpec) -> Iterator[Row]:
    """Yields each probe image decoded under `image`. All use the same memory: copy what must outlast the next one."""
    row = np.empty(image.shape, dtype=image.dtype)
    pictures = [*row] if image.pictures else [row]
    if image.mode == "raw":
        # Files of numbers are read without loss, by whatever decoder, so only what resizes them counts.
        draws = compute_random_crop_draws(image, 0, 0, np.arange(len(_PROBE_SIZES)))
        for numbers, draw in zip(build_probe_numbers(image), draws, strict=True):
            for picture, one in zip(pictures, list_picture_draws(image, draw), strict=True):
                geometry = draw_geometry(image, (numbers.shape[0], numbers.shape[1]), one)
                resize_numbers(picture, numbers, geometry, image.fill)
            yield row
        return
    probes = sorted(files("streamd.decode").joinpath("probes").iterdir(), key=lambda entry: entry.name)
    for probe, draw in zip(probes, compute_random_crop_draws(image, 0, 0, np.arange(len(probes))), strict=True):
        if image.mode == "index" and probe.name in _WITHOUT_NUMBERS:
            row[...] = image.fill
            yield row
            continue
        try:
            decode_into_rows(probe.read_bytes(), pictures, image, list_picture_draws(image, draw))
        except BadImageError:
            if image.mode != "index":
                raise
            row[...] = image.fill  # this probe holds no class numbers
        yield row


def decode_probe_samples(images: Mapping[str, ImageSpec]) -> Iterator[dict[str, Row]]:
    """Yields probes of all images of a sample by name, as many as there are of the image that has most.

    Shorter runs of probes begin again. All samples use the same memory.
    """
    rows = {
        name: chain.from_iterable(map(decode_probe_images, repeat(image)))  # again and again
        for name, image in images.items()
    }
    files_count = len(list(files("streamd.decode").joinpath("probes").iterdir()))
    most = max(len(_PROBE_SIZES) if image.mode == "raw" else files_count for image in images.values())
    for _ in range(most):
        yield {name: next(several) for name, several in rows.items()}


def build_probe_numbers(image: ImageSpec) -> Iterator[npt.NDArray[Any]]:
    """Yields arrays of numbers, (height, width, channels) of the dtype of `image`, that are the same everywhere."""
    bits = 8 * min(2, np.dtype(image.dtype).itemsize)
    for height, width in _PROBE_SIZES:
        places = np.arange(height * width * image.channels, dtype=np.uint32).reshape(height, width, image.channels)
        yield ((places * np.uint32(_MIXER)) >> np.uint32(32 - bits)).astype(image.dtype)
