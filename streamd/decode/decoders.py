"""Chooses the decoder of a file by its format.

A data error is never tried with a second decoder, and a missing library has no fallback: both would change pixels.
"""

from __future__ import annotations

from streamd.core.spec import ImageSpec
from streamd.decode import jpeg, pillow
from streamd.decode.geometry import Draw, Geometry
from streamd.decode.resize import BadImageError, Row
from streamd.decode.sniff import detect_format

__all__ = ["BadImageError", "decode_image"]


def decode_image(data: bytes, row: Row, image: ImageSpec, draw: Draw | None = None) -> Geometry:
    """Decodes one image file into `row`, uint8 (height, width, channels), C-contiguous.

    Where `image` is cropped at random, `draw` holds the sample's numbers from `compute_random_crop_draws`. Without
    them the middle is shown, as with `resize: crop`: this is the part to show to a trained model. If `draw` is the
    geometry of another picture of the sample, this one shows the same part, in proportion.

    Returns how the upright picture lands in the row, for the labels and images that follow it.

    Raises BadImageError if the bytes are at fault, ConfigError if this Pillow was built without the format. After an
    error the contents of the row are undefined.
    """
    name = detect_format(data)
    if name == "JPEG":
        return jpeg.decode_jpeg(data, row, image, draw)
    return pillow.decode_with_pillow(data, row, image, name, draw)
