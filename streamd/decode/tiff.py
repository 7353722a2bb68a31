"""What a TIFF must be for its pixels to be known: a format of many dialects, of which the plain ones are taken."""

from __future__ import annotations

from typing import Final

from PIL import TiffImagePlugin as Tiff

from streamd.decode.resize import BadImageError
from streamd.decode.to_rgb import PixelStorage

# What is left out is rare, and each would be one more decoder that reads hostile bytes.
_COMPRESSIONS: Final = frozenset(
    {
        "raw",
        "tiff_ccitt",
        "group3",
        "group4",
        "tiff_lzw",
        "jpeg",
        "tiff_adobe_deflate",
        "tiff_deflate",
        "packbits",
    }
)
_SUBFILE_TYPE: Final = 254
_PREVIEW: Final = 1
_WHITE_IS_ZERO: Final = 0
_YCBCR: Final = 6
_SIGNED: Final = 2
_TWELVE_BITS: Final = 4095.0


def check_tiff_storage(picture: Tiff.TiffImageFile, file_bytes: int) -> PixelStorage:
    """How the first page keeps its levels. Raises BadImageError for a dialect that Pillow would read wrongly."""
    tags = picture.tag_v2
    compression = picture.info["compression"]
    if compression not in _COMPRESSIONS:
        raise BadImageError(f"a TIFF compressed by {compression}: save it with LZW or deflate")
    if int(tags.get(_SUBFILE_TYPE, 0)) & _PREVIEW:
        raise BadImageError("a TIFF that begins with a preview, as cameras' raw files do: convert it to JPEG or PNG")
    photometric = tags.get(Tiff.PHOTOMETRIC_INTERPRETATION, _WHITE_IS_ZERO)
    if photometric == _YCBCR and compression == "raw" and tags.get(Tiff.YCBCRSUBSAMPLING, (2, 2)) != (1, 1):
        raise BadImageError("an uncompressed TIFF with subsampled colours: save it with JPEG or as RGB")
    if picture.mode == "L" and _SIGNED in tags.get(Tiff.SAMPLEFORMAT, ()):
        raise BadImageError("a TIFF with levels from -128 to 127: save it with 0 to 255")
    _check_extents(picture, file_bytes)
    return PixelStorage(
        white=_TWELVE_BITS if tags.get(Tiff.BITSPERSAMPLE) == (12,) else None,
        inverted=photometric == _WHITE_IS_ZERO,
    )


def _check_extents(picture: Tiff.TiffImageFile, file_bytes: int) -> None:
    """What a file lacks is filled up by libtiff, and left black by Pillow; so whether all is there is looked at before.

    The tiles lie in the order of reading: when the last one ends in the last corner, they cover the page.
    """
    tags = picture.tag_v2
    for offsets_tag, counts_tag in ((Tiff.STRIPOFFSETS, Tiff.STRIPBYTECOUNTS), (Tiff.TILEOFFSETS, Tiff.TILEBYTECOUNTS)):
        offsets, counts = tags.get(offsets_tag, ()), tags.get(counts_tag, ())
        if any(offset + count > file_bytes for offset, count in zip(offsets, counts, strict=False)):
            raise BadImageError("a TIFF cut off before its pixels end")
    corner = tags[Tiff.IMAGEWIDTH], tags[Tiff.IMAGELENGTH]
    last = picture.tile[-1].extents if picture.tile else None
    if last is None or last[2:] != corner:
        raise BadImageError(f"a TIFF whose strips do not make up its {corner[0]}x{corner[1]} pixels")
