"""Which decoder a file gets.

There is no second decoder after a data error and no fallback when a library is missing: both would change pixels.
"""

from __future__ import annotations

from streamd.core.spec import ImageSpec
from streamd.decode import jpeg, pillow
from streamd.decode.random_crop import CropDraw
from streamd.decode.resize import BadImageError, Row
from streamd.decode.sniff import detect_format

__all__ = ["BadImageError", "decode_image"]


def decode_image(data: bytes, row: Row, image: ImageSpec, draw: CropDraw | None = None) -> None:
    """Decodes one image file into `row`, (height, width, channels) uint8, C-contiguous.

    `draw` is what `compute_random_crop_draws` drew for the sample where `image` is cropped at random. Without it the
    middle is shown, as by `resize: crop`: what a trained model is to be asked about.

    Raises BadImageError when the bytes are at fault, ConfigError when this Pillow was built without the format. What a
    failed decode leaves in the row is undefined.
    """
    name = detect_format(data)
    if name == "JPEG":
        jpeg.decode_jpeg(data, row, image, draw)
    else:
        pillow.decode_with_pillow(data, row, image, name, draw)
