"""Detects the format of a file by its first bytes, and names what a file is that no decoder reads."""

from __future__ import annotations

import re
from typing import Final

from streamd.decode.resize import BadImageError

_JPEG: Final = b"\xff\xd8\xff"
_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"II*\x00", "TIFF"),
    (b"MM\x00*", "TIFF"),
    (b"II+\x00", "TIFF"),
    (b"MM\x00+", "TIFF"),
)
_PLAIN_MAP: Final = re.compile(rb"P[1-6][\s#]")

# Files that lie among images by mistake. A wrong guess gives a misleading reason, and never a wrong pixel.
_KNOWN_MISTAKES: Final = (
    (b"version https://git-lfs.github.com/spec/", "a Git LFS pointer: run git lfs pull"),
    (b"/annex/objects/", "a git-annex pointer: run git annex get"),
    (b"8BPS", "a Photoshop document: convert it to JPEG or PNG"),
    (b"\xff\x0a", "a JPEG XL image: convert it to JPEG or PNG"),
    (b"\x00\x00\x00\x0cJXL ", "a JPEG XL image: convert it to JPEG or PNG"),
    (b"\x00\x00\x00\x0cjP  ", "a JPEG 2000 image: convert it to JPEG or PNG"),
    (b"\xff\x4f\xff\x51", "a JPEG 2000 image: convert it to JPEG or PNG"),
    (b"v/1\x01", "an OpenEXR image: convert it to JPEG or PNG"),
    (b"\x00\x00\x01\x00", "an icon: convert it to PNG"),
    (b"\x00\x05\x16\x07", "a metadata file that macOS stores next to an image, not the image itself: delete it"),
    (b"%PDF", "a PDF: convert its pages to JPEG or PNG"),
    (b"%!PS", "PostScript: convert it to JPEG or PNG"),
    (b"\x1a\x45\xdf\xa3", "a video: extract its frames"),
    (b"PK\x03\x04", "a zip archive: unpack it"),
    (b"\x1f\x8b", "compressed by gzip: unpack it"),
    (b"\x93NUMPY", "a NumPy array: use mode: raw, or a source of kind npy"),
    (b"\x89HDF\r\n", "an HDF5 file: use a source of kind hdf5"),
)
_HEIC_BRANDS: Final = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})
_TEXT: Final = re.compile(rb"[\t\n\r\x20-\x7e]+")
_NONE_OF_OURS: Final = "neither JPEG, PNG, GIF, BMP, TIFF, WebP, AVIF nor PNM"


def detect_format(data: bytes) -> str:
    """Returns the format of a file, by Pillow's name. Raises BadImageError, which names the file's kind, for others."""
    if data.startswith(_JPEG):
        return "JPEG"
    for magic, name in _MAGIC:
        if data.startswith(magic):
            return name
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if _PLAIN_MAP.match(data):
        return "PPM"
    if _parse_media_brands(data) & {b"avif", b"avis"}:
        return "AVIF"
    raise BadImageError(_describe_unknown_file(data))


def _parse_media_brands(data: bytes) -> set[bytes]:
    """Returns the brands of an ISO media file, which name its readers; empty for any other file."""
    if data[4:8] != b"ftyp":
        return set()
    end = min(int.from_bytes(data[:4]), 256)  # real files have fewer than ten brands
    return {data[8:12], *(data[at : at + 4] for at in range(16, end, 4))}


def _describe_unknown_file(data: bytes) -> str:
    """Returns what a file is that no decoder reads, and what to do about it."""
    if not data:
        return "an empty file"
    if data.count(0) == len(data):
        return f"{len(data)} zero bytes: a copy or download that was never finished"
    known = next((reason for magic, reason in _KNOWN_MISTAKES if data.startswith(magic)), None)
    beginning = data[:1024].removeprefix(b"\xef\xbb\xbf").lstrip()
    return (
        known or _describe_media(data) or _describe_text(beginning) or f"{_NONE_OF_OURS}: it begins with {data[:4]!r}"
    )


def _describe_media(data: bytes) -> str | None:
    brands = _parse_media_brands(data)
    if not brands:
        return None
    return "a HEIC image: convert it to JPEG or PNG" if brands & _HEIC_BRANDS else "a video: extract its frames"


def _describe_text(beginning: bytes) -> str | None:
    small = beginning.lower()
    if small.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "an HTML page, which was downloaded instead of the image"
    if small.startswith(b"<"):
        return "an SVG drawing: convert it to PNG" if b"<svg" in small else "an XML file"
    return f"text: it begins with {beginning[:40]!r}" if _TEXT.fullmatch(beginning) else None
